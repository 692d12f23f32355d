/* The verbs of Hopper on the processor: see emulate.h for the threads and kernels/hopper_verbs.cuh for the verbs.
 *
 * What is asynchronous happens as early or as late as the rules allow (emulate_late). Late means: a box arrives when no
 * thread can go on without one, the youngest first; a product is computed, and its operands are read, when the thread
 * waits for it; a box is stored when the thread waits for that, and plain stores reach shared memory at the fence. A
 * kernel that releases a tile too early, or changes a register that a product still reads, computes something else. */
#pragma once
#include "cuda/emulate.h"
#include "cuda/hopper_params.h"

#include <map>
#include <type_traits>

/* Faults, after those of emulate.h. */
enum emulated_hopper_fault {
    EMULATE_HOPPER_FAULTS = 100,
    EMULATE_NO_BARRIER_WAITS = EMULATE_HOPPER_FAULTS, /* barriers in shared memory hold nobody up */
    EMULATE_WRONG_PARITY,                             /* they are waited for with the other parity */
    EMULATE_MISSING_ARRIVAL,                          /* they do not wait for the last of several arrivals */
    EMULATE_NO_BOX_ZEROS,   /* outside of a tensor boxes leave shared memory as it is */
    EMULATE_NO_FENCES,      /* plain stores are not seen by products and boxes */
    EMULATE_FEWER_PRODUCTS, /* one group of products fewer is waited for */
    EMULATE_NO_STORE_WAITS, /* stored boxes are not waited for */
    EMULATE_NO_NAMED,       /* named barriers hold nobody up */
    EMULATE_NO_SWIZZLE,     /* chunks of a box are not exchanged */
    EMULATE_NO_PASSES,      /* no block waits for another */
    EMULATE_EARLY_SLOTS /* slots of the ring that was initialised last are filled again while they are read */
};

/* ---- What is in flight ---- */

struct emulate_barrier {
    int arrivals = 0, pending = 0;
    size_t number = 0; /* in the order of initialisation */
    int64_t bytes = 0; /* expected and not there yet; negative: they came first */
    uint32_t phases = 0;
};
struct emulate_named {
    int arrived = 0;
    unsigned generation = 0;
};
struct emulate_box {
    agi_cuda_box_view view;
    uint32_t shared, barrier;
    int at[4]; /* batch, head, row, channel */
};
struct emulate_bulk {
    const void *from;
    uint32_t shared, barrier, bytes;
};
struct emulate_move_entry {
    float *to;
    uint32_t from, bytes;
    bool adds;
};
struct emulate_plain {
    uint32_t to;
    char bytes[16];
    int count;
};

/* One product of a warpgroup: what each of its threads gave. */
struct emulate_product {
    float *d[128];
    const uint32_t *a[128]; /* NULL: in shared memory */
    uint64_t a_tile, b_tile;
    int N;
    bool first, bfloat;
    bool a_columns, b_columns; /* the sum runs over the rows of the tile */
};
struct emulate_warpgroup_state {
    int arrived = 0;
    unsigned generation = 0;
    void *thread[128];
    std::vector<emulate_product> open; /* not committed */
    std::vector<std::vector<emulate_product>> groups;
};

struct hopper_emulator {
    std::map<uint32_t, emulate_barrier> barriers;
    std::map<int, emulate_named> named;
    std::vector<emulate_box> loads;
    std::vector<emulate_bulk> bulks;
    std::map<unsigned, std::vector<emulate_box>> stores; /* by thread */
    std::map<unsigned, std::vector<emulate_move_entry>> moves;
    std::map<unsigned, std::vector<emulate_plain>> plain;
    std::vector<emulate_warpgroup_state> warpgroups;
};
inline hopper_emulator emu_hopper;

/* Yields until the condition holds; the other warps run meanwhile. */
template <class Condition> inline void emulate_until(Condition condition)
{
    while (!condition()) {
        emu.now->at_block_barrier = true;
        emulate_yield();
    }
    emu.now->at_block_barrier = false;
}

/* ---- Barriers in shared memory ---- */

inline void emulate_end_phase(emulate_barrier &b)
{
    if (b.pending == 0 && b.bytes == 0) {
        b.pending = b.arrivals;
        b.phases++;
    }
}
inline emulate_barrier &emulate_barrier_at(uint32_t barrier)
{
    const auto found = emu_hopper.barriers.find(barrier);
    if (found == emu_hopper.barriers.end()) {
        emulate_fail("a barrier that was not initialised");
    }
    return found->second;
}

inline void barrier_init(uint32_t barrier, int arrivals)
{
    emulate_shared_at(barrier, 8);
    const int fewer = emulate_fault == EMULATE_MISSING_ARRIVAL && arrivals > 1;
    emulate_barrier b;
    b.arrivals = b.pending = arrivals - fewer;
    b.number = emu_hopper.barriers.size();
    emu_hopper.barriers[barrier] = b;
}
inline void barrier_init_done()
{
}
inline void barrier_arrive(uint32_t barrier)
{
    emulate_barrier &b = emulate_barrier_at(barrier);
    emu.steps++;
    if (b.pending-- == 0) {
        b.pending = 0; /* more arrivals than the phase has: with EMULATE_MISSING_ARRIVAL only */
        if (emulate_fault != EMULATE_MISSING_ARRIVAL) {
            emulate_fail("too many threads arrive at a barrier");
        }
    }
    emulate_end_phase(b);
}
inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    emulate_barrier_at(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    const emulate_barrier &b = emulate_barrier_at(barrier);
    const bool of_slot = b.arrivals > 1 && b.number + 4 >= emu_hopper.barriers.size(); /* of a ring of two */
    if (emulate_fault == EMULATE_NO_BARRIER_WAITS || (emulate_fault == EMULATE_EARLY_SLOTS && of_slot)) {
        return;
    }
    const uint32_t ended = emulate_fault == EMULATE_WRONG_PARITY ? parity ^ 1 : parity;
    emulate_until([&] { return b.phases % 2 != ended; });
}

/* ---- Barriers of some warps ---- */

inline emulate_named &emulate_arrive_named(int number, int threads)
{
    emulate_named &b = emu_hopper.named[number];
    if (number < 0 || number > 15) {
        emulate_fail("there are 16 named barriers");
    }
    emu.steps++;
    if (++b.arrived == threads) {
        b.arrived = 0;
        b.generation++;
    }
    return b;
}
inline void named_arrive(int number, int threads)
{
    if (emulate_fault != EMULATE_NO_NAMED) {
        emulate_arrive_named(number, threads);
    }
}
inline void named_sync(int number, int threads)
{
    if (emulate_fault == EMULATE_NO_NAMED) {
        return;
    }
    const unsigned generation = emu_hopper.named[number].generation;
    emulate_named &b = emulate_arrive_named(number, threads);
    emulate_until([&] { return b.generation != generation; });
}

inline int uniform(int x)
{
    return x;
}
inline int anew(int x)
{
    return x;
}

inline uint32_t draw(int64_t *counter)
{
    return (uint32_t)(*counter)++;
}

template <int COUNT> inline void take_registers()
{
    static_assert(COUNT % 8 == 0 && COUNT <= 256, "registers come by eights");
}
template <int COUNT> inline void give_registers()
{
    static_assert(COUNT % 8 == 0 && COUNT >= 24, "registers go by eights");
}

/* ---- Boxes ---- */

/* Where byte `at` of a box is: the chunks of 16 bytes of a row of 128 are exchanged. */
inline uint32_t emulate_swizzle(uint32_t at)
{
    return emulate_fault == EMULATE_NO_SWIZZLE ? at : at ^ (at >> 7 & 7) << 4;
}

/* The numbers of row `row` of a box in the tensor, NULL if the row does not exist; count: how many exist. */
inline uint16_t *emulate_row_of(const emulate_box &x, int row, int &count)
{
    const agi_cuda_box_view &v = x.view;
    const int64_t at[4] = {x.at[0], x.at[1], x.at[2] + row, x.at[3]};
    int64_t offset = at[3];
    for (int axis = 0; axis < 4; axis++) {
        if (at[axis] < 0 || at[axis] >= v.size[axis]) {
            return nullptr;
        }
        offset += axis < 3 ? at[axis] * v.strides[axis] : 0;
    }
    count = (int)std::min<int64_t>(64, v.size[3] - at[3]);
    return (uint16_t *)v.data + offset;
}
inline char *emulate_chunk_at(const emulate_box &x, int row, int chunk)
{
    return emulate_shared_at(emulate_swizzle(x.shared + (uint32_t)(row * 128 + chunk * 16)), 16);
}

inline void emulate_arrived(uint32_t barrier, int64_t bytes)
{
    emulate_barrier &b = emulate_barrier_at(barrier);
    b.bytes -= bytes;
    emu.steps++;
    emulate_end_phase(b);
}
inline void emulate_land(const emulate_bulk &x)
{
    if (x.shared % 16 != 0 || (uintptr_t)x.from % 16 != 0 || x.bytes % 16 != 0) {
        emulate_fail("a copy that is not aligned to 16 bytes");
    }
    memcpy(emulate_shared_at(x.shared, 1), x.from, x.bytes);
    emulate_arrived(x.barrier, x.bytes);
}
inline void emulate_land(const emulate_box &x)
{
    for (int row = 0; row < x.view.rows; row++) {
        int count = 0;
        const uint16_t *const from = emulate_row_of(x, row, count);
        for (int chunk = 0; chunk < 8; chunk++) {
            const int there = from == nullptr ? 0 : std::min(std::max(count - 8 * chunk, 0), 8);
            char *const to = emulate_chunk_at(x, row, chunk);
            if (emulate_fault != EMULATE_NO_BOX_ZEROS) {
                memset(to, 0, 16);
            }
            if (there > 0) {
                memcpy(to, from + 8 * chunk, (size_t)there * 2);
            }
        }
    }
    emulate_arrived(x.barrier, x.view.rows * 128);
}
inline void emulate_write_back(const emulate_box &x)
{
    for (int row = 0; row < x.view.rows; row++) {
        int count = 0;
        uint16_t *const to = emulate_row_of(x, row, count);
        for (int c = 0; c < count && to != nullptr; c++) {
            memcpy(to + c, emulate_chunk_at(x, row, c / 8) + c % 8 * 2, 2);
        }
    }
}
inline emulate_box emulate_make_box(const agi_cuda_tensor_map &map, uint32_t shared, uint32_t barrier,
                                    const int (&at)[4])
{
    emulate_box x;
    memcpy(&x.view, map.words, sizeof x.view);
    x.shared = shared;
    x.barrier = barrier;
    std::copy(at, at + 4, x.at);
    if (shared % 1024 != 0 && x.view.rows % 8 == 0) {
        emulate_fail("a box must begin at a multiple of 1,024 bytes");
    }
    return x;
}

inline void box_prefetch(const agi_cuda_tensor_map &)
{
}
inline void box_load(uint32_t to, const agi_cuda_tensor_map &map, uint32_t barrier, int channel, int row,
                     int head, int batch)
{
    emu_hopper.loads.push_back(emulate_make_box(map, to, barrier, {batch, head, row, channel}));
    if (!emulate_late) {
        emulate_land(emu_hopper.loads.back());
        emu_hopper.loads.pop_back();
    }
}
inline void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    const emulate_bulk x = {from, to, barrier, bytes};
    if (emulate_late) {
        emu_hopper.bulks.push_back(x);
    } else {
        emulate_land(x);
    }
}
inline void box_store(const agi_cuda_tensor_map &map, uint32_t from, int channel, int row, int head,
                      int batch)
{
    const emulate_box x = emulate_make_box(map, from, 0, {batch, head, row, channel});
    if (emulate_late) {
        emu_hopper.stores[emu.now->index].push_back(x);
    } else {
        emulate_write_back(x);
    }
}
inline void box_store_wait()
{
    if (emulate_fault == EMULATE_NO_STORE_WAITS) {
        return;
    }
    std::vector<emulate_box> &all = emu_hopper.stores[emu.now->index];
    for (const emulate_box &x : all) {
        emulate_write_back(x);
    }
    all.clear();
}

/* ---- Sums in global memory ---- */

inline void emulate_move(const emulate_move_entry &x)
{
    if (x.from % 16 != 0 || (uintptr_t)x.to % 16 != 0 || x.bytes % 16 != 0) {
        emulate_fail("numbers that are not aligned to 16 bytes");
    }
    const float *const from = (const float *)emulate_shared_at(x.from, 16);
    for (uint32_t i = 0; i < x.bytes / 4; i++) {
        x.to[i] = x.adds ? x.to[i] + from[i] : from[i];
    }
}
inline void emulate_issue_move(const emulate_move_entry &x)
{
    if (emulate_late) {
        emu_hopper.moves[emu.now->index].push_back(x);
    } else {
        emulate_move(x);
    }
}
inline void bulk_store(float *to, uint32_t from, uint32_t bytes)
{
    emulate_issue_move({to, from, bytes, false});
}
inline void bulk_add(float *to, uint32_t from, uint32_t bytes)
{
    emulate_issue_move({to, from, bytes, true});
}
/* Late, all of it happens here: shared memory is read and global memory is written. */
inline void bulk_wait_read()
{
    if (emulate_fault == EMULATE_NO_STORE_WAITS) {
        return;
    }
    for (const emulate_move_entry &x : emu_hopper.moves[emu.now->index]) {
        emulate_move(x);
    }
    emu_hopper.moves[emu.now->index].clear();
}
inline void bulk_wait()
{
}
inline void wait_for_passes(const int32_t *passes, int count)
{
    if (emulate_fault != EMULATE_NO_PASSES) {
        emulate_until([&] { return *passes >= count; });
    }
}
inline void pass(int32_t *passes)
{
    ++*passes;
    emu.steps++;
}
inline int draw_ticket(int32_t *tickets)
{
    return (*tickets)++;
}

/* ---- Plain stores ---- */

inline void emulate_store_plain(uint32_t to, const void *bytes, int count)
{
    char *const at = emulate_shared_at(to, (size_t)count);
    if (!emulate_late) {
        memcpy(at, bytes, (size_t)count);
        return;
    }
    emulate_plain x;
    x.to = to;
    x.count = count;
    memcpy(x.bytes, bytes, (size_t)count);
    emu_hopper.plain[emu.now->index].push_back(x);
}
inline void shared_fence()
{
    if (emulate_fault == EMULATE_NO_FENCES) {
        return;
    }
    std::vector<emulate_plain> &all = emu_hopper.plain[emu.now->index];
    for (const emulate_plain &x : all) {
        memcpy(emulate_memory + x.to, x.bytes, (size_t)x.count);
    }
    all.clear();
}
inline void shared_fill_16(uint32_t address, uint32_t word)
{
    const uint32_t words[4] = {word, word, word, word};
    emulate_store_plain(address, words, 16);
}
inline void shared_zero_16(uint32_t address)
{
    shared_fill_16(address, 0);
}
inline void store_matrices(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    struct registers {
        uint32_t r[4], address;
    } mine = {{r0, r1, r2, r3}, address};
    emulate_together(mine, [](registers *const *lane) {
        for (int l = 0; l < 32; l++) {
            uint32_t row[4];
            for (int i = 0; i < 4; i++) {
                row[i] = lane[l % 8 * 4 + i]->r[l / 8];
            }
            emulate_store_plain(lane[l]->address, row, 16);
        }
    });
}
inline uint32_t transpose_matrix(uint32_t x)
{
    struct registers {
        uint32_t from, to;
    } mine = {x, 0};
    emulate_together(mine, [](registers *const *lane) {
        for (int l = 0; l < 32; l++) { /* row l / 4 of the transpose, columns 2 (l % 4) and the next */
            const int shift = l / 4 % 2 * 16, from = l % 4 * 8 + l / 8;
            lane[l]->to = (lane[from]->from >> shift & 0xffff) | (lane[from + 4]->from >> shift & 0xffff)
                                                                     << 16;
        }
    });
    return mine.to;
}
/* These are seen by threads, not by products and boxes. */
inline void shared_store(uint32_t address, float x, float y)
{
    const float both[2] = {x, y};
    memcpy(emulate_shared_at(address, 8), both, 8);
}
template <int N> inline void shared_store_4(uint32_t address, const float (&x)[N], int i)
{
    emulate_store_plain(address, x + i, 16);
}
template <int N> inline void shared_add_4(float (&x)[N], int i, uint32_t address)
{
    const float *const y = (const float *)emulate_shared_at(address, 16);
    for (int n = 0; n < 4; n++) {
        x[i + n] += y[n];
    }
}
inline float2 shared_load_2(uint32_t address)
{
    float2 x;
    memcpy(&x, emulate_shared_at(address, 8), 8);
    return x;
}
inline float shared_load(uint32_t address)
{
    float x;
    memcpy(&x, emulate_shared_at(address, 4), 4);
    return x;
}
inline void shared_load(float (&x)[4], uint32_t address)
{
    memcpy(x, emulate_shared_at(address, 16), 16);
}

/* ---- What emulate.h calls ---- */

/* Before a block: what the last one left in flight never happens. */
inline void emulate_hopper_begin()
{
    emu_hopper = hopper_emulator();
}
/* When no thread can go on. Returns whether something has changed. */
inline bool emulate_hopper_land()
{
    if (emu_hopper.loads.empty()) {
        const bool any = !emu_hopper.bulks.empty();
        if (any) {
            const emulate_bulk youngest = emu_hopper.bulks.back();
            emu_hopper.bulks.pop_back();
            emulate_land(youngest);
        }
        return any;
    }
    const emulate_box youngest = emu_hopper.loads.back();
    emu_hopper.loads.pop_back();
    emulate_land(youngest);
    return true;
}
/* What is in flight belongs to a block: exchanged with that of another. */
inline void emulate_hopper_exchange(unsigned block)
{
    static std::map<unsigned, hopper_emulator> others;
    std::swap(emu_hopper, others[block]);
}
inline const bool emulate_hopper =
    (emu_verbs = {emulate_hopper_begin, emulate_hopper_land, emulate_hopper_exchange}, true);

#include "cuda/hopper_emulate_products.h"
