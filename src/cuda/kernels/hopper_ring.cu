/* vjp on Hopper in one kernel: a block owns 128 keys and walks over the tiles of queries that see them, so that scores
 * are computed once and five products are all there is.
 *
 *     S^T = K Q^T, dP^T = V dO^T    dV += P^T dO, dK += dS^T Q    dQ of the tile += dS K, over all blocks
 *
 * Warpgroup 0: thread 0 copies; two more threads each pass one half of the tiles of dQ on to the next block
 * (hopper_walk.cuh: who comes after whom). Two warpgroups compute, 64 keys each; dS goes through shared memory to
 * become the first operand of dQ, of which each warpgroup has one half: 64 channels at head size 128, 64 queries at 64.
 *
 * hopper_statistics comes before it: L and D per query, no passes yet, and zeros in tiles of dQ that nobody visits. */
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_walk.cuh"

/* P is larger by this power of two as an operand in float16, whose range is small. */
template <class F> constexpr float RAISE = F::RAISED ? 14 : 0;

/* At head size 64 a tile has 128 queries, whose scores need more registers. */
template <class F, int D, int CONSUMERS, int N, int STAGES>
struct ring_shape : hopper_shape<F, D, CONSUMERS, N, STAGES> {
    static constexpr int PRODUCER_REGISTERS = D == 64 ? 24 : 40, CONSUMER_REGISTERS = D == 64 ? 240 : 232;
};

/* ---- Statistics ---- */

/* O and dO of eight channels of a row; `low`: what rounding took from O. */
VERB float dot_of_chunk(const agi_cuda_params &p, const sequence &s, int h, int row, int c)
{
    const int64_t o = element_at(p.a.o, s.view, h, s.q0 + row), d_o = element_at(p.a.d_o, s.view, h, s.q0 + row);
    const int64_t low = element_at(p.a.o_low, s.view, h, s.q0 + row);
    float sum = 0, of_low = 0;
#pragma unroll
    for (int i = c; i < c + 8; i++) {
        if (i < p.Dv) {
            const float g = load_number<float>(p.out_dtype, p.a.d_o.data, d_o + i * p.a.d_o.strides[3]);
            sum = fmaf(load_number<float>(p.out_dtype, p.a.o.data, o + i * p.a.o.strides[3]), g, sum);
            if (p.a.o_low.data != nullptr) {
                const float x = load_number<float>(p.out_dtype, p.a.o_low.data, low + i * p.a.o_low.strides[3]);
                of_low = fmaf(x, g, of_low);
            }
        }
    }
    return sum + of_low * low_half_scale<float>(p.out_dtype);
}
/* The same where eight channels are 16 bytes in a row. */
template <class F> VERB float dot_of_bytes(const agi_cuda_params &p, const sequence &s, int h, int row, int c)
{
    struct alignas(16) chunk {
        uint32_t words[4];
    };
    const ag_tensor *const t[3] = {&p.a.o, &p.a.d_o, &p.a.o_low};
    chunk x[3] = {};
#pragma unroll
    for (int n = 0; n < 3; n++) {
        if (t[n]->data != nullptr && c < p.Dv) {
            x[n] = *(const chunk *)((const uint16_t *)t[n]->data + element_at(*t[n], s.view, h, s.q0 + row) + c);
        }
    }
    float sum = 0, of_low = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 o = F::unpack(x[0].words[i]), g = F::unpack(x[1].words[i]), low = F::unpack(x[2].words[i]);
        sum = fmaf(o.y, g.y, fmaf(o.x, g.x, sum));
        of_low = fmaf(low.y, g.y, fmaf(low.x, g.x, of_low));
    }
    return sum + of_low * low_half_scale<float>(p.out_dtype);
}

VERB double row_number(const ag_tensor &t, const sequence &s, int h, int row)
{
    return t.data == nullptr ? 0 : ((const double *)t.data)[element_at(t, s.view, h, s.q0 + row)];
}

/* A block has one tile of one head: 32 rows at a time, eight lanes each. */
template <class T> struct tile_statistics {
    typedef typename T::F F;
    const agi_hopper_ring &f;
    sequence s;
    int h, m;
    int64_t tile; /* in the sums */

    VERB tile_statistics(const agi_hopper_ring &call) : f(call)
    {
        const int64_t index = blockIdx.x / f.p.w.blocks;
        s = find_sequence(f.p, index / f.p.H);
        h = (int)(index % f.p.H);
        m = (int)(blockIdx.x % f.p.w.blocks);
        tile = h * f.tiles + first_tile_of(f.p, s, T::N) + m;
    }
    VERB float dot(int row) const
    {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < T::D; c += 64) {
            const int mine = c + (int)threadIdx.x % 8 * 8;
            sum += f.in_chunks ? dot_of_bytes<F>(f.p, s, h, row, mine) : dot_of_chunk(f.p, s, h, row, mine);
        }
        return sum;
    }
    /* L in powers of two; a row that sees no key has none: its weights are then 0. D = rowsum(dO o O) - dL. */
    VERB void put_row(int r, float D) const
    {
        const int row = m * T::N + r;
        const bool there = row < s.n_q;
        const double L = there ? row_number(f.p.a.lse, s, h, row) : -INFINITY;
        const bool sees = max(row + s.low, 0) < min(row + s.high + 1, s.n_k);
        f.lse[tile * T::N + r] = L == -INFINITY ? INFINITY : (float)(L * 1.4426950408889634 - (double)RAISE<F>);
        f.delta[tile * T::N + r] = there ? (sees ? D : 0) - (float)row_number(f.p.a.d_lse, s, h, row) : 0;
    }
    VERB void put_rows() const
    {
        constexpr int EACH = T::N / 32;
        float D[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) { /* all rows are asked for before the first is used */
            const int row = m * T::N + n * 32 + (int)threadIdx.x / 8;
            D[n] = dot(min(row, s.n_q - 1));
        }
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            for (int step = 4; step > 0; step /= 2) {
                D[n] += __shfl_xor_sync(~0u, D[n], step);
            }
            if (threadIdx.x % 8 == 0) {
                put_row(n * 32 + (int)threadIdx.x / 8, D[n]);
            }
        }
    }
    /* Does some block of keys visit the tile? */
    VERB bool is_visited() const
    {
        const int last = min((m + 1) * T::N, s.n_q) - 1;
        return m * T::N < s.n_q && max(m * T::N + s.low, 0) <= min(last + s.high, s.n_k - 1);
    }
    VERB void clear_dq() const
    {
        const output out = {&f.p.a.dq, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_DQ) != 0};
        const int rows = f.p.flags & AG_PACKED ? s.n_q : (int)f.p.Nq;
        for (int i = (int)threadIdx.x; i < T::N * f.p.Dk; i += 256) {
            const int row = m * T::N + i / f.p.Dk;
            if (row < rows) {
                out.store(element_at(f.p.a.dq, s.view, h, s.q0 + row) + i % f.p.Dk * f.p.a.dq.strides[3], 0.0f);
            }
        }
    }
    VERB void run() const
    {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            *f.tickets = 0;
        }
        if (m * T::N < s.n_q) {
            put_rows();
            if (threadIdx.x < 2) {
                f.passes[2 * tile + threadIdx.x] = 0;
            }
        }
        if (!is_visited()) {
            clear_dq();
        }
    }
};

/* ---- Shared memory ---- */

template <class T> struct ring_memory {
    static constexpr int STAGED = AGI_HOPPER_RING_STAGED(T::D);       /* buffers of dQ */
    static constexpr int SCORES = T::N * KEYS_OF_BLOCK * 2;           /* bytes of dS */
    static constexpr int HALF = T::N * T::D * 2;                      /* bytes of half a tile of dQ */
    uint32_t own, own_full, own_empty;
    tile_ring<2> q, d_o;
    uint32_t scores, staged, stats, passing, posted, walked;
    key_walk<T> *walks; /* of the item that is computed, and the next */

    VERB ring_memory(char *memory)
    {
        const uint32_t shared = shared_address(memory), begin = (shared + 1023) & ~1023u, rings = begin + 2 * T::OWN;
        own = begin;
        scores = rings + 4 * T::TILE;
        staged = scores + 2 * SCORES;
        stats = staged + STAGED * 2 * HALF;
        const uint32_t barriers = stats + 4 * T::N * 4;
        q = {rings, T::TILE, barriers};
        d_o = {rings + 2 * T::TILE, T::TILE, barriers + 32};
        own_full = barriers + 64;
        own_empty = barriers + 72;
        posted = barriers + 80;
        walked = barriers + 112;
        passing = barriers + 120;
        walks = (key_walk<T> *)(memory + (passing + STAGED * 48 - shared));
    }
    VERB void init() const
    {
        q.init(8);
        d_o.init(8);
        barrier_init(own_full, 1);
        barrier_init(own_empty, 2);
        barrier_init(walked, 2);
        for (int n = 0; n < 2; n++) {
            barrier_init(posted + n * 16, 1);
            barrier_init(posted + n * 16 + 8, 4); /* two warpgroups, two threads that pass dQ on */
        }
        for (int half = 0; half < 2 * STAGED; half++) {
            barrier_init(passing + half * 24, 1);
            barrier_init(passing + half * 24 + 8, 1);
            barrier_init(passing + half * 24 + 16, 4);
        }
        barrier_init_done();
    }
    /* The walk of item k: posted by the producer, read by the others until they are done with the item. */
    VERB void post(int k, const key_walk<T> &walk) const
    {
        if (k >= 2) {
            barrier_wait(posted + k % 2 * 16 + 8, (k / 2 - 1) % 2);
        }
        walks[k % 2] = walk;
        barrier_arrive(posted + k % 2 * 16);
    }
    VERB const key_walk<T> &walk(int k) const
    {
        barrier_wait(posted + k % 2 * 16, k / 2 % 2);
        return walks[k % 2];
    }
    VERB void done_with(int k) const
    {
        barrier_arrive(posted + k % 2 * 16 + 8);
    }
    /* L and D of the queries of step n. */
    VERB uint32_t lse(int n) const
    {
        return stats + n % 2 * T::N * 4;
    }
    VERB uint32_t delta(int n) const
    {
        return stats + (2 + n % 2) * T::N * 4;
    }
    VERB uint32_t scores_of(int n) const
    {
        return scores + n % 2 * SCORES;
    }
    /* A half of dQ at step n, and its barriers. `empty`: nobody needs what the buffer had before; `fetched`: the sum of
     * the blocks before is in it; `done`: the warps of the warpgroup have filled or read it. */
    VERB uint32_t half(int n, int w) const
    {
        return staged + (n % STAGED * 2 + w) * HALF;
    }
    VERB uint32_t empty(int n, int w) const
    {
        return passing + (n % STAGED * 2 + w) * 24;
    }
    VERB uint32_t fetched(int n, int w) const
    {
        return empty(n, w) + 8;
    }
    VERB uint32_t done(int n, int w) const
    {
        return empty(n, w) + 16;
    }
    VERB void wait_empty(int n, int w) const
    {
        if (n >= STAGED) {
            barrier_wait(empty(n, w), (n / STAGED - 1) % 2);
        }
    }
    VERB void wait_done(int n, int w) const
    {
        barrier_wait(done(n, w), n / STAGED % 2);
    }
};

/* ---- Thread 0: copies, and takes the items ---- */

template <class T> struct ring_producer {
    const agi_hopper_ring &f;
    const ring_memory<T> &memory;
    int n = 0; /* tiles of queries so far */

    /* The results of an item take the place of its keys, even if it has none to load. */
    VERB void copy_own(const key_walk<T> &at, int k)
    {
        if (k > 0) {
            barrier_wait(memory.own_empty, (k - 1) % 2);
        }
        if (at.tiles == 0) {
            barrier_arrive(memory.own_full);
            return;
        }
        barrier_expect(memory.own_full, 2 * T::OWN);
        for (int i = 0; i < 2 * T::BOXES; i++) {
            const int matrix = i / T::BOXES, box = i % T::BOXES;
            const box_place place = place_of(f.p.m[matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V], at.s, true);
            box_load(memory.own + i * 2 * T::SLAB, matrix == 0 ? f.k : f.v, memory.own_full, box * 64,
                     place.row + at.row, at.kv_head, place.batch);
        }
    }
    VERB void copy_tile(const key_walk<T> &at, const tile_ring<2> &ring, const agi_cuda_tensor_map &map, int operand,
                        int h, int m, uint32_t stats_to, const float *stats)
    {
        const box_place place = place_of(f.p.m[operand], at.s, false);
        const int64_t tile = h * f.tiles + first_tile_of(f.p, at.s, T::N) + m;
        ring.begin(n, T::TILE + T::N * 4);
        for (int box = 0; box < T::BOXES; box++) {
            box_load(ring.tile(n) + box * T::BOX, map, ring.full(n), box * 64, place.row + m * T::N, h, place.batch);
        }
        bulk_load(stats_to, stats + tile * T::N, T::N * 4, ring.full(n));
    }
    /* Who takes the next item of a band may not wait for others any more: they may wait for this one. */
    VERB bool take(item_list &items, key_item &item, int k) const
    {
        if (!f.is_ring && k > 0) {
            barrier_wait(memory.walked, (k - 1) % 2);
        }
        return items.take(f, item);
    }
    VERB void run()
    {
        item_list items(f);
        key_walk<T> at;
        key_item item;
        int k = 0;
        for (; take(items, item, k); k++) {
            at.begin(f, item);
            memory.post(k, at);
            copy_own(at, k);
            for (int h = at.head; h < at.head + at.heads; h++) {
                for (int c = 0; c < at.tiles; c++, n++) {
                    copy_tile(at, memory.q, f.q, AGI_CUDA_Q, h, at.tile(c), memory.lse(n), f.lse);
                    copy_tile(at, memory.d_o, f.d_o, AGI_CUDA_DO, h, at.tile(c), memory.delta(n), f.delta);
                }
            }
        }
        at.heads = 0;
        memory.post(k, at);
    }
};

/* ---- Two threads: dQ from block to block ---- */

/* Passes half w of the tiles of dQ on. At the last tile's visitor the sum of the others is fetched for the warpgroup; at
 * the other tiles what the warpgroup leaves is added to the sum in global memory, in its turn. */
template <class T> struct dq_passer {
    typedef ring_memory<T> M;
    const agi_hopper_ring &f;
    const M &memory;
    const int w;
    int n = 0;         /* steps so far */
    uint32_t kept = 0; /* a bit per buffer: the warpgroup reads it, and says when it is done */

    VERB void add(int32_t *passes, float *sum, int rank)
    {
        memory.wait_done(n, w);
        wait_for_passes(passes, rank);
        if (rank > 0) {
            bulk_add(sum, memory.half(n, w), M::HALF);
        } else {
            bulk_store(sum, memory.half(n, w), M::HALF);
        }
        bulk_wait_read();
        barrier_arrive(memory.empty(n, w));
        bulk_wait();
        pass(passes);
    }
    VERB void fetch(const int32_t *passes, const float *sum, int rank)
    {
        if (rank > 0) {
            wait_for_passes(passes, rank);
            barrier_expect(memory.fetched(n, w), M::HALF);
            bulk_load(memory.half(n, w), sum, M::HALF, memory.fetched(n, w));
        }
    }
    VERB void step(int64_t tile, bool last, int rank)
    {
        int32_t *const passes = f.passes + 2 * tile + w;
        float *const sum = f.sums + (2 * tile + w) * (M::HALF / 4);
        const uint32_t bit = 1u << n % M::STAGED;
        if (kept & bit) {
            memory.wait_done(n - M::STAGED, w);
            barrier_arrive(memory.empty(n, w));
        }
        kept = last ? kept | bit : kept & ~bit;
        if (last) {
            fetch(passes, sum, rank);
        } else {
            add(passes, sum, rank);
        }
        n++;
    }
    VERB void walk(const key_walk<T> &at, int h)
    {
        const int64_t tiles = h * f.tiles + first_tile_of(f.p, at.s, T::N);
        int nearest = at.position;
        for (int c = 0; c < at.tiles; c++) {
            const int m = at.tile(c);
            nearest = m == 0 ? 0 : nearest;
            const int rank = at.rank(m, nearest);
            step(tiles + m, at.is_last(c), rank);
        }
    }
    VERB void run()
    {
        for (int k = 0;; k++) {
            const key_walk<T> &at = memory.walk(k);
            if (at.heads == 0) {
                return;
            }
            for (int h = at.head; h < at.head + at.heads; h++) {
                walk(at, h);
            }
            barrier_arrive(memory.walked);
            memory.done_with(k);
        }
    }
};

/* ---- The consumers ---- */

enum { BOTH = 1, WARPGROUP = 2 }; /* named barriers */

template <class T> struct ring_consumer {
    typedef typename T::F F;
    typedef ring_memory<T> M;

    const agi_hopper_ring &f;
    const M &memory;
    const int w, lane, in_group; /* the warpgroup; the thread in its warp and in its warpgroup */
    int n = 0;                   /* tiles of queries so far */
    uint32_t fetches = 0;        /* a bit per buffer: the parity of the next sum that is fetched into it */
    float S[T::N / 2], dP[T::N / 2], dK[T::D / 2], dV[T::D / 2], dQ[32];
    uint32_t P[T::N / 4], dS[T::N / 4];

    VERB ring_consumer(const agi_hopper_ring &call, const M &shared)
        : f(call), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)), lane((int)threadIdx.x % 32),
          in_group((int)threadIdx.x % 128)
    {
    }
    /* The thread's first key, the other is 8 further; the first query of its pairs of columns. */
    VERB int key(const key_walk<T> &at) const
    {
        return at.row + w * 64 + in_group / 32 * 16 + lane / 4;
    }
    VERB int query(int m) const
    {
        return m * T::N + lane % 4 * 2;
    }

    /* ---- Products ---- */

    /* to = own matrix times the tile, both along the channels. */
    VERB void start_scores(float (&to)[T::N / 2], int matrix, uint32_t tile)
    {
        const operand_tile own = rows_of(memory.own + matrix * T::OWN + w * T::SLAB), stream = rows_of(tile);
        product_first<F, T::N>(to, operand_at(own, 0), operand_at(stream, 0));
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(own, channel_step(step, 2 * T::SLAB)),
                                  operand_at(stream, channel_step(step, T::BOX)));
        }
        products_commit();
    }
    /* to += weights times the tile, along its rows. */
    VERB void start_sum(float (&to)[T::D / 2], const uint32_t (&weights)[T::N / 4], uint32_t tile)
    {
        const operand_tile stream = columns_of(tile, T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(to, weights + 4 * step, operand_at(stream, step * 2048));
        }
        products_commit();
    }
    /* The warpgroup's half of dS K: at head size 128 its channels, at 64 its queries. */
    VERB void start_dq()
    {
        const uint32_t queries = T::D == 64 ? w : 0, channels = T::D == 64 ? 0 : w;
        const operand_tile scores = columns_of(memory.scores_of(n) + queries * 16384, 16384);
        const operand_tile keys = columns_of(memory.own + channels * 2 * T::SLAB, 2 * T::SLAB);
        product_columns_first<F>(dQ, operand_at(scores, 0), operand_at(keys, 0));
#pragma unroll
        for (int step = 1; step < KEYS_OF_BLOCK / 16; step++) {
            product_columns_next<F>(dQ, operand_at(scores, step * 2048), operand_at(keys, step * 2048));
        }
        products_commit();
    }

    /* ---- Rows that may hold anything become zeros in shared memory: 0 times NaN is NaN ---- */

    /* Rows of a matrix of boxes that are not in first <= r < end. */
    VERB void clear_rows(uint32_t matrix, uint32_t box, int rows, int first, int end) const
    {
        for (int i = in_group; i < rows * T::BOXES * 8; i += 128) {
            const int r = i / 8 % rows;
            if (r < first || r >= end) {
                shared_zero_16(matrix + i / 8 / rows * box + r * 128 + i % 8 * 16);
            }
        }
    }
    /* Own keys that no query sees. */
    VERB void clear_own(const key_walk<T> &at) const
    {
        const int first = max(at.s.low, 0) - at.row - w * 64;
        const int end = min(at.s.n_k, at.s.n_q + min(at.s.high, FAR / 2)) - at.row - w * 64;
        if (first > 0 || end < 64) {
            clear_rows(memory.own + w * T::SLAB, 2 * T::SLAB, 64, first, end);
            clear_rows(memory.own + T::OWN + w * T::SLAB, 2 * T::SLAB, 64, first, end);
            shared_fence();
        }
        named_sync(BOTH, 256); /* either warpgroup multiplies the keys of both */
    }
    /* Queries that see no key of the block. */
    VERB void clear_tile(const key_walk<T> &at, int m) const
    {
        const int first = at.from - m * T::N, end = at.to - m * T::N;
        if (first > 0 || end < T::N) {
            memory.d_o.wait(n);
            clear_rows(memory.q.tile(n), T::BOX, T::N, first, end);
            clear_rows(memory.d_o.tile(n), T::BOX, T::N, first, end);
            shared_fence();
            named_sync(WARPGROUP + w, 128);
        }
    }

    /* ---- Weights ---- */

    /* Does some key of the warpgroup not see some query of the tile? */
    VERB bool is_edge(const key_walk<T> &at, int m) const
    {
        const int j = at.row + w * 64, i = m * T::N;
        return j - (i + T::N - 1) < at.s.low || j + 63 - i > at.s.high || j + 64 > at.s.n_k || i + T::N > at.s.n_q;
    }
    /* x = 0 where a pair is hidden. */
    VERB void hide(const key_walk<T> &at, int m, float (&x)[T::N / 2]) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int j = key(at) + 8 * half;
            const int first = j - at.s.high - query(m);
            const int end = j < at.s.n_k ? min(j - at.s.low + 1, at.s.n_q) - query(m) : -FAR;
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                const int column = i / 2 * 8 + i % 2;
                float &y = x[i / 2 * 4 + 2 * half + i % 2];
                y = column < first || column >= end ? 0 : y;
            }
        }
    }
    /* P in the place of S. */
    VERB void make_weights()
    {
        const float scale = f.scale_log2;
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 L = shared_load_2(memory.lse(n) + (8 * j + lane % 4 * 2) * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                S[4 * j + i] = exp2_fast(fmaf(S[4 * j + i], scale, i % 2 == 0 ? -L.x : -L.y));
            }
        }
    }
    /* dS = P o (dP - D) in the place of dP, without the scale. */
    VERB void make_gradients()
    {
        constexpr float LOWER = F::RAISED ? 0x1p-14f : 1;
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 D = shared_load_2(memory.delta(n) + (8 * j + lane % 4 * 2) * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dP[4 * j + i] = S[4 * j + i] * LOWER * (dP[4 * j + i] - (i % 2 == 0 ? D.x : D.y));
            }
        }
    }
    VERB void pack(uint32_t (&to)[T::N / 4], const float (&x)[T::N / 2]) const
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            to[i] = F::pack(x[2 * i], x[2 * i + 1]);
        }
    }
    /* dS as rows of keys: boxes of 64 queries. */
    VERB void put_scores() const
    {
        const int matrix = lane / 8, r = w * 64 + in_group / 32 * 16 + lane % 8 + matrix % 2 * 8;
#pragma unroll
        for (int c = 0; c < T::N / 8; c += 2) {
            const int chunk = c % 8 + matrix / 2;
            store_matrices(memory.scores_of(n) + c / 8 * 16384 + r * 128 + ((chunk ^ (r % 8)) << 4), dS[2 * c],
                           dS[2 * c + 1], dS[2 * c + 2], dS[2 * c + 3]);
        }
        shared_fence();
    }

    /* ---- dQ ---- */

    VERB void arrive(uint32_t barrier) const
    {
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(barrier);
        }
    }
    /* Where the thread's numbers of a half are: in the order of its registers. */
    VERB uint32_t staged() const
    {
        return memory.half(n, w) + in_group * 16;
    }
    VERB void leave_dq() const
    {
        memory.wait_empty(n, w);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            shared_store_4(staged() + j * 2048, dQ, 4 * j);
        }
        shared_fence();
        arrive(memory.done(n, w));
    }
    VERB void add_others()
    {
        const uint32_t buffer = n % M::STAGED;
        barrier_wait(memory.fetched(n, w), fetches >> buffer & 1);
        fetches ^= 1u << buffer;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            shared_add_4(dQ, 4 * j, staged() + j * 2048);
        }
    }
    VERB void store_dq(const key_walk<T> &at, int h, int m)
    {
        const ag_tensor &t = f.p.a.dq;
        const int queries = m * T::N + (T::D == 64 ? w * 64 : 0) + in_group / 32 * 16, channels = T::D == 64 ? 0 : w * 64;
        const int rows = (f.p.flags & AG_PACKED ? at.s.n_q : (int)f.p.Nq) - queries, width = f.p.Dk - channels;
        const int64_t place = element_at(t, at.s.view, h, at.s.q0 + queries) + channels * t.strides[3];
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            dQ[i] *= scale;
        }
        if (!f.dq_in_pairs) {
            named_sync(WARPGROUP + w, 128); /* all have read what they share the buffer with */
            const warp_rows<64> all = {memory.half(n, w) + in_group / 32 * 4096};
            all.put(dQ);
            all.store({&t, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_DQ) != 0}, place, rows, min(width, 64), false);
            return;
        }
        uint16_t *const to = (uint16_t *)t.data + place + lane / 4 * t.strides[2] + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int half = i % 2, c = i / 2 * 8;
            if (lane / 4 + 8 * half < rows && c + lane % 4 * 2 < width) {
                *(uint32_t *)(to + 8 * half * t.strides[2] + c) = F::pack(dQ[2 * i], dQ[2 * i + 1]);
            }
        }
    }
    VERB void pass_dq(const key_walk<T> &at, int h, int m, bool last)
    {
        if (!last) {
            leave_dq();
            return;
        }
        if (at.is_alone(m)) {
            memory.wait_empty(n, w);
        } else {
            add_others();
        }
        store_dq(at, h, m);
        arrive(memory.done(n, w));
    }

    /* ---- The walk ---- */

    VERB void step(const key_walk<T> &at, int h, int m, bool last)
    {
        memory.q.wait(n);
        clear_tile(at, m);
        products_begin();
        start_scores(S, 0, memory.q.tile(n));
        memory.d_o.wait(n);
        start_scores(dP, 1, memory.d_o.tile(n));
        const bool edge = is_edge(at, m);
        products_wait<1>();
        hold(S);
        make_weights();
        if (edge) {
            hide(at, m, S);
        }
        pack(P, S);
        products_wait<0>();
        hold(dP);
        make_gradients();
        if (edge) {
            hide(at, m, dP);
        }
        pack(dS, dP);
        put_scores();
        hold(dV);
        hold(P);
        products_begin();
        start_sum(dV, P, memory.d_o.tile(n));
        named_sync(BOTH, 256);
        hold(dK);
        hold(dS);
        products_begin();
        start_dq();
        start_sum(dK, dS, memory.q.tile(n));
        products_wait<1>();
        hold(dQ);
        hold(dV);
        memory.d_o.release(n);
        pass_dq(at, h, m, last);
        products_wait<0>();
        hold(dK);
        memory.q.release(n);
        n++;
    }
    VERB void walk(const key_walk<T> &at)
    {
        clear_own(at);
#pragma unroll 1
        for (int h = at.head; h < at.head + at.heads; h++) {
#pragma unroll 1
            for (int c = 0; c < at.tiles; c++) {
                step(at, h, at.tile(c), at.is_last(c));
            }
        }
    }

    /* ---- Results ---- */

    VERB void store_by_rows(const key_walk<T> &at, const ag_tensor &t, uint32_t bit, const float (&x)[T::D / 2],
                            int width) const
    {
        const int warp = (int)threadIdx.x / 32 - 4, first = key(at) - lane / 4;
        const warp_rows<T::D> rows = {memory.own + warp * 16 * T::D * 4};
        const int of_tensor = f.p.flags & AG_PACKED ? at.s.n_k : (int)f.p.Nk;
        rows.put(x);
        rows.store({&t, f.p.grad_dtype, (f.p.a.accumulate & bit) != 0},
                   element_at(t, at.s.view, at.kv_head, at.s.k0 + first), of_tensor - first, width, false);
    }
    /* By way of the warpgroup's place in one of the own matrices. */
    VERB void store_boxes(const key_walk<T> &at, const agi_cuda_tensor_map &map, int matrix,
                          const float (&x)[T::D / 2]) const
    {
        const uint32_t slab = memory.own + matrix * T::OWN + w * T::SLAB;
        put_boxes<F, T::D>(slab, 2 * T::SLAB, x);
        shared_fence();
        named_sync(WARPGROUP + w, 128);
        for (int box = 0; box < T::BOXES && in_group == 0; box++) {
            box_store(map, slab + box * 2 * T::SLAB, box * 64, (int)at.s.k0 + at.row + w * 64, at.kv_head,
                      (int)at.s.view);
        }
    }
    VERB void store(const key_walk<T> &at, const ag_tensor &t, uint32_t bit, const agi_cuda_tensor_map &map, bool boxes,
                    int matrix, const float (&x)[T::D / 2], int width) const
    {
        if (t.data == nullptr) {
            return;
        }
        if (boxes) {
            store_boxes(at, map, matrix, x);
        } else {
            store_by_rows(at, t, bit, x, width);
        }
    }
    VERB void finish(const key_walk<T> &at)
    {
        const float scale = (float)f.p.scale, lower = F::RAISED ? 0x1p-14f : 1;
        /* Behind the end of a packed sequence the next one begins. */
        const bool cut = f.p.flags & AG_PACKED && at.row + KEYS_OF_BLOCK > at.s.n_k;
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            const bool there = key(at) + i / 2 % 2 * 8 < at.s.n_k;
            dK[i] = there ? dK[i] * scale : 0;
            dV[i] = there ? dV[i] * lower : 0;
        }
        named_sync(BOTH, 256); /* nobody needs the own matrices any more */
        store(at, f.p.a.dk, AG_ACC_DK, f.dk, f.dk_in_boxes && !cut, 0, dK, f.p.Dk);
        if (cut || !f.dk_in_boxes || !f.dv_in_boxes) {
            named_sync(BOTH, 256); /* rows take the place of both matrices */
        }
        store(at, f.p.a.dv, AG_ACC_DV, f.dv, f.dv_in_boxes && !cut, 1, dV, f.p.Dv);
        named_sync(WARPGROUP + w, 128);
        if (in_group == 0) {
            box_store_wait();
            barrier_arrive(memory.own_empty);
        }
        named_sync(WARPGROUP + w, 128);
    }
    VERB void run()
    {
#pragma unroll 1
        for (int k = 0;; k++) {
            const key_walk<T> &at = memory.walk(k);
            if (at.heads == 0) {
                return;
            }
#pragma unroll
            for (int i = 0; i < T::D / 2; i++) {
                dK[i] = dV[i] = 0;
            }
            barrier_wait(memory.own_full, k % 2);
            if (at.tiles > 0) {
                walk(at);
            }
            finish(at);
            if (in_group == 0) {
                memory.done_with(k);
            }
        }
    }
};

/* ---- The kernels ---- */

template <class T> VERB void run_hopper_ring(const agi_hopper_ring &f)
{
    SHARED_MEMORY(shared);
    const ring_memory<T> memory(shared);
    if (threadIdx.x == 0) {
        memory.init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            ring_producer<T>{f, memory}.run();
        } else if (threadIdx.x == 32 || threadIdx.x == 64) {
            dq_passer<T>{f, memory, (int)threadIdx.x / 32 - 1}.run();
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        ring_consumer<T>(f, memory).run();
    }
}

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_ring f)                                     \
    {                                                                                                        \
        run_##map<ring_shape<format, D, CONSUMERS, N, STAGES>>(f);                                           \
    }
#define AGI_HOPPER_STATISTICS(map, format, D, CONSUMERS, N, STAGES)                                          \
    KERNEL void __launch_bounds__(256)                                                                       \
        hopper_statistics_##format##_d##D(const __grid_constant__ agi_hopper_ring f)                         \
    {                                                                                                        \
        tile_statistics<ring_shape<format, D, CONSUMERS, N, STAGES>>(f).run();                               \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_ring, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_ring, AGI_HOPPER_STATISTICS, AGI_FORMAT)
