/* What the kernels of vjp and vjp_jvp on Hopper share. A block owns rows of one side, queries or keys, with MATRICES
 * matrices of them in shared memory, and walks over tiles of as many matrices of the other side, which stand in the
 * same order. Warpgroup 0 copies (hopper_owner_copies.cuh), the others own 64 rows each, as in hopper_forward.cu. */
#pragma once
#include "cuda/kernels/hopper_owner_copies.cuh"
#include "cuda/kernels/hopper_results.cuh"

/* ---- The consumers ---- */

enum { WARPGROUP = 5, ALL_CONSUMERS = 9 }; /* named barriers */

/* A weight of a score in a row of L; larger by 2^14 in float16, whose range is small. */
template <class F> VERB float weight_at(float S, float lse, float lse_low)
{
    constexpr float LOG2_E = 1.4426950408889634f;
    return exp2_fast(fmaf(add_rn(add_rn(S, -lse), -lse_low), LOG2_E, F::RAISED ? 14 : 0));
}

/* What a thread of a consumer knows and does whatever the map is. A warpgroup has 64 rows of its own, or all have the
 * same. SUMMED: the first so many matrices of the stream are multiplied by weights too, along their rows. */
template <class T_, bool KEYS_, int MATRICES_, int SUMMED, class Call_,
          class Memory = owner_memory<T_, KEYS_, MATRICES_>>
struct owner_consumer {
    typedef T_ T;
    typedef Call_ Call;
    typedef typename T::F F;
    static constexpr bool KEYS = KEYS_;
    static constexpr int MATRICES = MATRICES_;
    static constexpr bool SHARED_ROWS = T::ROWS == 64;

    const Call &f;
    const owner_notes<T, KEYS> &notes;
    const owner_block<T, KEYS> &at;
    const Memory &memory;
    const int w, row;         /* of the warpgroup; the thread's first row, the other is row + 8 */
    row_stats<float> mine[2]; /* of the thread's rows if they are queries */

    VERB owner_consumer(const Call &call, const owner_notes<T, KEYS> &from, const Memory &shared)
        : f(call), notes(from), at(from.at), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          row(from.at.row +
              (SHARED_ROWS ? (int)threadIdx.x % 128 / 32 * 16 : (int)threadIdx.x / 32 * 16 - 64) +
              (int)threadIdx.x % 32 / 4)
    {
        if constexpr (!KEYS) {
            const float *const stats = stats_of_head<float>(f.p, {at.s, at.head});
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = row + 8 * half;
                mine[half] = {INFINITY, 0, 0, 0, 0, 0};
                if (r < at.s.n_q) {
                    mine[half] = stats_at(stats + (int64_t)r * AGI_CUDA_STATS);
                }
            }
        }
    }

    /* The 64 rows of the block that the warpgroup has. */
    VERB int slab() const
    {
        return SHARED_ROWS ? 0 : w;
    }
    VERB bool has_step(int n) const
    {
        if constexpr (has_mask(T::FEATURES)) {
            memory.ring.wait(n);
            return notes.masked[n % T::STAGES].there;
        }
        return n < at.steps();
    }
    /* Does the mask hide some pair of the warpgroup in step n? */
    VERB bool is_mixed(int n) const
    {
        return has_mask(T::FEATURES) && notes.masked[n % T::STAGES].mixed[w];
    }

    /* to = an own matrix times one of the step's, both along the channels; with ADD: to += that. */
    template <bool ADD = false>
    VERB void multiply(float (&to)[T::N / 2], int own_matrix, int stream_matrix, int n)
    {
        const operand_tile own = rows_of(memory.own + own_matrix * T::OWN + slab() * T::SLAB);
        const operand_tile stream = rows_of(memory.tile(stream_matrix, n));
        if constexpr (ADD) {
            product_next<F, T::N>(to, operand_at(own, 0), operand_at(stream, 0));
        } else {
            product_first<F, T::N>(to, operand_at(own, 0), operand_at(stream, 0));
        }
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(own, channel_step(step, T::ROWS * 128)),
                                  operand_at(stream, channel_step(step, T::BOX)));
        }
    }
    /* to += weights times the step's matrix, along its rows. */
    VERB void start_sum(float (&to)[T::D / 2], const uint32_t (&weights)[T::N / 4], int matrix, int n)
    {
        const operand_tile stream = columns_of(memory.tile(matrix, n), T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(to, weights + 4 * step, operand_at(stream, step * 2048));
        }
    }

    /* Rows of the stream that no row of the block sees may hold anything, and 0 times NaN is NaN: they become zeros in
     * the matrices that are summed. Every warpgroup writes all of them before its own products. */
    VERB void clear_hidden(int n)
    {
        if (notes.step(n).clear) {
            clear_rows<SUMMED>(0, n, [](int) { return false; });
        }
    }
    /* The same in COUNT matrices from `matrix` on, and rows of the tile of which is_dead. */
    template <int COUNT, class Function> VERB void clear_rows(int matrix, int n, Function is_dead)
    {
        const owner_step &step = notes.step(n);
        const int first = step.row;
        for (int i = (int)threadIdx.x % 128; i < COUNT * T::BOXES * T::N * 8; i += 128) {
            const int box = i / (T::N * 8), r = i / 8 % T::N;
            if (first + r < at.from || first + r >= at.to || is_dead(r)) {
                shared_zero_16(memory.tile(matrix, n) + box * T::BOX + r * 128 + i % 8 * 16);
            }
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- Pairs ---- */

    /* Of number i of a score tile. */
    VERB int column(int i) const
    {
        return i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
    }
    /* 0 in the place of weights of pairs that do not see each other. */
    VERB void hide(float (&x)[T::N / 2], int n) const
    {
        const owner_step &step = notes.step(n);
        if (!step.cut[slab()]) {
            return;
        }
        const int first = step.row;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            x[i] = at.sees(row + i / 2 % 2 * 8, first + column(i)) ? x[i] : 0;
        }
    }
    /* 0 in the place of other numbers of pairs whose weight is 0 in a tile that is cut: behind a hidden pair there may
     * be NaN. */
    VERB void clear_behind(const float (&weights)[T::N / 2], float (&x)[T::N / 2], int n) const
    {
        if (!notes.step(n).cut[slab()]) {
            return;
        }
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            x[i] = weights[i] == 0 ? 0 : x[i];
        }
    }

    /* ---- Results ---- */

    /* Multiplied by a factor; 0 in rows that do not exist. */
    VERB void scale_rows(float (&x)[T::D / 2], float factor) const
    {
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            x[i] = row + i / 2 % 2 * 8 < at.own_rows() ? x[i] * factor : 0;
        }
    }
    VERB void store(const warp_rows<T::D> &rows, float (&x)[T::D / 2], const ag_tensor &t, uint32_t bit,
                    float factor, int width) const
    {
        const int first = row - (int)threadIdx.x % 32 / 4;
        const int64_t place =
            element_at(t, at.s.view, KEYS ? at.kv_head : at.head, (KEYS ? at.s.k0 : at.s.q0) + first);
        scale_rows(x, factor);
        rows.put(x);
        rows.store({&t, f.p.grad_dtype, (f.p.a.accumulate & bit) != 0}, place, at.rows_of_tensor(f.p) - first,
                   width, false);
    }
    /* Where the warp's rows lie on their way to the tensors, when all consumers are done with the stages. */
    VERB warp_rows<T::D> begin_results() const
    {
        named_sync(ALL_CONSUMERS, 128 * T::CONSUMERS);
        return {memory.results() + ((int)threadIdx.x / 32 - 4) * 16 * T::D * 4};
    }
};

/* ---- The kernels ---- */

/* Consumer: an owner_consumer with step(n), the n-th of the walk, and finish(). */
template <class Consumer> VERB void run_owners(const typename Consumer::Call &f)
{
    typedef typename Consumer::T T;
    constexpr bool KEYS = Consumer::KEYS;
    SHARED_MEMORY(shared);
    const owner_memory<T, KEYS, Consumer::MATRICES> memory(shared_address(shared));
    owner_notes<T, KEYS> &notes = *(owner_notes<T, KEYS> *)(shared + (memory.notes - shared_address(shared)));
    const owner_block<T, KEYS> &at = notes.at;
    if (threadIdx.x == 0) {
        notes.at = owner_block<T, KEYS>(f.p);
        memory.init();
    }
    __syncthreads();
    if (at.row >= at.rows_of_tensor(f.p)) {
        return;
    }
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if ((int)threadIdx.x < producing_threads<T>()) {
            produce(f, notes, memory);
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        Consumer c(f, notes, memory);
        barrier_wait(memory.own_full, 0);
#pragma unroll 1
        for (int n = 0; c.has_step(n); n++) {
            c.step(n);
        }
        c.finish();
    }
}
