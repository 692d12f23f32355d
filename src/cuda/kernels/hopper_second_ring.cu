/* vjp_jvp on Hopper in one kernel, as vjp (hopper_ring.cu): a block owns 128 keys and walks over the tiles of queries
 * that see them. Scores are computed once, and twelve products are all there is.
 *
 *     Z^T = K Q^T    tZ^T = K tQ^T + tK Q^T    dP^T = V dO^T    tdP^T = tV dO^T + V tdO^T
 *     tdV += tP^T dO + P^T tdO    tdK += tdZ^T Q + dZ^T tQ
 *     tdQ^T of the tile += K^T tdZ^T + tK^T dZ^T, over all blocks
 *
 * With features of the score (hopper_sets.h) these are dZ and tdZ with phi' and phi'' of the softcap in them, P and tP
 * in the sums of tdV what dropout keeps of them. A tangent that the call lacks is zero. float16 weights are not raised
 * as in vjp: tP has no bound.
 *
 * Warpgroup 0: thread 0 copies, and notes down what each step is; two more threads each pass one half of the tiles of
 * tdQ on to the next block. Two warpgroups compute, 64 keys each; dZ and tdZ go through shared memory to become
 * operands of tdQ, of which each warpgroup has 64 channels and 32 queries: its channels at head size 128, its queries
 * at 64.
 *
 * hopper_second_statistics comes before it: L, mu, D and tD per query, no passes yet, and zeros in tiles of tdQ that
 * nobody visits; and with a mask hopper_second_visits, the lists of the steps that it leaves (hopper_visits.cuh). */
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_second_ring_copies.cuh"

/* ---- The consumers ---- */

constexpr float LOG2_E = 1.4426950408889634f;

enum { BOTH = 1, WARPGROUP = 2 }; /* named barriers */

/* The registers of the kernel without features: the threads that copy and pass on need theirs. */
template <class F, int D, int CONSUMERS, int N, int STAGES, int FEATURES>
struct second_ring_shape : hopper_shape<F, D, CONSUMERS, N, STAGES, FEATURES> {
    static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
};

template <class T> struct second_ring_consumer {
    typedef typename T::F F;
    typedef second_ring_memory<T> M;
    typedef float score_tile[T::N / 2];
    static constexpr bool CAPPED = (T::FEATURES & AGI_HAS_SOFTCAP) != 0, HAS_BIAS = M::HAS_BIAS;
    static constexpr bool DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0, HIDES = hides_by_data(T::FEATURES);
    /* Something is added to scores: then they are multiplied by the scale; else weights are made of the products. */
    static constexpr bool ADDS = (T::FEATURES & (AGI_HAS_RELATIVE | AGI_HAS_BIAS)) != 0;
    static_assert(!CAPPED || T::FEATURES == AGI_HAS_SOFTCAP, "with a softcap weights are made at once");

    const agi_hopper_second_ring &f;
    const M &memory;
    const int w;                   /* the warpgroup */
    uint32_t n = 0;                /* tiles of queries so far */
    score_tile Z, tZ, dP, tdP;     /* then P, tP, dZ, tdZ; the latter two without the scale */
    uint32_t weights[4][T::N / 4]; /* P, tP, dZ, tdZ as operands */
    float tdK[T::D / 2], tdV[T::D / 2], tdQ[16];
    kept_weights<true, T::N / 2> kept;
    mask_bits<true, T::N / 2> visible; /* if the step is mixed */

    VERB second_ring_consumer(const agi_hopper_second_ring &call, const M &shared)
        : f(call), memory(shared), w(uniform((int)threadIdx.x / 128 - 1))
    {
    }
    /* The thread among those that compute, in its warp and in its warpgroup, found where they are needed: registers are
     * few. */
    VERB static uint32_t thread_id()
    {
        return (uint32_t)here((int)threadIdx.x) - 128;
    }
    VERB static int lane()
    {
        return (int)(thread_id() % 32);
    }
    VERB static int in_group()
    {
        return (int)(thread_id() % 128);
    }
    /* The thread's first key, the other is 8 further. */
    VERB int key(const key_walk<T> &at) const
    {
        const uint32_t i = thread_id();
        return at.row + (int)(i / 32 * 16 + i % 32 / 4);
    }
    /* The first query of its pairs of columns; row: the first of the tile. */
    VERB int query(int row) const
    {
        return row + lane() % 4 * 2;
    }
    VERB fragment_place place(const key_walk<T> &at) const
    {
        return {at.s, memory.note(n).head, key(at), memory.note(n).row};
    }

    /* ---- Products ---- */

    /* Each side's first matrix is an operand, and the others are so many bytes further: registers are few. */
    enum : uint32_t { TQ = T::TILE, D_O = 4 * T::TILE, TD_O = 5 * T::TILE };

    /* to = own matrix times the tile, both along the channels; with ADD: to += that. */
    template <bool ADD> VERB void multiply(score_tile &to, int matrix, uint32_t tile)
    {
        const operand_tile own = rows_of(memory.own + w * T::SLAB), stream = rows_of(memory.q.tile(n));
        const uint32_t first = matrix * T::OWN;
        if constexpr (ADD) {
            product_next<F, T::N>(to, operand_at(own, first), operand_at(stream, tile));
        } else {
            product_first<F, T::N>(to, operand_at(own, first), operand_at(stream, tile));
        }
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(own, first + channel_step(step, 2 * T::SLAB)),
                                  operand_at(stream, tile + channel_step(step, T::BOX)));
        }
    }
    /* tZ is summed in the order of jvp, whose mu belongs to these bits. */
    VERB void start_scores()
    {
        multiply<false>(Z, QK, 0);
        multiply<false>(tZ, QK, TQ);
        multiply<true>(tZ, T_QK, 0);
        products_commit();
        memory.d_o.wait(n);
        multiply<false>(dP, OV, D_O);
        multiply<false>(tdP, T_OV, D_O);
        multiply<true>(tdP, OV, TD_O);
        products_commit();
    }
    /* to += weights times the tile, along its rows. */
    VERB void add_product(float (&to)[T::D / 2], const uint32_t (&x)[T::N / 4], uint32_t tile)
    {
        const operand_tile stream = columns_of(memory.q.tile(n), T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(to, x + 4 * step, operand_at(stream, tile + step * 2048));
        }
    }
    VERB void start_tdv()
    {
        add_product(tdV, weights[1], D_O);
        add_product(tdV, weights[0], TD_O);
        products_commit();
    }
    VERB void start_tdk()
    {
        add_product(tdK, weights[3], 0);
        add_product(tdK, weights[2], TQ);
        products_commit();
    }
    /* The warpgroup's columns of dZ and of tdZ: a row has N numbers of either, in boxes of 64. */
    VERB void start_tdq()
    {
        constexpr uint32_t TDZ = T::N == 64 ? 16384 : T::N * 2;
        const operand_tile K = columns_of(memory.own + (T::D == 64 ? 0 : w * 2 * T::SLAB), 2 * T::SLAB);
        const operand_tile dZ = columns_of(memory.scores_of(n) + (T::D == 64 ? w * 64 : 0), 16384);
        product_columns_first<F>(tdQ, operand_at(K, 0), operand_at(dZ, TDZ));
#pragma unroll
        for (int step = 1; step < KEYS_OF_BLOCK / 16; step++) {
            product_columns_next<F>(tdQ, operand_at(K, step * 2048), operand_at(dZ, TDZ + step * 2048));
        }
#pragma unroll
        for (int step = 0; step < KEYS_OF_BLOCK / 16; step++) {
            product_columns_next<F>(tdQ, operand_at(K, T::OWN + step * 2048), operand_at(dZ, step * 2048));
        }
        products_commit();
    }

    /* ---- Rows that may hold anything become zeros in shared memory ---- */

    /* Rows r of a matrix of boxes that are not in first <= r < end, or for which is_dead(r). */
    template <class Function>
    VERB void clear_rows(uint32_t matrix, uint32_t box, int rows, int first, int end, Function is_dead) const
    {
#pragma unroll 1
        for (int i = in_group(); i < rows * T::BOXES * 8; i += 128) {
            clear_chunk(matrix, box, rows, HIDES && is_dead(i / 8 % rows) ? rows : first, end, i);
        }
    }
    /* Own keys that no query sees. */
    VERB void clear_own(const key_walk<T> &at) const
    {
        const int first = max(at.s.low, 0) - at.row - w * 64;
        const int end = min(at.s.n_k, at.s.n_q + min(at.s.high, FAR / 2)) - at.row - w * 64;
        const uint8_t *const live = live_keys(f.p, f.x, at.s, at.kv_head) + at.row + w * 64;
        const auto is_dead = [&](int r) { return live[r] == 0; };
        if (first > 0 || end < 64 || (HIDES && has_dead_keys<64>(live))) {
#pragma unroll 1
            for (int matrix = 0; matrix < MATRICES; matrix++) {
                clear_rows(memory.own + matrix * T::OWN + w * T::SLAB, 2 * T::SLAB, 64, first, end, is_dead);
            }
            shared_fence();
        }
        named_sync(BOTH, 256); /* either warpgroup multiplies the keys of both */
    }
    /* Does query r of the tile see no key at all? */
    VERB bool is_blind(int r) const
    {
        return shared_load(memory.numbers(n, ROW_LSE) + r * 4) == INFINITY;
    }
    /* Queries that see no key of the block. */
    VERB void clear_tiles(const key_walk<T> &at, int row) const
    {
        const int first = at.from - row, end = at.to - row;
        const auto is_dead = [&](int r) { return is_blind(r); };
        memory.d_o.wait(n);
#pragma unroll 1
        for (int tangent = 0; tangent < 2; tangent++) {
            clear_rows(memory.q.tile(n) + tangent * T::TILE, T::BOX, T::N, first, end, is_dead);
            clear_rows(memory.d_o.tile(n) + tangent * T::TILE, T::BOX, T::N, first, end, is_dead);
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- Weights ---- */

    /* A number of the two queries of columns 8 j + 2 (lane % 4); of_lane: 8 (lane % 4). */
    VERB float2 numbers(int which, int j, uint32_t of_lane) const
    {
        return shared_load_2(memory.numbers(n, which) + 32 * j + of_lane);
    }
    /* x = 0 where the weight is: behind a hidden pair there may be NaN. */
    VERB void clear_behind(score_tile &x) const
    {
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            x[i] = Z[i] == 0 ? 0 : x[i];
        }
    }
    /* What is added to scores, and what to their tangents. */
    VERB void add_terms(const key_walk<T> &at)
    {
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            Z[i] = mul_rn(Z[i], scale);
            tZ[i] = mul_rn(tZ[i], scale);
        }
        add_features<F, T::FEATURES, true>(Z, f.p, f.x, place(at));
        add_tangents<F, T::FEATURES, true>(tZ, f.p, f.x, f.relative_tangents, place(at));
    }
    /* P = exp(S - L) and tP = P o (tS - mu), where S = Z scale and tS = tZ scale if nothing is added to them. mixed:
     * the mask hides some pair. */
    VERB void make_weights(const key_walk<T> &at, bool edge, bool mixed)
    {
        const float rate = ADDS ? LOG2_E : f.scale_log2, scale = ADDS ? 1 : (float)f.p.scale;
        const uint32_t of_lane = lane() % 4 * 8;
        if constexpr (ADDS) {
            add_terms(at);
        }
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 L = numbers(ROW_LSE, j, of_lane), mu = numbers(ROW_MU, j, of_lane);
            const float2 rest = HAS_BIAS ? numbers(ROW_LSE_REST, j, of_lane) : float2{};
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; i++) {
                const float of_row = i % 2 == 0 ? L.x : L.y;
                Z[i] = exp2_fast(HAS_BIAS ? fmaf(add_rn(Z[i], -of_row), rate, i % 2 == 0 ? rest.x : rest.y)
                                          : fmaf(Z[i], rate, -of_row));
                tZ[i] = fmaf(tZ[i], scale, i % 2 == 0 ? -mu.x : -mu.y);
            }
        }
        if (mixed) {
            visible.hide(Z, 0);
        }
        if (edge) {
            hide_pairs(*this, at, memory.note(n).row, Z);
        }
        if (edge || HIDES) {
            clear_behind(tZ);
        }
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            tZ[i] *= Z[i];
        }
        pack(weights[0], Z);
        pack(weights[1], tZ);
        if constexpr (DROPS) {
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                const uint32_t both = (kept[2 * i] ? 0xffffu : 0) | (kept[2 * i + 1] ? 0xffff0000u : 0);
                weights[0][i] &= both;
                weights[1][i] &= both;
            }
        }
    }
    /* With a softcap: P and tP packed, and in the place of Z and tZ what stands for them in dZ and tdZ:
     *
     *     dZ = dS o phi' = (P o phi') o (dP - D)
     *     tdZ = tdS o phi' + dS o phi'' o tZ = (tP o phi' + P o phi'' o tZ) o (dP - D) + (P o phi') o (tdP - tD) */
    VERB void make_capped_weights(const key_walk<T> &at, bool edge)
    {
        const float scale = (float)f.p.scale;
        const uint32_t of_lane = lane() % 4 * 8;
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 L = numbers(ROW_LSE, j, of_lane), mu = numbers(ROW_MU, j, of_lane);
            float P[4], tP[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &z = Z[4 * j + i], &tz = tZ[4 * j + i], slope, bend;
                const float S = capped_score(f.x, mul_rn(z, scale), slope, bend);
                tz *= scale;
                P[i] = exp2_fast(fmaf(S, LOG2_E, i % 2 == 0 ? -L.x : -L.y));
                tP[i] = P[i] * fmaf(tz, slope, i % 2 == 0 ? -mu.x : -mu.y);
                z = P[i] * slope;
                tz = fmaf(tP[i], slope, P[i] * (bend * tz));
            }
            pack_four(weights[0], j, P);
            pack_four(weights[1], j, tP);
        }
        if (edge) {
            each_hidden(*this, at, memory.note(n).row, [&](int i) {
                const uint32_t other = i % 2 == 0 ? 0xffff0000u : 0xffffu;
                Z[i] = tZ[i] = 0;
                weights[0][i / 2] &= other;
                weights[1][i / 2] &= other;
            });
        }
    }
    /* M o dP and M o tdP; M: what dropout multiplies weights with. */
    VERB void drop_gradients()
    {
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            dP[i] = kept[i] ? dP[i] * f.x.inverse_keep : 0;
            tdP[i] = kept[i] ? tdP[i] * f.x.inverse_keep : 0;
        }
    }
    /* dZ = P o (dP - D) and tdZ = tP o (dP - D) + P o (tdP - tD). */
    VERB void make_gradients(bool edge)
    {
        const uint32_t of_lane = lane() % 4 * 8;
        if constexpr (DROPS) {
            drop_gradients();
        }
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 D = numbers(ROW_D, j, of_lane), tD = numbers(ROW_TD, j, of_lane);
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; i++) {
                const float x = dP[i] - (i % 2 == 0 ? D.x : D.y);
                tdP[i] = fmaf(tZ[i], x, Z[i] * (tdP[i] - (i % 2 == 0 ? tD.x : tD.y)));
                dP[i] = Z[i] * x;
            }
        }
        if (edge || HIDES) {
            clear_behind(dP);
            clear_behind(tdP);
        }
        pack(weights[2], dP);
        pack(weights[3], tdP);
    }
    /* Four numbers of columns 8 j on. */
    VERB void pack_four(uint32_t (&to)[T::N / 4], int j, const float (&x)[4]) const
    {
        to[2 * j] = F::pack(x[0], x[1]);
        to[2 * j + 1] = F::pack(x[2], x[3]);
    }
    VERB void pack(uint32_t (&to)[T::N / 4], const score_tile &x) const
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            to[i] = F::pack(x[2 * i], x[2 * i + 1]);
        }
    }
    /* dZ and tdZ as rows of keys. */
    VERB void put_scores() const
    {
        const uint32_t i = thread_id(), matrix = i % 32 / 8, r = i / 32 * 16 + i % 8 + matrix % 2 * 8;
        const uint32_t first = memory.scores_of(n) + r * 128 + ((matrix / 2 ^ r % 8) << 4);
        memory.wait_scores(n);
#pragma unroll
        for (int c = 0; c < T::N / 4; c += 2) { /* two chunks of eight queries */
            const uint32_t *const x = weights[c < T::N / 8 ? 2 : 3] + c % (T::N / 8) * 2;
            store_matrices((first ^ c % 8 << 4) + c / 8 * 16384, x[0], x[1], x[2], x[3]);
        }
        shared_fence();
    }

    /* ---- tdQ ---- */

    VERB void arrive(uint32_t barrier) const
    {
        __syncwarp();
        if (lane() == 0) {
            barrier_arrive(barrier);
        }
    }
    /* Where the thread's numbers of a half are: in the order of its registers. */
    VERB uint32_t staged() const
    {
        return memory.half(n, w) + in_group() * 16;
    }
    VERB void leave_tdq() const
    {
        memory.wait_empty(n, w);
        const uint32_t to = staged();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            shared_store_4(to + j * 2048, tdQ, 4 * j);
        }
        shared_fence();
        arrive(memory.done(n, w));
    }
    VERB void add_others(uint32_t flags)
    {
        barrier_wait(memory.fetched(n, w), flags & ring_note::ODD ? 1 : 0);
        const uint32_t from = staged();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            shared_add_4(tdQ, 4 * j, from + j * 2048);
        }
    }
    /* Any dtype and stride: by way of the buffer, 32 queries for each channel. */
    VERB void store_by_numbers(int64_t place, int rows, int width) const
    {
        const ag_tensor &t = f.p.a.tdq;
        const output out = {&t, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_TDQ) != 0};
        const int thread = in_group(), channel = thread / 32 * 16 + thread % 32 / 4;
        named_sync(WARPGROUP + w, 128); /* all have read what they share the buffer with */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            shared_store(memory.half(n, w) + ((channel + i % 2 * 8) * 32 + i / 2 * 8 + thread % 4 * 2) * 4,
                         tdQ[2 * i], tdQ[2 * i + 1]);
        }
        named_sync(WARPGROUP + w, 128);
#pragma unroll 1
        for (int i = thread; i < 32 * 64; i += 128) {
            const int query = i / 64, c = i % 64;
            if (query < rows && c < width) {
                out.store(place + query * t.strides[2] + c * t.strides[3],
                          shared_load(memory.half(n, w) + (c * 32 + query) * 4));
            }
        }
        shared_fence(); /* the copy engine writes here next */
    }
    VERB void store_tdq(const key_walk<T> &at)
    {
        const ag_tensor &t = f.p.a.tdq;
        const int queries = memory.note(n).row + (T::D == 64 ? w * 32 : 0),
                  channels = T::D == 64 ? 0 : w * 64;
        const int rows = (f.p.flags & AG_PACKED ? at.s.n_q : (int)f.p.Nq) - queries,
                  width = f.p.Dk - channels;
        const int head = memory.note(n).head;
        const int64_t place = element_at(t, at.s.view, head, at.s.q0 + queries) + channels * t.strides[3];
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            tdQ[i] *= scale;
        }
        if (!f.tdq_in_pairs) {
            store_by_numbers(place, rows, width);
            return;
        }
        const int thread = in_group(); /* of the transpose: its row and channel */
        const int row = thread % 32 / 4, channel = thread / 32 * 16 + thread % 4 * 2;
        uint16_t *const to = (uint16_t *)t.data + place + row * t.strides[2] + channel;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int half = i % 2 * 8, j = i / 2 * 8;
            const uint32_t x = transpose_matrix(F::pack(tdQ[2 * i], tdQ[2 * i + 1]));
            if (row + j < rows && channel + half < width) {
                *(uint32_t *)(to + j * t.strides[2] + half) = x;
            }
        }
    }
    VERB void pass_tdq(const key_walk<T> &at, uint32_t flags)
    {
        if (!(flags & ring_note::LAST)) {
            leave_tdq();
            return;
        }
        if (flags & ring_note::ALONE) {
            memory.wait_empty(n, w);
        } else {
            add_others(flags);
        }
        store_tdq(at);
        arrive(memory.done(n, w));
    }

    /* ---- The walk ---- */

    /* Is there another one? */
    VERB bool step(const key_walk<T> &at)
    {
        memory.q.wait(n);
        const uint32_t flags = uniform((int)memory.note(n).flags);
        const bool edge = flags >> w & ring_note::EDGE;
        const bool mixed = has_mask(T::FEATURES) && flags >> w & ring_note::MIXED;
        if (flags & ring_note::UNSEEN || (HIDES && has_blind_queries(*this))) {
            clear_tiles(at, memory.note(n).row);
        }
        products_begin();
        start_scores();
        if constexpr (DROPS) {
            kept.find(f.p, place(at));
        }
        if (mixed) {
            visible.find(f.p, f.x, place(at));
        }
        products_wait<1>();
        hold(Z);
        hold(tZ);
        if constexpr (CAPPED) {
            make_capped_weights(at, edge);
        } else {
            make_weights(at, edge, mixed);
        }
        products_wait<0>();
        hold(dP);
        hold(tdP);
        make_gradients(edge);
        put_scores();
        hold(tdV);
        hold(weights[0]);
        hold(weights[1]);
        products_begin();
        start_tdv();
        named_sync(BOTH, 256);
        hold(tdK);
        hold(weights[2]);
        hold(weights[3]);
        products_begin();
        start_tdq();
        start_tdk();
        products_wait<1>();
        hold(tdV);
        hold(tdQ);
        memory.d_o.release(n);
        memory.release_scores();
        pass_tdq(at, flags);
        products_wait<0>();
        hold(tdK);
        memory.q.release(n);
        n++;
        return flags & ring_note::MORE;
    }

    /* ---- Results ---- */

    VERB void store_pairs(const key_walk<T> &at, const ag_tensor &t, const float (&x)[T::D / 2], int rows,
                          int width) const
    {
        const int j = key(at), channel = lane() % 4 * 2;
        uint16_t *const to = (uint16_t *)t.data + element_at(t, at.s.view, at.kv_head, at.s.k0 + j) + channel;
        uint16_t *const next = to + 8 * t.strides[2];
        const int here_width = j < rows ? width : 0, next_width = j + 8 < rows ? width : 0;
#pragma unroll
        for (int c = 0; c < T::D; c += 8) {
            const float *const y = x + c / 2;
            if (c + channel < here_width) {
                *(uint32_t *)(to + c) = F::pack(y[0], y[1]);
            }
            if (c + channel < next_width) {
                *(uint32_t *)(next + c) = F::pack(y[2], y[3]);
            }
        }
    }
    VERB void store(const key_walk<T> &at, const ag_tensor &t, uint32_t bit, bool pairs,
                    const float (&x)[T::D / 2], int width) const
    {
        const int rows = f.p.flags & AG_PACKED ? at.s.n_k : (int)f.p.Nk;
        if (t.data == nullptr) {
            return;
        }
        if (pairs) {
            store_pairs(at, t, x, rows, width);
            return;
        }
        const int warp = (int)(thread_id() / 32), first = key(at) - lane() / 4;
        const warp_rows<T::D> all = {memory.own + warp * 16 * T::D * 4};
        all.put(x);
        all.store({&t, f.p.grad_dtype, (f.p.a.accumulate & bit) != 0},
                  element_at(t, at.s.view, at.kv_head, at.s.k0 + first), rows - first, width, false);
    }
    VERB void finish(const key_walk<T> &at)
    {
        const float scale = (float)f.p.scale, lower = DROPS ? f.x.inverse_keep : 1;
        const int j = key(at);
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            const bool there = j + i / 2 % 2 * 8 < at.s.n_k;
            tdK[i] = there ? tdK[i] * scale : 0;
            tdV[i] = there ? tdV[i] * lower : 0;
        }
        named_sync(BOTH, 256); /* nobody needs the own matrices any more */
        store(at, f.p.a.tdk, AG_ACC_TDK, f.tdk_in_pairs, tdK, f.p.Dk);
        store(at, f.p.a.tdv, AG_ACC_TDV, f.tdv_in_pairs, tdV, f.p.Dv);
        shared_fence(); /* the copy engine writes here next */
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
                tdK[i] = tdV[i] = 0;
            }
            barrier_wait(memory.own_full, k % 2);
            if (at.tiles > 0) {
                clear_own(at);
            }
#pragma unroll 1
            for (bool more = at.tiles > 0; more;) {
                more = step(at);
            }
            finish(at);
            if (in_group() == 0) {
                barrier_arrive(memory.own_empty);
                memory.done_with(k);
            }
        }
    }
};

/* ---- The kernels ---- */

template <class T> VERB void run_hopper_second_ring(const agi_hopper_second_ring &f)
{
    typedef second_ring_memory<T> M;
    SHARED_MEMORY(shared);
    const M memory(shared);
    if (threadIdx.x == 0) {
        memory.init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            second_ring_producer<T>{f, memory}.run();
        } else if (threadIdx.x == 32 || threadIdx.x == 64) {
            dq_passer<T, M, agi_hopper_second_ring>{f, memory, (int)threadIdx.x / 32 - 1}.run();
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        second_ring_consumer<T>(f, memory).run();
    }
}

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_second_ring f)                              \
    {                                                                                                        \
        run_##map<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f);                                         \
    }
#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_second_ring f)                      \
    {                                                                                                        \
        run_##map<second_ring_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set>>(f);                     \
    }
#define AGI_HOPPER_STATISTICS(map, format, D, CONSUMERS, N, STAGES)                                          \
    KERNEL void __launch_bounds__(256)                                                                       \
        hopper_second_statistics_##format##_d##D(const __grid_constant__ agi_hopper_second_ring f)           \
    {                                                                                                        \
        tile_second_statistics<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f).run();                      \
    }
#define AGI_HOPPER_VISITS(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(256)                                                                       \
        hopper_second_visits_##format##_d##D(const __grid_constant__ agi_hopper_second_ring f)               \
    {                                                                                                        \
        find_visits<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f);                                       \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_second_ring, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_second_ring_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_second_ring, AGI_HOPPER_STATISTICS, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_second_ring, AGI_HOPPER_VISITS, AGI_FORMAT)
