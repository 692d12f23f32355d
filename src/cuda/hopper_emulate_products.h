/* The products of a warpgroup on the processor: operands from exchanged chunks of shared memory or from registers, and
 * when they are read. Part of hopper_emulate.h, which includes it after the state that it needs. */
#pragma once

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
