/* The kernels on the processor: threads are fibers, run one after another up to the next point where a warp or the
 * block acts together; the verbs are plain C++. Slow and simple, for small problems in tests on a machine without a
 * GPU. A product of the tensor core is rounded once here, and cut off there: compare by the error rule, not by bits.
 *
 * Asynchronous copies arrive as early or as late as the rules allow (emulate_late), and a warp runs ahead of the others
 * up to the next barrier of the block, the first warp or the last one (emulate_backwards): a kernel that is right under
 * all four waits where it must and overwrites nothing that is still read. Shared memory starts as NaN.
 *
 * Faults can be planted (emulate_fault): a test that does not find them tests nothing. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

#define KERNEL static
#define VERB inline
#define CALLED inline
#define SHARED_MEMORY(name) char *const name = emulate_memory
#define __launch_bounds__(...)
#define __grid_constant__
#define __device__

struct float2 {
    float x, y;
};
struct double2 {
    double x, y;
};
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
using std::fabs;
using std::fmax;
using std::max;
using std::min;
inline uint32_t __float_as_uint(float x)
{
    uint32_t r;
    memcpy(&r, &x, 4);
    return r;
}
inline float __uint_as_float(uint32_t x)
{
    float r;
    memcpy(&r, &x, 4);
    return r;
}

/* ---- Fibers ---- */

struct emulate_index {
    unsigned x = 0;
};
inline emulate_index threadIdx, blockIdx, blockDim, gridDim;
inline bool emulate_late, emulate_backwards,
    emulate_slow; /* slow: the last four warps go on if nobody else can */

enum emulated_fault {
    EMULATE_NO_FAULT,
    EMULATE_NO_BARRIERS,      /* no warp waits for the others */
    EMULATE_NO_EVEN_BARRIERS, /* only at every other barrier, */
    EMULATE_NO_ODD_BARRIERS,  /* and at the others */
    EMULATE_NO_WAITS,         /* for copies */
    EMULATE_NO_ZEROS,         /* in the place of what does not exist */
    EMULATE_WRONG_LANES       /* neighbours exchange what they have loaded */
};
inline int emulate_fault;
inline constexpr size_t EMULATE_SHARED = 232448, EMULATE_STACK = 256 * 1024;
alignas(1024) inline char emulate_memory[EMULATE_SHARED];
inline size_t emulate_shared; /* bytes that the launch asked for */

[[noreturn]] inline void emulate_fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

#if defined(__x86_64__) || defined(__aarch64__)
/* Saves the stack pointer in *save, after the registers that a function must keep, and goes on where `load` was
 * saved. */
extern "C" void emulate_switch(void **save, void *load);
#if defined(__x86_64__)
/* In words: the registers that are kept, the place of the return address, and what lies above the registers. */
inline constexpr int EMULATE_FRAME = 6, EMULATE_RETURN = 6, EMULATE_ABOVE = 2;
asm(".text\n.weak emulate_switch\n.type emulate_switch,@function\nemulate_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emulate_switch, .-emulate_switch\n");
#else
inline constexpr int EMULATE_FRAME = 20, EMULATE_RETURN = 11,
                     EMULATE_ABOVE = 0; /* the return address is x30 */
asm(".text\n.weak emulate_switch\n.type emulate_switch,%function\nemulate_switch:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n"
    ".size emulate_switch, .-emulate_switch\n");
#endif
struct emulate_context {
    void *top = nullptr;
    void begin(char *stack, size_t size, void (*entry)())
    {
        void **end = (void **)((uintptr_t)(stack + size) & ~(uintptr_t)15);
        void **at = end - EMULATE_FRAME - EMULATE_ABOVE; /* entry finds the stack as a call would leave it */
        memset(at, 0, (size_t)(end - at) * sizeof *at);
        at[EMULATE_RETURN] = (void *)entry;
        top = at;
    }
    void switch_to(emulate_context &other)
    {
        emulate_switch(&top, other.top);
    }
};
#else
struct emulate_context {
    ucontext_t context;
    void begin(char *stack, size_t size, void (*entry)())
    {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = size;
        makecontext(&context, entry, 0);
    }
    void switch_to(emulate_context &other)
    {
        swapcontext(&context, &other.context);
    }
};
#endif

struct emulate_copy_entry {
    uint32_t to;
    const void *from;
    bool there;
};
struct emulate_fiber {
    emulate_context context;
    std::vector<char> stack;
    std::vector<emulate_copy_entry> copies;
    unsigned index = 0, barriers = 0;
    bool done = false, at_block_barrier = false;
};
struct emulate_warp_state {
    int arrived = 0;
    unsigned generation = 0;
    void *lane[32];
};

struct emulator {
    emulate_context scheduler;
    std::vector<emulate_fiber> fibers;
    std::vector<emulate_warp_state> warps;
    emulate_fiber *now = nullptr;
    size_t threads = 0, block_arrived = 0;
    unsigned block_generation = 0, steps = 0; /* steps: counts what lets somebody go on */
    std::function<void()> body;
};
inline emulator emu;

/* Of verbs with a state of their own (hopper_emulate.h). */
struct emulate_verbs {
    void (*begin)(); /* before a block */
    bool (
        *land)(); /* when no thread of a block can go on: lets something arrive that is in flight; was there any? */
    void (*exchange)(unsigned block); /* the state with the one that is kept under this number */
};
inline emulate_verbs emu_verbs;

inline void emulate_yield()
{
    emu.now->context.switch_to(emu.scheduler);
}
inline unsigned emulate_lane()
{
    return emu.now->index % 32;
}

/* Each lane gives what it has; when all 32 are there, op acts on all of them at once. */
template <class Lane, class Op> inline void emulate_together(Lane &mine, Op op)
{
    emulate_warp_state &w = emu.warps[emu.now->index / 32];
    const unsigned generation = w.generation;
    w.lane[emulate_lane()] = &mine;
    emu.steps++;
    if (++w.arrived == 32) {
        w.arrived = 0;
        op((Lane *const *)w.lane);
        w.generation++;
    }
    while (w.generation == generation) {
        emulate_yield();
    }
}
inline void __syncwarp()
{
    int none = 0;
    emulate_together(none, [](int *const *) {});
}
/* Is the thread's next barrier left out? */
inline bool emulate_skips_barrier()
{
    const bool odd = emu.now->barriers++ % 2 != 0;
    return emulate_fault == EMULATE_NO_BARRIERS || (emulate_fault == EMULATE_NO_EVEN_BARRIERS && !odd) ||
           (emulate_fault == EMULATE_NO_ODD_BARRIERS && odd);
}
inline void __syncthreads()
{
    if (emulate_skips_barrier()) {
        return;
    }
    const unsigned generation = emu.block_generation;
    emu.steps++;
    if (++emu.block_arrived == emu.threads) {
        emu.block_arrived = 0;
        emu.block_generation++;
    }
    while (emu.block_generation == generation) {
        emu.now->at_block_barrier = true;
        emulate_yield();
    }
    emu.now->at_block_barrier = false;
}
template <class T> inline T __shfl_xor_sync(unsigned, T x, int mask)
{
    struct both {
        T in, out;
    } mine = {x, x};
    emulate_together(mine, [mask](both *const *lane) {
        for (int i = 0; i < 32; i++) {
            lane[i]->out = lane[i ^ mask]->in;
        }
    });
    return mine.out;
}
inline uint32_t or_over_warp(uint32_t x)
{
    emulate_together(x, [](uint32_t *const *lane) {
        uint32_t all = 0;
        for (int i = 0; i < 32; i++) {
            all |= *lane[i];
        }
        for (int i = 0; i < 32; i++) {
            *lane[i] = all;
        }
    });
    return x;
}
inline int count_bits(uint32_t x)
{
    return __builtin_popcount(x);
}
inline bool __any_sync(unsigned, bool x)
{
    return or_over_warp(x) != 0;
}

inline void emulate_entry()
{
    emu.body();
    emu.now->done = true;
    emu.steps++;
    emulate_yield();
}

/* Runs one warp until its lanes have ended or wait for the block. Returns whether there is more to do. */
inline bool emulate_run_warp(size_t warp)
{
    bool more = false;
    for (bool moving = true; moving;) {
        const unsigned steps = emu.steps;
        moving = more = false;
        for (size_t lane = 0; lane < 32; lane++) {
            emulate_fiber &f = emu.fibers[warp * 32 + lane];
            if (!f.done) {
                emu.now = &f;
                threadIdx.x = f.index;
                emu.scheduler.switch_to(f.context);
                more |= !f.done;
                moving |= !f.done && !f.at_block_barrier;
            }
        }
        if (moving && steps == emu.steps) {
            emulate_fail("the lanes of a warp wait for each other");
        }
    }
    return more;
}

inline void emulate_begin_block(size_t threads)
{
    memset(emulate_memory, 0xff, sizeof emulate_memory);
    emu.fibers.resize(std::max(emu.fibers.size(), threads));
    emu.warps.assign(threads / 32, {});
    emu.threads = threads;
    emu.block_arrived = 0;
    if (emu_verbs.begin != nullptr) {
        emu_verbs.begin();
    }
    for (size_t i = 0; i < threads; i++) {
        emulate_fiber &f = emu.fibers[i];
        f.index = (unsigned)i;
        f.done = f.at_block_barrier = false;
        f.barriers = 0;
        f.copies.clear();
        f.stack.resize(EMULATE_STACK);
        f.context.begin(f.stack.data(), f.stack.size(), emulate_entry);
    }
}

/* Runs the block until its threads have ended, or none of them can go on. Returns whether they have ended. */
inline bool emulate_run_block()
{
    const size_t warps = emu.threads / 32, slow = emulate_slow && warps > 4 ? 4 : 0;
    for (bool running = true; running;) {
        const unsigned steps = emu.steps;
        running = false;
        for (size_t w = 0; w < warps; w++) {
            if (w < warps - slow || steps == emu.steps) {
                running |= emulate_run_warp(emulate_backwards ? warps - 1 - w : w);
            } else {
                running = true;
            }
        }
        if (running && steps == emu.steps && !(emu_verbs.land != nullptr && emu_verbs.land())) {
            return false;
        }
    }
    return true;
}

inline void emulate_one_by_one(unsigned blocks, unsigned threads)
{
    for (unsigned block = 0; block < blocks; block++) {
        blockIdx = {block};
        emulate_begin_block(threads);
        if (!emulate_run_block()) {
            emulate_fail("a block waits for threads that have ended");
        }
    }
}

/* ---- Blocks that run together, and may wait for each other ---- */

struct emulate_resident {
    emulator state;
    std::vector<char> memory;
    bool begun = false, done = false;
};

/* Exchanges the block that runs with one that is kept. */
inline void emulate_exchange(emulate_resident &x, unsigned block)
{
    std::swap(emu, x.state);
    std::swap_ranges(x.memory.begin(), x.memory.end(), emulate_memory);
    if (emu_verbs.exchange != nullptr) {
        emu_verbs.exchange(block);
    }
}
/* Runs one of them as far as it goes. Returns whether it has moved. */
inline bool emulate_advance(emulate_resident &x, unsigned block, unsigned threads,
                            const std::function<void()> &body)
{
    blockIdx = {block};
    emulate_exchange(x, block);
    if (!x.begun) {
        emu.body = body;
        emulate_begin_block(threads);
    }
    const unsigned steps = emu.steps;
    x.done = emulate_run_block();
    const bool moved = !x.begun || x.done || emu.steps != steps;
    x.begun = true;
    emulate_exchange(x, block);
    return moved;
}
inline void emulate_all_together(unsigned blocks, unsigned threads, const std::function<void()> &body)
{
    static std::vector<emulate_resident> residents; /* kept: their stacks are large */
    residents.resize(std::max(residents.size(), (size_t)blocks));
    for (unsigned block = 0; block < blocks; block++) {
        residents[block].begun = residents[block].done = false;
        residents[block].memory.resize(EMULATE_SHARED);
    }
    for (bool running = true; running;) {
        bool moved = running = false;
        for (unsigned n = 0; n < blocks; n++) {
            const unsigned block = emulate_backwards ? blocks - 1 - n : n;
            if (!residents[block].done) {
                moved |= emulate_advance(residents[block], block, threads, body);
                running |= !residents[block].done;
            }
        }
        if (running && !moved) {
            emulate_fail("blocks wait for each other");
        }
    }
}

/* Runs body as every thread of every block of the grid; together: all blocks are on the device at once. */
inline void emulate_launch(unsigned blocks, unsigned threads, size_t shared, bool together,
                           std::function<void()> body)
{
    gridDim = {blocks};
    blockDim = {threads};
    emulate_shared = shared;
    if (shared > EMULATE_SHARED) {
        emulate_fail("more shared memory than there is");
    }
    if (together) {
        emulate_all_together(blocks, threads, body);
    } else {
        emu.body = body;
        emulate_one_by_one(blocks, threads);
    }
}

/* ---- The verbs ---- */

inline uint32_t emulate_to_half(float x)
{
    const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffff;
    const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const uint32_t other = magnitude > 0x7f800000 ? 0x7fff : 0x7c00;
    return (magnitude < 0x477ff000 ? finite : other) | (bits >> 16 & 0x8000);
}
inline float emulate_from_half(uint32_t h)
{
    const uint32_t magnitude = h & 0x7fff, sign = (h & 0x8000) << 16;
    const float subnormal = (float)magnitude * 0x1p-24f;
    const uint32_t bits = magnitude < 0x400    ? __float_as_uint(subnormal)
                          : magnitude < 0x7c00 ? (magnitude << 13) + 0x38000000
                                               : (magnitude << 13) + 0x70000000;
    return __uint_as_float(bits | sign);
}
inline uint32_t emulate_to_bfloat(float x)
{
    const uint32_t b = __float_as_uint(x);
    return std::isnan(x) ? 0x7fffu : (b + 0x7fffu + (b >> 16 & 1)) >> 16;
}
inline uint32_t pack_half(float x, float y)
{
    return emulate_to_half(x) | emulate_to_half(y) << 16;
}
inline float2 unpack_half(uint32_t r)
{
    return {emulate_from_half(r & 0xffff), emulate_from_half(r >> 16)};
}
inline uint32_t pack_bfloat(float x, float y)
{
    return emulate_to_bfloat(x) | emulate_to_bfloat(y) << 16;
}
inline float2 unpack_bfloat(uint32_t r)
{
    return {__uint_as_float(r << 16), __uint_as_float(r & 0xffff0000u)};
}

/* sum += a b, each sum in the order of k. The only part that is compiled for speed (emulated_products.cpp). */
template <int ROWS, int K>
void emulate_add_products(double (&sum)[ROWS][8], const double (&a)[ROWS][K], const double (&b)[K][8]);

struct emulate_mma_lane {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};
/* c += a b. c: row lane / 4 (+ 8), columns 2 (lane % 4) (+ 1). */
template <class Lane, int K>
inline void emulate_add_to_lanes(Lane *const *lane, const double (&a)[16][K], const double (&b)[K][8])
{
    double sum[16][8];
    for (int l = 0; l < 32; l++) {
        for (int r = 0; r < 4; r++) {
            sum[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2] = lane[l]->c[r];
        }
    }
    emulate_add_products(sum, a, b);
    for (int l = 0; l < 32; l++) {
        for (int r = 0; r < 4; r++) {
            lane[l]->c[r] = sum[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
        }
    }
}
/* a: row lane / 4 (+ 8), channels 2 (lane % 4) (+ 1, + 8); b: the same, column lane / 4. */
template <float2 (*UNPACK)(uint32_t)> inline void emulate_mma(emulate_mma_lane *const *lane)
{
    double a[16][16], b[16][8];
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) {
            const float2 x = UNPACK(lane[l]->a[r]);
            const int row = g + r % 2 * 8, k = 2 * t + r / 2 * 8;
            a[row][k] = x.x;
            a[row][k + 1] = x.y;
        }
        for (int r = 0; r < 2; r++) {
            const float2 y = UNPACK(lane[l]->b[r]);
            b[2 * t + r * 8][g] = y.x;
            b[2 * t + r * 8 + 1][g] = y.y;
        }
    }
    emulate_add_to_lanes(lane, a, b);
}
inline void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma_lane mine = {c, a, {b0, b1}};
    emulate_together(mine, emulate_mma<unpack_half>);
}
inline void mma_bfloat(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma_lane mine = {c, a, {b0, b1}};
    emulate_together(mine, emulate_mma<unpack_bfloat>);
}
inline void mma_double(double (&c)[4], const double (&a)[4], double b0, double b1)
{
    struct operands {
        double *c;
        const double *a;
        double b[2];
    } mine = {c, a, {b0, b1}};
    emulate_together(mine, [](operands *const *lane) {
        double all_a[16][8], all_b[8][8];
        for (int l = 0; l < 32; l++) {
            for (int r = 0; r < 4; r++) {
                all_a[l / 4 + r % 2 * 8][l % 4 + r / 2 * 4] = lane[l]->a[r];
            }
            for (int r = 0; r < 2; r++) {
                all_b[l % 4 + r * 4][l / 4] = lane[l]->b[r];
            }
        }
        emulate_add_to_lanes(lane, all_a, all_b);
    });
}

inline uint32_t shared_address(const void *p)
{
    return (uint32_t)((const char *)p - emulate_memory);
}
inline char *emulate_shared_at(uint32_t address, size_t bytes)
{
    if (address % bytes != 0 || address + bytes > emulate_shared) {
        emulate_fail("an address outside of shared memory, or not aligned");
    }
    return emulate_memory + address;
}
inline void emulate_copy(const emulate_copy_entry &c)
{
    char *const to = emulate_shared_at(c.to, 16);
    if (emulate_fault != EMULATE_NO_ZEROS) {
        memset(to, 0, 16);
    }
    if (c.there) {
        if ((uintptr_t)c.from % 16 != 0) {
            emulate_fail("a copy from an address that is not aligned");
        }
        memcpy(to, c.from, 16);
    }
}
inline void copy_16(uint32_t to, const void *from, bool there)
{
    if (emulate_late) {
        emu.now->copies.push_back({to, from, there});
    } else {
        emulate_copy({to, from, there});
    }
}
inline void copy_commit()
{
}
inline void copy_wait()
{
    if (emulate_fault == EMULATE_NO_WAITS) {
        return;
    }
    for (const emulate_copy_entry &c : emu.now->copies) {
        emulate_copy(c);
    }
    emu.now->copies.clear();
}

struct emulate_matrix_lane {
    uint32_t *r;
    uint32_t address;
};
inline void load_matrices(uint32_t (&r)[4], uint32_t address)
{
    emulate_matrix_lane mine = {r, address};
    emulate_together(mine, [](emulate_matrix_lane *const *lane) {
        for (int l = 0; l < 32; l++) {
            for (int i = 0; i < 4; i++) {
                const char *const row = emulate_shared_at(lane[8 * i + l / 4]->address, 16);
                memcpy(&lane[l]->r[i], row + l % 4 * 4, 4);
            }
        }
    });
}
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    emulate_matrix_lane mine = {r, address};
    emulate_together(mine, [](emulate_matrix_lane *const *lane) {
        for (int l = 0; l < 32; l++) {
            for (int e = 0; e < 8; e++) {
                const char *const row = emulate_shared_at(lane[e / 2 * 8 + l % 4 * 2 + e % 2]->address, 16);
                const int to = emulate_fault == EMULATE_WRONG_LANES ? l ^ 1 : l;
                memcpy((char *)&lane[to]->r[e / 2] + e % 2 * 2, row + l / 4 * 2, 2);
            }
        }
    });
}
inline double load_double(uint32_t address)
{
    double x;
    memcpy(&x, emulate_shared_at(address, 8), 8);
    return x;
}

inline float mul_rn(float x, float y)
{
    return x * y;
}
inline double mul_rn(double x, double y)
{
    return x * y;
}
inline float add_rn(float x, float y)
{
    return x + y;
}
inline double add_rn(double x, double y)
{
    return x + y;
}
inline float exp_fast(float x)
{
    return expf(x);
}
inline int low_word(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(uint32_t)bits;
}
inline double power_of_two(int n)
{
    const uint64_t bits = (uint64_t)(int64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
