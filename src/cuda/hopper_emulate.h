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

/* ---- Products ---- */

struct operand_tile {
    uint32_t low, high;
};
inline uint64_t operand_at(operand_tile t, uint32_t offset)
{
    return (uint64_t)t.high << 32 | (t.low + (offset >> 4));
}

/* Eight numbers of a tile that a descriptor names, in line `line` from column `column`, a multiple of 8: lines of 128
 * bytes, eight of them after 1,024 or what the descriptor says; 64 columns are a box. */
inline void emulate_eight(uint64_t tile, int line, int column, bool bfloat, double (&x)[8])
{
    const uint32_t start = (uint32_t)(tile & 0x3fff) << 4, box = (uint32_t)(tile >> 16 & 0x3fff) << 4;
    const uint32_t eight = (uint32_t)(tile >> 32 & 0x3fff) << 4;
    const uint32_t in_box = (uint32_t)(line / 8) * eight + (uint32_t)(line % 8 * 128 + column % 64 * 2);
    const uint32_t at = start + (uint32_t)(column / 64) * box + in_box;
    uint32_t pairs[4];
    memcpy(pairs, emulate_shared_at(emulate_swizzle(at), 16), 16);
    for (int n = 0; n < 4; n++) {
        const float2 both = bfloat ? unpack_bfloat(pairs[n]) : unpack_half(pairs[n]);
        x[2 * n] = both.x;
        x[2 * n + 1] = both.y;
    }
}

/* Where a thread has the numbers of an accumulator, and of a first operand in registers: thread t of the warpgroup has
 * rows t / 32 * 16 + t % 32 / 4 (+ 8) and columns 2 (t % 4) (+ 1) of each eight. */
inline int emulate_row(int thread, int half)
{
    return thread / 32 * 16 + thread % 32 / 4 + 8 * half;
}
inline void emulate_first_operand(const emulate_product &x, double (&a)[64][16])
{
    double eight[8];
    for (int n = 0; n < 128 && x.a[0] == nullptr; n++) {
        const int row = x.a_columns ? n % 8 * 8 : n / 2, k = x.a_columns ? n / 8 : n % 2 * 8;
        emulate_eight(x.a_tile, x.a_columns ? k : row, x.a_columns ? row : k, x.bfloat, eight);
        for (int i = 0; i < 8; i++) {
            a[row + (x.a_columns ? i : 0)][k + (x.a_columns ? 0 : i)] = eight[i];
        }
    }
    for (int t = 0; t < 128 && x.a[0] != nullptr; t++) {
        for (int r = 0; r < 4; r++) {
            const float2 both = x.bfloat ? unpack_bfloat(x.a[t][r]) : unpack_half(x.a[t][r]);
            const int k = 2 * (t % 4) + r / 2 * 8, row = emulate_row(t, r % 2);
            a[row][k] = both.x;
            a[row][k + 1] = both.y;
        }
    }
}
/* Eight columns of the second operand, from `column`. */
inline void emulate_second_operand(const emulate_product &x, int column, double (&b)[16][8])
{
    double eight[8];
    for (int k = 0; k < 16 && x.b_columns; k++) {
        emulate_eight(x.b_tile, k, column, x.bfloat, b[k]);
    }
    for (int n = 0; n < 16 && !x.b_columns; n++) {
        emulate_eight(x.b_tile, column + n / 2, n % 2 * 8, x.bfloat, eight);
        for (int i = 0; i < 8; i++) {
            b[n % 2 * 8 + i][n / 2] = eight[i];
        }
    }
}
/* The accumulators of eight columns and their sums: those of a thread are two of a row and two of the row 8 below. */
template <class Op>
inline void emulate_each_sum(const emulate_product &x, int column, double (&sum)[64][8], Op op)
{
    for (int t = 0; t < 128; t++) {
        float *const d = x.d[t] + column / 2;
        double *const upper = &sum[emulate_row(t, 0)][t % 4 * 2], *const lower = upper + 8 * 8;
        op(d[0], upper[0]);
        op(d[1], upper[1]);
        op(d[2], lower[0]);
        op(d[3], lower[1]);
    }
}
inline void emulate_multiply(const emulate_product &x)
{
    static double a[64][16], b[16][8], sum[64][8];
    emulate_first_operand(x, a);
    for (int column = 0; column < x.N; column += 8) {
        emulate_second_operand(x, column, b);
        if (x.first) {
            memset(sum, 0, sizeof sum);
        } else {
            emulate_each_sum(x, column, sum, [](float &d, double &of_d) { of_d = d; });
        }
        emulate_add_products(sum, a, b);
        emulate_each_sum(x, column, sum, [](float &d, double &of_d) { d = (float)of_d; });
    }
}

/* Each thread of a warpgroup gives what it has; when all 128 are there, op acts on all of them at once. */
template <class Thread, class Op> inline void emulate_warpgroup(Thread &mine, Op op)
{
    const size_t index = emu.now->index / 128;
    emu_hopper.warpgroups.resize(std::max(emu_hopper.warpgroups.size(), index + 1));
    emulate_warpgroup_state &w = emu_hopper.warpgroups[index];
    const unsigned generation = w.generation;
    w.thread[emu.now->index % 128] = &mine;
    emu.steps++;
    if (++w.arrived == 128) {
        w.arrived = 0;
        op(w, (Thread *const *)w.thread);
        w.generation++;
    }
    emulate_until([&] { return emu_hopper.warpgroups[index].generation != generation; });
}

struct emulate_product_thread {
    float *d;
    const uint32_t *a;
    uint64_t a_tile, b_tile;
    bool columns; /* of both tiles */
};
inline void emulate_issue(emulate_product_thread mine, int N, bool first, bool bfloat)
{
    emulate_warpgroup(mine, [&](emulate_warpgroup_state &w, emulate_product_thread *const *thread) {
        emulate_product x = {};
        for (int t = 0; t < 128; t++) {
            x.d[t] = thread[t]->d;
            x.a[t] = thread[t]->a;
        }
        x.a_tile = thread[0]->a_tile;
        x.b_tile = thread[0]->b_tile;
        x.N = N;
        x.first = first;
        x.bfloat = bfloat;
        x.a_columns = thread[0]->columns;
        x.b_columns = thread[0]->columns || x.a[0] != nullptr;
        w.open.push_back(x);
        if (!emulate_late) {
            emulate_multiply(x);
        }
    });
}

inline void products_begin()
{
}
inline void products_commit()
{
    int none = 0;
    emulate_warpgroup(none, [](emulate_warpgroup_state &w, int *const *) {
        w.groups.push_back(w.open);
        w.open.clear();
    });
}
template <int GROUPS> inline void products_wait()
{
    int none = 0;
    emulate_warpgroup(none, [](emulate_warpgroup_state &w, int *const *) {
        const size_t left = GROUPS + (emulate_fault == EMULATE_FEWER_PRODUCTS ? 1 : 0);
        while (w.groups.size() > left) {
            for (const emulate_product &x : w.groups.front()) {
                if (emulate_late) {
                    emulate_multiply(x);
                }
            }
            w.groups.erase(w.groups.begin());
        }
    });
}
template <int N> inline void hold(float (&)[N])
{
}
template <int N> inline void hold(uint32_t (&)[N])
{
}
inline int here(int x)
{
    return x;
}

template <class F> inline constexpr bool emulate_is_bfloat = std::is_same<F, struct bf16>::value;
template <class F, int N> inline void product_first(float (&d)[N / 2], uint64_t a, uint64_t b)
{
    emulate_issue({d, nullptr, a, b, false}, N, true, emulate_is_bfloat<F>);
}
template <class F, int N> inline void product_next(float (&d)[N / 2], uint64_t a, uint64_t b)
{
    emulate_issue({d, nullptr, a, b, false}, N, false, emulate_is_bfloat<F>);
}
template <class F, int N> inline void product_weights(float (&d)[N / 2], const uint32_t *a, uint64_t b)
{
    emulate_issue({d, a, 0, b, false}, N, false, emulate_is_bfloat<F>);
}
template <class F, int N> inline void product_weights_first(float (&d)[N / 2], const uint32_t *a, uint64_t b)
{
    emulate_issue({d, a, 0, b, false}, N, true, emulate_is_bfloat<F>);
}
template <class F, int COUNT> inline void product_columns_first(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulate_issue({d, nullptr, a, b, true}, 2 * COUNT, true, emulate_is_bfloat<F>);
}
template <class F, int COUNT> inline void product_columns_next(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulate_issue({d, nullptr, a, b, true}, 2 * COUNT, false, emulate_is_bfloat<F>);
}

struct wide_product {
    uint32_t low, high;
};
inline wide_product multiply_wide(uint32_t x, uint32_t y)
{
    const uint64_t xy = (uint64_t)x * y;
    return {(uint32_t)xy, (uint32_t)(xy >> 32)};
}
inline void append_bit(uint32_t &bits, uint32_t x, uint32_t below)
{
    const uint64_t sum = (uint64_t)x + (0u - below);
    bits = 2 * bits + (uint32_t)(sum >> 32);
}
inline uint32_t permute_bytes(uint32_t x, uint32_t y, uint32_t selector)
{
    const uint64_t all = (uint64_t)y << 32 | x;
    uint32_t r = 0;
    for (int n = 0; n < 4; n++) {
        const uint32_t digit = selector >> 4 * n & 15, byte = all >> 8 * (digit & 7) & 255;
        r |= (digit & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * n;
    }
    return r;
}
inline uint32_t max_of_halves(uint32_t x, uint32_t y)
{
    return std::max(x >> 16, y >> 16) << 16 | std::max(x & 0xffff, y & 0xffff);
}

inline float exp2_fast(float x)
{
    return x < -126 ? 0 : exp2f(x);
}
inline float reciprocal_fast(float x)
{
    return fabsf(x) > 0x1p126f ? 0 : 1 / x;
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
