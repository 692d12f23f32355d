/* vjp on Hopper in one kernel: a block owns 128 keys and walks over the tiles of queries that see them, so that scores
 * are computed once and five products are all there is.
 *
 *     S^T = K Q^T, dP^T = V dO^T    dV += P^T dO, dK += dS^T Q    dQ of the tile += dS K, over all blocks
 *
 * Warpgroup 0: thread 0 copies, and notes down what each step is; two more threads each pass one half of the tiles of
 * dQ on to the next block (hopper_ring_copies.cuh; hopper_walk.cuh says who comes after whom). Two warpgroups compute,
 * 64 keys each; dS goes through shared memory to become the first operand of dQ, of which each warpgroup has one half:
 * 64 channels at head size 128, 64 queries at 64.
 *
 * hopper_statistics comes before it: L and D per query, no passes yet, and zeros in tiles of dQ that nobody visits; and
 * with a mask hopper_visits, the lists of the steps that it leaves (hopper_visits.cuh). */
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_ring_copies.cuh"
#include "cuda/kernels/hopper_ring_hidden.cuh"
#include "cuda/kernels/hopper_statistics.cuh"

/* ---- The consumers ---- */

constexpr float LOG2_E = 1.4426950408889634f;

enum { BOTH = 1, WARPGROUP = 2 }; /* named barriers */

template <class T> struct ring_consumer {
    typedef typename T::F F;
    typedef ring_memory<T> M;
    static constexpr bool CAPPED = (T::FEATURES & AGI_HAS_SOFTCAP) != 0;
    static constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0, HIDES = hides_by_data(T::FEATURES);
    static constexpr bool DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;
    /* Scores are multiplied by the scale, as something is done to them; else weights are made of the products. */
    static constexpr bool SCALED = (T::FEATURES & (AGI_HAS_SOFTCAP | AGI_HAS_RELATIVE | AGI_HAS_BIAS)) != 0;
    /* What is needed again much later is found again there. Where features need registers of their own, ptxas
     * would spill more in the loop. */
    static constexpr bool FINDS_AGAIN = !CAPPED && !DROPS;
    static_assert(!CAPPED || T::FEATURES == AGI_HAS_SOFTCAP, "with a softcap weights are made at once");

    const agi_hopper_ring &f;
    const M &memory;
    const int w;    /* the warpgroup */
    uint32_t n = 0; /* tiles of queries so far */
    float S[T::N / 2], dP[T::N / 2], dK[T::D / 2], dV[T::D / 2], dQ[32];
    uint32_t P[T::N / 4], dS[T::N / 4];
    kept_weights<true, T::N / 2> kept;
    mask_bits<true, T::N / 2> visible; /* if the step is mixed */

    VERB ring_consumer(const agi_hopper_ring &call, const M &shared)
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
            clear_rows(memory.own + w * T::SLAB, 2 * T::SLAB, 64, first, end, is_dead);
            clear_rows(memory.own + T::OWN + w * T::SLAB, 2 * T::SLAB, 64, first, end, is_dead);
            shared_fence();
        }
        named_sync(BOTH, 256); /* either warpgroup multiplies the keys of both */
    }
    /* Does query r of the tile see no key at all? */
    VERB bool is_blind(int r) const
    {
        return shared_load(memory.lse(n) + r * 4) == INFINITY;
    }
    /* Queries that see no key of the block. */
    VERB void clear_tile(const key_walk<T> &at) const
    {
        const int row = memory.note(n).row, first = at.from - row, end = at.to - row;
        const auto is_dead = [&](int r) { return is_blind(r); };
        memory.d_o.wait(n);
        clear_rows(memory.q.tile(n), T::BOX, T::N, first, end, is_dead);
        clear_rows(memory.d_o.tile(n), T::BOX, T::N, first, end, is_dead);
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- Weights ---- */

    /* A number of the two queries of columns 8 j + 2 (lane % 4); of_lane: 8 (lane % 4). */
    VERB static float2 of_columns(uint32_t stats, int j, uint32_t of_lane)
    {
        return shared_load_2(stats + 32 * j + of_lane);
    }
    /* P in the place of S. */
    VERB void make_weights()
    {
        const float rate = SCALED ? LOG2_E : f.scale_log2;
        const uint32_t of_lane = lane() % 4 * 8;
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 L = of_columns(memory.lse(n), j, of_lane);
            const float2 rest = HAS_BIAS ? of_columns(memory.lse_rest(n), j, of_lane) : float2{};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = S[4 * j + i];
                const float of_row = i % 2 == 0 ? L.x : L.y;
                x = exp2_fast(HAS_BIAS ? fmaf(add_rn(x, -of_row), rate, i % 2 == 0 ? rest.x : rest.y)
                                       : fmaf(x, rate, -of_row));
            }
        }
    }
    /* S + bias, of which the copy engine has brought the tile: rows are queries, 128 bytes of 64 keys. */
    VERB void add_bias_tile()
    {
        const uint32_t i = thread_id() % 128, matrix = i % 32 / 8, chunk = i / 32 * 2 + matrix % 2;
        const uint32_t rows = (matrix / 2 * 8 + i % 8) * 128 + ((chunk ^ i % 8) << 4);
#pragma unroll
        for (int j = 0; j < T::N / 8; j += 2) {
            uint32_t pairs[4];
            load_matrices_transposed(pairs, memory.bias(n, 8 * j, w) + rows + j % 8 * 1024);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 both = F::unpack(pairs[i]);
                S[4 * j + 2 * i] = with_bias(S[4 * j + 2 * i], both.x);
                S[4 * j + 2 * i + 1] = with_bias(S[4 * j + 2 * i + 1], both.y);
            }
        }
    }
    /* What is added to scores. */
    VERB void add_terms(const key_walk<T> &at)
    {
        if (HAS_BIAS && f.bias_in_boxes) {
            add_bias_tile();
            add_features<F, T::FEATURES & ~AGI_HAS_BIAS, true>(S, f.p, f.x, place(at));
        } else {
            add_features<F, T::FEATURES, true>(S, f.p, f.x, place(at));
        }
    }
    /* The scores' features, then P in the place of S, 0 where a pair is hidden. mixed: by the mask. */
    VERB void make_all_weights(const key_walk<T> &at, bool edge, bool mixed)
    {
        if constexpr (SCALED) {
            const float scale = (float)f.p.scale;
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                S[i] = mul_rn(S[i], scale);
            }
        }
        add_terms(at);
        make_weights();
        if (mixed) {
            visible.hide(S, 0);
        }
        if (edge) {
            hide_pairs(*this, at, memory.note(n).row, S);
        }
        pack(P, S);
        if constexpr (DROPS) {
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                P[i] &= (kept[2 * i] ? 0xffffu : 0) | (kept[2 * i + 1] ? 0xffff0000u : 0);
            }
        }
    }
    /* With a softcap: P packed, and P o phi' in the place of S. */
    VERB void make_capped_weights(const key_walk<T> &at, bool edge)
    {
        const float scale = (float)f.p.scale;
        const uint32_t of_lane = lane() % 4 * 8;
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 L = of_columns(memory.lse(n), j, of_lane);
            float weights[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float slope;
                const float capped = capped_score(f.x, mul_rn(S[4 * j + i], scale), slope);
                weights[i] = exp2_fast(fmaf(capped, LOG2_E, i % 2 == 0 ? -L.x : -L.y));
                S[4 * j + i] = weights[i] * slope;
            }
            P[2 * j] = F::pack(weights[0], weights[1]);
            P[2 * j + 1] = F::pack(weights[2], weights[3]);
        }
        if (edge) {
            const int row = memory.note(n).row;
            hide_pairs(*this, at, row, S);
            each_hidden(*this, at, row, [&](int i) { P[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0xffffu; });
        }
    }
    /* dS = P o phi' o (M o dP - D) in the place of dP, without the scale; M: what dropout multiplies weights with. */
    VERB void make_gradients()
    {
        constexpr float LOWER = F::RAISED ? 0x1p-14f : 1;
        const uint32_t of_lane = lane() % 4 * 8;
#pragma unroll
        for (int j = 0; j < T::N / 8; j++) {
            const float2 D = of_columns(memory.delta(n), j, of_lane);
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; i++) {
                const float x = !DROPS ? dP[i] : kept[i] ? dP[i] * f.x.inverse_keep : 0;
                const float g = S[i] * LOWER * (x - (i % 2 == 0 ? D.x : D.y));
                dP[i] = HIDES && S[i] == 0 ? 0 : g; /* behind a hidden pair dP may be NaN */
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
        const uint32_t i = thread_id(), matrix = i % 32 / 8, r = i / 32 * 16 + i % 8 + matrix % 2 * 8;
        const uint32_t row =
            memory.scores_of(n) + r * 128 + ((matrix / 2 ^ r % 8) << 4); /* with its first chunk */
#pragma unroll
        for (int c = 0; c < T::N / 8; c += 2) {
            store_matrices((row ^ (uint32_t)(c % 8 << 4)) + c / 8 * 16384, dS[2 * c], dS[2 * c + 1],
                           dS[2 * c + 2], dS[2 * c + 3]);
        }
        shared_fence();
    }

    /* ---- dQ ---- */

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
    VERB void leave_dq() const
    {
        memory.wait_empty(n, w);
        const uint32_t to = staged();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            shared_store_4(to + j * 2048, dQ, 4 * j);
        }
        shared_fence();
        arrive(memory.done(n, w));
    }
    VERB void add_others(uint32_t flags)
    {
        barrier_wait(memory.fetched(n, w), flags & ring_note::ODD ? 1 : 0);
        const uint32_t from = staged();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            shared_add_4(dQ, 4 * j, from + j * 2048);
        }
    }
    VERB void store_dq(const key_walk<T> &at)
    {
        const ag_tensor &t = f.p.a.dq;
        const int thread = in_group(), head = memory.note(n).head;
        const int queries = memory.note(n).row + (T::D == 64 ? w * 64 : 0) + thread / 32 * 16;
        const int channels = T::D == 64 ? 0 : w * 64;
        const int rows = (f.p.flags & AG_PACKED ? at.s.n_q : (int)f.p.Nq) - queries,
                  width = f.p.Dk - channels;
        const int64_t place = element_at(t, at.s.view, head, at.s.q0 + queries) + channels * t.strides[3];
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            dQ[i] *= scale;
        }
        if (!f.dq_in_pairs) {
            named_sync(WARPGROUP + w, 128); /* all have read what they share the buffer with */
            const warp_rows<64> all = {memory.half(n, w) + thread / 32 * 4096};
            all.put(dQ);
            all.store({&t, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_DQ) != 0}, place, rows, min(width, 64),
                      false);
            shared_fence(); /* the copy engine writes here next */
            return;
        }
        const int row = thread % 32 / 4, channel = thread % 4 * 2;
        uint16_t *const to = (uint16_t *)t.data + place + row * t.strides[2] + channel;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int half = i % 2, c = i / 2 * 8;
            if (row + 8 * half < rows && c + channel < width) {
                *(uint32_t *)(to + 8 * half * t.strides[2] + c) = F::pack(dQ[2 * i], dQ[2 * i + 1]);
            }
        }
    }
    VERB void pass_dq(const key_walk<T> &at, uint32_t flags)
    {
        if (!(flags & ring_note::LAST)) {
            leave_dq();
            return;
        }
        if (flags & ring_note::ALONE) {
            memory.wait_empty(n, w);
        } else {
            add_others(flags);
        }
        store_dq(at);
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
            clear_tile(at);
        }
        products_begin();
        start_scores(S, 0, memory.q.tile(n));
        memory.d_o.wait(n);
        start_scores(dP, 1, memory.d_o.tile(n));
        if constexpr (DROPS) {
            kept.find(f.p, place(at));
        }
        if (mixed) {
            visible.find(f.p, f.x, place(at));
        }
        products_wait<1>();
        hold(S);
        if constexpr (CAPPED) {
            make_capped_weights(at, edge);
        } else {
            make_all_weights(at, edge, mixed);
        }
        products_wait<0>();
        hold(dP);
        make_gradients();
        if (FINDS_AGAIN ? memory.note(n).flags >> w & ring_note::EDGE : edge) {
            hide_pairs(*this, at, memory.note(n).row, dP);
        }
        pack(dS, dP);
        if (HAS_BIAS && f.bias_in_boxes) {
            named_sync(WARPGROUP + w, 128); /* all have read the bias, whose place dS takes */
        }
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
        pass_dq(at, memory.note(n).flags);
        products_wait<0>();
        hold(dK);
        const bool more = memory.note(n).flags & ring_note::MORE;
        memory.q.release(n);
        n++;
        return more;
    }

    /* ---- Results ---- */

    VERB void store_by_rows(const key_walk<T> &at, const ag_tensor &t, uint32_t bit,
                            const float (&x)[T::D / 2], int width) const
    {
        const int warp = (int)(thread_id() / 32), first = key(at) - lane() / 4;
        const warp_rows<T::D> rows = {memory.own + warp * 16 * T::D * 4};
        const int of_tensor = f.p.flags & AG_PACKED ? at.s.n_k : (int)f.p.Nk;
        rows.put(x);
        rows.store({&t, f.p.grad_dtype, (f.p.a.accumulate & bit) != 0},
                   element_at(t, at.s.view, at.kv_head, at.s.k0 + first), of_tensor - first, width, false);
        shared_fence(); /* the copy engine writes here next */
    }
    /* By way of the warpgroup's place in one of the own matrices. */
    VERB void store_boxes(const key_walk<T> &at, const agi_cuda_tensor_map &map, int matrix,
                          const float (&x)[T::D / 2]) const
    {
        const uint32_t slab = memory.own + matrix * T::OWN + w * T::SLAB;
        put_boxes<F, T::D>(slab, 2 * T::SLAB, x, FINDS_AGAIN ? in_group() : (int)threadIdx.x % 128);
        shared_fence();
        named_sync(WARPGROUP + w, 128);
        for (int box = 0; box < T::BOXES && in_group() == 0; box++) {
            box_store(map, slab + box * 2 * T::SLAB, box * 64, (int)at.s.k0 + at.row + w * 64, at.kv_head,
                      (int)at.s.view);
        }
    }
    VERB void store(const key_walk<T> &at, const ag_tensor &t, uint32_t bit, const agi_cuda_tensor_map &map,
                    bool boxes, int matrix, const float (&x)[T::D / 2], int width) const
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
        const float scale = (float)f.p.scale,
                    lower = (F::RAISED ? 0x1p-14f : 1) * (DROPS ? f.x.inverse_keep : 1);
        /* Behind the end of a packed sequence the next one begins. */
        const int j = key(at);
        const bool cut = f.p.flags & AG_PACKED && at.row + KEYS_OF_BLOCK > at.s.n_k;
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            const bool there = j + i / 2 % 2 * 8 < at.s.n_k;
            dK[i] = there ? dK[i] * scale : 0;
            dV[i] = there ? dV[i] * lower : 0;
        }
        named_sync(BOTH, 256); /* nobody needs the own matrices any more */
        store(at, f.p.a.dk, AG_ACC_DK, f.dk, f.dk_in_boxes && !cut, 0, dK, f.p.Dk);
        if (cut || !f.dk_in_boxes || !f.dv_in_boxes) { /* rows take the place of both matrices */
            if (in_group() == 0) {
                box_store_wait();
            }
            named_sync(BOTH, 256);
        }
        store(at, f.p.a.dv, AG_ACC_DV, f.dv, f.dv_in_boxes && !cut, 1, dV, f.p.Dv);
        named_sync(WARPGROUP + w, 128);
        if (in_group() == 0) {
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
                clear_own(at);
            }
#pragma unroll 1
            for (bool more = at.tiles > 0; more;) {
                more = step(at);
            }
            finish(at);
            if (in_group() == 0) {
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
#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_ring f)                             \
    {                                                                                                        \
        run_##map<ring_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set>>(f);                            \
    }
#define AGI_HOPPER_STATISTICS(map, format, D, CONSUMERS, N, STAGES)                                          \
    KERNEL void __launch_bounds__(256)                                                                       \
        hopper_statistics_##format##_d##D(const __grid_constant__ agi_hopper_ring f)                         \
    {                                                                                                        \
        tile_statistics<ring_shape<format, D, CONSUMERS, N, STAGES>>(f).run();                               \
    }
#define AGI_HOPPER_VISITS(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(256)                                                                       \
        hopper_visits_##format##_d##D(const __grid_constant__ agi_hopper_ring f)                             \
    {                                                                                                        \
        find_visits<ring_shape<format, D, CONSUMERS, N, STAGES>>(f);                                         \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_ring, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_ring_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_ring, AGI_HOPPER_STATISTICS, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_ring, AGI_HOPPER_VISITS, AGI_FORMAT)
