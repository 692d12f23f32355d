/* What comes before vjp and vjp_jvp in one kernel (hopper_ring.cu, hopper_second_ring.cu): the numbers of each query
 * that their scores need, counters at zero, and zeros in tiles of dQ or tdQ that no block of keys visits. */
#pragma once
#include "cuda/kernels/hopper_visits.cuh"
#include "cuda/kernels/results.cuh"
#include "cuda/kernels/row_dots.cuh"

constexpr double LOG2_OF_E = 1.4426950408889634;

/* P is larger by this power of two as an operand in float16, whose range is small. */
template <class F> constexpr float RAISE = F::RAISED ? 14 : 0;

/* ---- A tile of one head ---- */

/* A block has one: 32 rows at a time, eight lanes each. */
template <class T, class Call> struct statistics_tile {
    typedef typename T::F F;
    static constexpr int EACH = T::N / 32; /* rows of a lane */
    const Call &f;
    sequence s;
    int h, m;
    int64_t tile; /* in the sums */

    VERB statistics_tile(const Call &call) : f(call)
    {
        const int64_t index = blockIdx.x / f.p.w.blocks;
        s = find_sequence(f.p, index / f.p.H);
        h = (int)(index % f.p.H);
        m = (int)(blockIdx.x % f.p.w.blocks);
        tile = h * f.tiles + first_tile_of(f.p, s, T::N) + m;
    }
    /* Of the lane's channels of its n-th row. */
    VERB float dot(const output_pair &t, int n) const
    {
        const int row = min(m * T::N + n * 32 + (int)threadIdx.x / 8, s.n_q - 1);
        float sum = 0;
#pragma unroll
        for (int c = 0; c < T::D; c += 64) {
            const int mine = c + (int)threadIdx.x % 8 * 8;
            sum += f.in_chunks ? dot_of_bytes<F>(f.p, t, s, h, row, mine)
                               : dot_of_chunk(f.p, t, s, h, row, mine);
        }
        return sum;
    }
    VERB bool is_there(int row) const
    {
        return row < s.n_q;
    }
    VERB bool sees(int row) const
    {
        return max(row + s.low, 0) < min(row + s.high + 1, s.n_k);
    }
    VERB double lse(int row) const
    {
        return is_there(row) ? row_number(f.p.a.lse, {s, h}, row) : -INFINITY;
    }
    /* In powers of two; a row that sees no key has none: its weights are then 0. */
    static VERB float in_powers_of_two(double L, float raise)
    {
        return L == -INFINITY ? INFINITY : (float)(L * LOG2_OF_E - (double)raise);
    }
    /* Have bias and mask hidden every key from a row that has a sink? Then L is the sink's logit (lse_of_sink). */
    VERB bool sees_sink_alone(double L) const
    {
        const ag_tensor &t = f.p.a.sink;
        return (f.p.a.bias.data != nullptr || f.p.a.mask.data != nullptr) && t.data != nullptr &&
               L == load_aux(f.p.aux_dtype, t.data, h * t.strides[1], 0.0f);
    }
    /* L of a row, and the rest of it if `rest` is there. */
    VERB void put_lse(float *to, float *rest, double of_row, float raise) const
    {
        const double L = sees_sink_alone(of_row) ? -INFINITY : of_row;
        const bool none = L == -INFINITY;
        if (f.lse_rest != nullptr) {
            *to = none ? INFINITY : (float)L;
            *rest = none ? 0 : (float)(((double)(float)L - L) * LOG2_OF_E) + raise;
        } else {
            *to = in_powers_of_two(L, raise);
        }
    }
    /* rowsum - a cotangent of L; a row that sees no key has no O. */
    VERB float delta(int row, float sum, const ag_tensor &d_lse) const
    {
        return is_there(row) ? (sees(row) ? sum : 0) - (float)row_number(d_lse, {s, h}, row) : 0;
    }

    /* Does some block of keys visit the tile? A mask may leave none. */
    VERB bool is_visited() const
    {
        const int last = min((m + 1) * T::N, s.n_q) - 1;
        return m * T::N < s.n_q && max(m * T::N + s.low, 0) <= min(last + s.high, s.n_k - 1) &&
               (f.x.classes == nullptr || shows_any<T>(f.x, s, h, m * T::N));
    }
    /* Zeros times the scale, as a tile has them that is visited. */
    VERB void clear(const output &out) const
    {
        const int rows = f.p.flags & AG_PACKED ? s.n_q : (int)f.p.Nq;
        const float zero = mul_rn(0.0f, (float)f.p.scale);
        for (int i = (int)threadIdx.x; i < T::N * f.p.Dk; i += 256) {
            const int row = m * T::N + i / f.p.Dk;
            if (row < rows) {
                out.store(element_at(*out.t, s.view, h, s.q0 + row) + i % f.p.Dk * out.t->strides[3], zero);
            }
        }
    }
    /* Counters at zero. Returns whether the tile has rows. */
    VERB bool begin() const
    {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            *f.tickets = 0;
        }
        if (m * T::N < s.n_q && threadIdx.x < 2) {
            f.passes[2 * tile + threadIdx.x] = 0;
        }
        return m * T::N < s.n_q;
    }
};

/* ---- vjp: L and D = rowsum(dO o O) - dL ---- */

template <class T> struct tile_statistics : statistics_tile<T, agi_hopper_ring> {
    typedef statistics_tile<T, agi_hopper_ring> base;
    using base::EACH;
    using base::f;
    using base::m;
    using base::tile;

    VERB tile_statistics(const agi_hopper_ring &call) : base(call)
    {
    }
    VERB void put_rows() const
    {
        float D[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) { /* the loads of all rows are issued before the first is used */
            D[n] = base::dot({f.p.a.o, f.p.a.o_low, f.p.a.d_o}, n);
        }
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int r = n * 32 + (int)threadIdx.x / 8, row = m * T::N + r;
            const float sum = sum_of_eight(D[n]);
            if (threadIdx.x % 8 == 0) {
                const int64_t at = tile * T::N + r;
                base::put_lse(f.lse + at, f.lse_rest + at, base::lse(row), RAISE<typename T::F>);
                f.delta[at] = base::delta(row, sum, f.p.a.d_lse);
            }
        }
    }
    VERB void run() const
    {
        if (base::begin()) {
            put_rows();
        }
        if (!base::is_visited()) {
            base::clear({&f.p.a.dq, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_DQ) != 0});
        }
    }
};

/* ---- vjp_jvp: L, mu, D, and tD = rowsum(tO o dO + O o tdO) - tdL ---- */

/* The numbers of a query, in this order; with a bias the rest of L comes behind them. */
enum { ROW_LSE, ROW_MU, ROW_D, ROW_TD, ROW_NUMBERS, ROW_LSE_REST = ROW_NUMBERS };

template <class T> struct tile_second_statistics : statistics_tile<T, agi_hopper_second_ring> {
    typedef statistics_tile<T, agi_hopper_second_ring> base;
    using base::EACH;
    using base::f;
    using base::m;
    using base::tile;

    VERB tile_second_statistics(const agi_hopper_second_ring &call) : base(call)
    {
    }
    VERB void put_row(int r, float D, float tD) const
    {
        const int row = m * T::N + r;
        const bool has_mu = base::is_there(row) && base::sees(row);
        float *const to = f.rows + tile * ROW_NUMBERS * T::N + r;
        base::put_lse(to + ROW_LSE * T::N, f.lse_rest + tile * T::N + r, base::lse(row), 0);
        to[ROW_MU * T::N] = has_mu ? (float)row_number(f.p.a.mu, {base::s, base::h}, row) : 0;
        to[ROW_D * T::N] = base::delta(row, D, f.p.a.d_lse);
        to[ROW_TD * T::N] = base::delta(row, tD, f.p.a.td_lse);
    }
    VERB void put_rows() const
    {
        const ag_args &a = f.p.a;
        float D[EACH], tD[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            D[n] = base::dot({a.o, a.o_low, a.d_o}, n);
            tD[n] = base::dot({a.to, a.to_low, a.d_o}, n) + base::dot({a.o, a.o_low, a.td_o}, n);
        }
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            D[n] = sum_of_eight(D[n]);
            tD[n] = sum_of_eight(tD[n]);
            if (threadIdx.x % 8 == 0) {
                put_row(n * 32 + (int)threadIdx.x / 8, D[n], tD[n]);
            }
        }
    }
    VERB void run() const
    {
        if (base::begin()) {
            put_rows();
        }
        if (!base::is_visited()) {
            base::clear({&f.p.a.tdq, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_TDQ) != 0});
        }
    }
};
