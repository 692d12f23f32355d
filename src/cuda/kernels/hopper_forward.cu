/* forward on Hopper: a block owns tiles of queries, one after another, and for each walks over the keys, from the last
 * that it sees to the first.
 *
 * Warpgroup 0 copies (hopper_forward_copies.cuh): one of its threads asks for each tile of Q, K and V as soon as a slot
 * is free, in one stream over the borders of tiles of queries. The others compute, 64 queries each: S = Q K^T of the
 * next tile and O' += P V of this one are given to the tensor cores together, and while they run the weights of the
 * next tile are made. A turn is passed on from warpgroup to warpgroup, so that one makes weights while another
 * multiplies. The first scores of the next queries are made while O of these is stored, if there is room for two tiles
 * of queries. Four warpgroups need neither, as some of them always make weights; of the tiles of keys each leaves out
 * those behind its own queries. A bias that the copy engine can read comes with K, and is in registers before the
 * scores are.
 *
 * Weights are 2^(S rate - u), u = m rate rounded, with m the row's largest score so far; what was summed before shrinks
 * by 2^(u_old - u). float16's are larger by 2^14, its range, in O' and in l alike. Scores are the products Q K^T, and
 * rate = scale log2 e; if something is added to scores, or the scale is not positive, they are multiplied by the scale
 * first and rate = log2 e.
 *
 * l, the sum of the weights as they multiply V, is a column of O': behind each tile of V lie eight columns of ones. P V
 * takes an eighth or a sixteenth longer, and the other units are spared two instructions for each weight. Where there
 * is no room for ones, or dropout takes weights from O' alone, the weights are added up while products run. */
#include "cuda/kernels/hopper_forward_copies.cuh"
#include "cuda/kernels/hopper_results.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LOWEST =
    -0x1p126f; /* of m: finite, so that a hidden pair's weight, 2^(-inf - u), needs no test */

/* ---- The consumers ---- */

/* Named barriers. */
enum { TURN = 1, WARPGROUP = 5 };

template <class T> struct forward_consumer {
    typedef typename T::F F;
    static constexpr float RAISE = F::RAISED ? 14 : 0; /* weights are larger by 2^RAISE */
    /* Features that need scores multiplied by the scale. */
    static constexpr bool SCALED = (T::FEATURES & (AGI_HAS_SOFTCAP | AGI_HAS_RELATIVE | AGI_HAS_BIAS)) != 0;
    static constexpr bool HIDES = hides_by_data(T::FEATURES), DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;
    static constexpr bool SKIPS = T::CONSUMERS == 4, TURNS = !SKIPS;
    /* The next tile begins before O of this one is stored. Who skips keys would wait for more of them than there are
     * slots, as the last values of this tile have not been given back. */
    static constexpr bool NEXT_EARLY = T::Q_SLOTS > 1 && !SKIPS;
    static constexpr bool MASKED = has_mask(T::FEATURES);
    static constexpr int COLUMNS = has_ones<T>() ? T::D + 8 : T::D; /* of O' */
    static constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0;
    /* Terms of relative positions are read before the scores are there, if there are registers for them. */
    static constexpr bool RELATIVE_EARLY = (T::FEATURES & AGI_HAS_RELATIVE) != 0 && T::CONSUMERS == 2;

    const agi_hopper_forward &f;
    const forward_memory<T> &memory;
    const int w;       /* of the warpgroup */
    const bool scaled; /* scores are multiplied by the scale */
    const float rate;
    const query_block<T> *at; /* of the tile, in shared memory */
    int tile, step;           /* of the block's tiles; its first tile of keys, of all that the block visits */
    int skipped;              /* of its tiles of keys, from the first on */
    int row;                  /* the thread's first query, the other is row + 8 */
    int first_key, count;     /* of the tile: the first key that is visited, its tiles of keys */
    int inside_from, inside_to; /* keys that every query of the warpgroup sees */
    float S[T::N / 2], O[COLUMNS / 2];
    uint32_t P[T::N / 4];
    float top[2], factor[2];
    float sum[2]; /* the thread's part of l, unless that is in O'; in the end l */
    bool seen[2]; /* has the row met a pair that mask and bias do not hide? */
    kept_weights<false, T::N / 2> kept;
    mask_bits<false, T::N / 2> visible; /* if the tile is mixed */
    float bias[T::N / 2];               /* if it comes in boxes */
    bool bias_hides;                    /* some pairs of the warp */
    relative_terms<false, T::N / 2> relative;

    VERB forward_consumer(const agi_hopper_forward &call, const forward_memory<T> &shared)
        : f(call), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          scaled(SCALED || !(call.p.scale >= 0x1p-20 && call.p.scale <= 1)),
          rate(scaled ? LOG2_E : (float)(call.p.scale * 1.4426950408889634)), at(nullptr), tile(0), step(0),
          skipped(0)
    {
    }

    VERB void begin_tile()
    {
        at = &memory.place(tile);
        row = at->row + (int)threadIdx.x / 32 * 16 - 64 + (int)threadIdx.x % 32 / 4;
        const int first = at->row + w * 64;
        first_key = at->key(0);
        count = at->count;
        inside_from = first + 63 + at->s.low;
        inside_to = min(first + at->s.high + 1, at->s.n_k);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) {
            O[i] = 0;
        }
        begin_rows();
    }

    /* The first key of tile n. */
    VERB int key(int n) const
    {
        if constexpr (MASKED) {
            return memory.note(step + n).key;
        }
        return first_key - n * T::N;
    }
    VERB bool is_mixed(int n) const
    {
        return MASKED && memory.note(step + n).mixed[w];
    }
    /* Is there a tile n, after the one before it? */
    VERB bool has_tile(int n) const
    {
        if constexpr (MASKED) {
            return !memory.note(step + n - 1).last;
        }
        return n < count;
    }

    /* u of a row whose largest score is m. */
    VERB float exponent(float m) const
    {
        const float u = mul_rn(m, rate);
        return F::RAISED ? add_rn(u, -RAISE) : u;
    }
    VERB float sink() const
    {
        const ag_tensor &t = f.p.a.sink;
        return t.data == nullptr ? -INFINITY
                                 : load_number<float>(f.p.aux_dtype, t.data, at->h * t.strides[1]);
    }
    /* m of a row without keys: the sink counts as a score without a value. */
    VERB float first_top() const
    {
        const float s = sink();
        return s == -INFINITY ? LOWEST : fminf(fmaxf(scaled ? s : s * (LOG2_E / rate), LOWEST), -LOWEST);
    }
    VERB void begin_rows()
    {
        seen[0] = seen[1] = false;
        top[0] = top[1] = first_top();
        const float of_sink = sink() > -INFINITY ? sink_weight(top[0]) : 0;
        if constexpr (has_ones<T>()) {
            O[T::D / 2] = O[T::D / 2 + 2] = of_sink;
        } else {
            sum[0] = sum[1] = threadIdx.x % 4 == 0 ? of_sink : 0;
        }
    }
    /* Of a row whose maximum m is the sink; 1 where u is rounded by more than weights can take, which only sinks do. */
    VERB float sink_weight(float m) const
    {
        const float u = exponent(m);
        return exp2_fast(fabsf(u) > 0x1p28f ? 0 : fmaf(sink(), LOG2_E, -u));
    }

    /* ---- Products ---- */

    /* S of the x-th tile, with a tile of keys. */
    VERB void start_scores(int x, int keys)
    {
        const operand_tile q = rows_of(memory.q.tile(x) + w * T::SLAB), k = rows_of(memory.k.tile(keys));
        product_first<F, T::N>(S, operand_at(q, 0), operand_at(k, 0));
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(S, operand_at(q, channel_step(step, T::CONSUMERS * T::SLAB)),
                                  operand_at(k, channel_step(step, T::BOX)));
        }
        products_commit();
    }
    VERB void start_sums(int keys)
    {
        const operand_tile v = columns_of(memory.v.tile(keys), T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, COLUMNS>(O, P + 4 * step, operand_at(v, step * 2048));
        }
        products_commit();
    }

    /* Waits for its turn at the tensor cores, and passes it on. */
    VERB void take_turn()
    {
        named_sync(TURN + w, 256);
    }
    VERB void pass_turn()
    {
        named_arrive(TURN + (w + 1) % T::CONSUMERS, 256);
    }

    /* ---- Weights ---- */

    /* What is added to scores. */
    VERB void add_terms(int first)
    {
        if (!HAS_BIAS || !f.bias_in_boxes) {
            constexpr int LATE = T::FEATURES & ~(RELATIVE_EARLY ? AGI_HAS_RELATIVE : 0);
            add_features<F, LATE, false>(S, f.p, f.x, {at->s, at->h, row, first});
        } else if (bias_hides) {
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                S[i] = with_bias(S[i], bias[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                S[i] = add_rn(S[i], bias[i]);
            }
        }
        if (RELATIVE_EARLY && f.x.relative != nullptr) {
            relative.add(S);
        }
    }
    /* S of tile n, minus infinity where a pair is hidden. */
    VERB void scale_scores(int n)
    {
        const int first = key(n);
        if (scaled) {
            const float scale = (float)f.p.scale;
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                S[i] = mul_rn(S[i], scale);
                if constexpr ((T::FEATURES & AGI_HAS_SOFTCAP) != 0) {
                    S[i] = capped_score(f.x, S[i]);
                }
            }
        }
        add_terms(first);
        if (is_mixed(n)) {
            visible.hide(S, -INFINITY);
        }
        if (first >= inside_from && first + T::N <= inside_to) {
            return;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int from = row + 8 * half + at->s.low, to = min(row + 8 * half + at->s.high + 1, at->s.n_k);
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                const int key = first + i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
                float &x = S[i / 2 * 4 + 2 * half + i % 2];
                x = key < from || key >= to ? -INFINITY : x;
            }
        }
    }

    /* The row's new m; returns u. */
    VERB float grow(int half)
    {
        float most = HIDES ? -INFINITY : top[half];
#pragma unroll
        for (int i = 2 * half; i < T::N / 2; i += 4) {
            most = fmaxf(most, fmaxf(S[i], S[i + 1]));
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if constexpr (HIDES) {
            seen[half] |= most != -INFINITY;
            most = fmaxf(most, top[half]);
        }
        const float u = exponent(most);
        factor[half] = exp2_fast(exponent(top[half]) - u);
        top[half] = most;
        return u;
    }

    /* The weights of tile n, in the place of its scores. */
    VERB void make_weights(int n)
    {
        scale_scores(n);
        const float u[2] = {grow(0), grow(1)};
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = exp2_fast(fmaf(S[i], rate, -u[i / 2 % 2]));
        }
    }
    /* P, only when no product reads the old one any more. With dropout it is summed before some are dropped. */
    VERB void pack_weights()
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            P[i] = F::pack(S[2 * i], S[2 * i + 1]);
        }
        if constexpr (DROPS) {
            add_weights();
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                P[i] &= kept.halves(2 * i);
            }
        }
    }
    /* While products run: not among their instructions, where it would keep the others from their turn. */
    VERB void sum_weights()
    {
        if constexpr (!DROPS && !has_ones<T>()) {
            before_next_wait(f.p.H, [&] { add_weights(); });
        }
    }
    VERB void find_kept(int n)
    {
        if constexpr (DROPS) {
            kept.find(f.p, {at->s, at->h, row, key(n)});
        }
    }
    /* The bias of tile n, of which the copy engine has brought 64 queries by 64 keys at a time with K; and does it hide
     * a pair? Then each sum is tested, as the score may be infinite or NaN. */
    VERB void find_bias(int n)
    {
        if (HAS_BIAS && f.bias_in_boxes) {
            uint32_t most = 0; /* among numbers below zero minus infinity has the largest bits */
            const uint32_t tile = memory.bias(step + n, w, 0);
            each_pair_in_boxes<T::N / 2>(tile, T::CONSUMERS * T::SLAB, [&](int i, uint32_t pair) {
                const float2 both = F::unpack(pair);
                bias[i] = both.x;
                bias[i + 1] = both.y;
                most = max_of_halves(most, pair);
            });
            const uint32_t least = F::pack(-INFINITY, -INFINITY);
            bias_hides = __any_sync(~0u, most >= (least & ~0xffffu) || (most & 0xffff) >= (least & 0xffff));
            hold(bias);
        }
    }
    VERB void find_relative(int n)
    {
        if (RELATIVE_EARLY && f.x.relative != nullptr) {
            relative.find(relative_at<false>(f.p, f.x, {at->s, at->h, row, key(n)}));
            hold(relative.terms);
        }
    }
    /* The mask's bits, if some pairs are hidden: loads that other work follows. Beside a bias there are registers for
     * them only when the weights have been summed. */
    VERB void begin_visible(int n)
    {
        if (!HAS_BIAS && is_mixed(n)) {
            visible.begin(f.p, f.x, {at->s, at->h, row, key(n)});
        }
    }
    VERB void find_visible(int n)
    {
        if constexpr (MASKED && HAS_BIAS) {
            hold(sum);
        }
        if (is_mixed(n)) {
            const fragment_place place = {at->s, at->h, row, key(n)};
            if (HAS_BIAS) {
                visible.begin(f.p, f.x, place);
            }
            visible.end(f.p, f.x, place);
        }
    }
    /* l: the sum of the numbers that multiply V. */
    VERB void add_weights()
    {
        float of_tile[2][2] = {};
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const float2 both = F::unpack(P[i]);
            of_tile[i % 2][0] += both.x;
            of_tile[i % 2][1] += both.y;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] = add_rn(mul_rn(sum[half], factor[half]), of_tile[half][0] + of_tile[half][1]);
        }
    }
    VERB void shrink()
    {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) {
            O[i] *= factor[i / 2 % 2];
        }
    }

    /* Rows of V that no query of the block sees may hold anything, and 0 times NaN is NaN: they become zeros. Every
     * warpgroup writes all of them before its own product. */
    VERB void clear_hidden(int n)
    {
        const int first = key(n), thread = here((int)threadIdx.x) % 128;
        const uint8_t *const live = live_keys(f.p, f.x, at->s, at->kv_head) + first;
        const bool dead = HIDES && has_dead_keys<T::N>(live);
        if (first >= at->from && first + T::N <= at->to && !dead) {
            return;
        }
        memory.v.wait(step + n);
        for (int i = thread; i < T::N * T::BOXES * 8; i += 128) {
            const int r = i / (T::BOXES * 8), chunk = i % (T::BOXES * 8), key = first + r;
            if (key < at->from || key >= at->to || (HIDES && live[r] == 0)) {
                shared_zero_16(memory.v.tile(step + n) + chunk / 8 * T::BOX + r * 128 + chunk % 8 * 16);
            }
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- The walk ---- */

    /* The first scores of the x-th tile. Behind the last one they are made of what lies there, and nobody reads them: a
     * product under a condition would be waited for at once. */
    VERB void start_tile(int x, int keys)
    {
        memory.q.wait(x);
        if (memory.place(x).count > 0) {
            skipped = SKIPS ? keys_behind(memory.place(x)) : 0;
            for (int n = 0; n < skipped; n++) {
                memory.k.wait(keys + n);
                memory.k.release(keys + n);
            }
            memory.k.wait(keys + skipped);
        }
        start_scores(x, keys + skipped);
    }
    /* How many of the first tiles of keys no query of the warpgroup sees; the last tile of all is always visited. While
     * it passes over K, their values stay in their slots. */
    VERB int keys_behind(const query_block<T> &of) const
    {
        const int seen = min(of.row + w * 64 + 64 + of.s.high, of.s.n_k); /* keys up to there */
        const int behind = of.first + of.count - (max(seen, 1) + T::N - 1) / T::N;
        return max(min(min(behind, of.count - 1), T::STAGES - 1), 0);
    }
    VERB void first_keys()
    {
        const int n = skipped;
        begin_visible(n);
        find_kept(n);
        find_visible(n);
        find_bias(n);
        find_relative(n);
        for (int i = 0; i < skipped; i++) {
            memory.v.wait(step + i);
            memory.v.release(step + i);
        }
        products_wait<0>();
        hold(S);
        memory.k.release(step + n);
        make_weights(n);
        pack_weights();
        if constexpr (has_ones<T>()) { /* O' is 0, but for a sink's weight */
            O[T::D / 2] *= factor[0];
            O[T::D / 2 + 2] *= factor[1];
        }
        if (T::Q_SLOTS > 1 && tile > 0) {
            release_queries(tile - 1);
        }
        clear_hidden(n);
    }
    /* The slot of a tile. */
    VERB void release_queries(int x) const
    {
        wait_for_stores();
        memory.q.release(x);
    }
    /* S of tile n, and O' with tile n - 1. */
    VERB void next_keys(int n)
    {
        memory.k.wait(step + n);
        if constexpr (TURNS) {
            take_turn();
        }
        hold(P);
        hold(O);
        products_begin();
        start_scores(tile, step + n);
        memory.v.wait(step + n - 1);
        start_sums(step + n - 1);
        if constexpr (TURNS) {
            pass_turn();
        }
        begin_visible(n);
        sum_weights();
        find_kept(n);
        find_visible(n);
        find_bias(n);
        find_relative(n);
        if constexpr (!has_ones<T>()) {
            hold(sum);
        }
        products_wait<1>();
        hold(S);
        memory.k.release(step + n);
        before_next_wait(f.p.H, [&] { make_weights(n); });
        products_wait<0>();
        hold(O);
        memory.v.release(step + n - 1);
        shrink();
        pack_weights();
        clear_hidden(n);
    }
    /* O' with the last tile of keys; then the next tile begins, if it may. */
    VERB void last_keys()
    {
        memory.v.wait(step - 1);
        hold(P);
        hold(O);
        products_begin();
        start_sums(step - 1);
        if constexpr (NEXT_EARLY) {
            start_tile(tile + 1, step);
        }
        sum_weights();
        products_wait<NEXT_EARLY ? 1 : 0>();
        hold(O);
        memory.v.release(step - 1);
    }
    VERB void walk()
    {
        if (TURNS && w == T::CONSUMERS - 1) {
            pass_turn();
        }
        products_begin();
        start_tile(0, 0);
#pragma unroll 1
        for (; memory.place(tile).count > 0; tile++) {
            int n;
            begin_tile();
            first_keys();
#pragma unroll 1
            for (n = skipped + 1; has_tile(n); n++) {
                next_keys(n);
            }
            step += MASKED ? n : count;
            last_keys();
            store_values();
            if (T::Q_SLOTS == 1) {
                release_queries(tile);
            }
            if constexpr (!NEXT_EARLY) {
                products_begin();
                start_tile(tile + 1, step);
            }
            store_lse(); /* beside the next scores */
        }
        products_wait<0>();
        hold(S);
        wait_for_stores();
    }

    /* ---- Results ---- */

    VERB bool exists(int half) const
    {
        return row + 8 * half < at->s.n_q;
    }
    /* Does the table leave row r a key? Looked at only where keys weigh nothing beside the sink. */
    VERB bool has_terms(int r) const
    {
        if constexpr ((T::FEATURES & AGI_HAS_RELATIVE) != 0) {
            const float *const terms =
                relative_at<false>(f.p, f.x, {at->s, at->h, r, 0}) - fragment_column(0);
            const int to = min(r + at->s.high + 1, at->s.n_k);
            int j = max(r + at->s.low, 0);
            while (j < to && terms[j] == -INFINITY) {
                j++;
            }
            return j < to;
        }
        return true;
    }
    /* L = ln2 (u + log2 l), freed of what rounding the rate did to m; if the keys change nothing of the sink's weight,
     * the sink's. Of four threads with the same rows two store one each. */
    VERB void store_lse() const
    {
        const int half = (int)threadIdx.x % 4, r = row + 8 * half;
        if (half > 1 || r >= at->rows_of_tensor(f.p)) {
            return;
        }
        const float most = half == 0 ? top[0] : top[1], l = half == 0 ? sum[0] : sum[1];
        const bool met = !HIDES || (half == 0 ? seen[0] : seen[1]) || !(l == l);
        const bool sees = max(r + at->s.low, 0) < min(r + at->s.high + 1, at->s.n_k) && met;
        const double ln2 = 0.6931471805599453, m = most, unit = scaled ? 1 : f.p.scale, logit = sink();
        const bool by_keys = sees && (most > first_top() || l != sink_weight(most));
        const double L =
            by_keys ? m * (unit - ln2 * (double)rate) + ln2 * ((double)exponent(most) + (double)log2f(l))
                    : logit;
        const bool has_lse = exists(half) && (l != 0 || !by_keys);
        store_row(f.p, f.p.a.lse, AG_ACC_LSE, {at->s, at->h}, r,
                  !has_lse     ? -(double)INFINITY
                  : L == logit ? lse_of_sink(logit, sees && (by_keys || has_terms(r)))
                               : L);
    }

    /* Two numbers of O, or what rounding takes from them. */
    template <bool LOW> VERB uint32_t pair(int i) const
    {
        return LOW ? F::pack(low_half(f.p.dtype, O[i]), low_half(f.p.dtype, O[i + 1]))
                   : F::pack(O[i], O[i + 1]);
    }
    /* Stores a matrix by way of the warpgroup's place in Q. */
    template <bool LOW> VERB void store_boxes(const agi_cuda_tensor_map &map) const
    {
        const int thread = here((int)threadIdx.x) % 128, matrix = thread % 32 / 8;
        const int r = thread / 32 * 16 + thread % 8 + matrix % 2 * 8;
        const uint32_t slab = memory.q.tile(tile) + w * T::SLAB;
        constexpr int NEXT_BOX = T::CONSUMERS * T::SLAB;
#pragma unroll
        for (int c = 0; c < T::D / 8; c += 2) {
            const int chunk = c % 8 + matrix / 2;
            store_matrices(slab + c / 8 * NEXT_BOX + r * 128 + ((chunk ^ (r % 8)) << 4), pair<LOW>(4 * c),
                           pair<LOW>(4 * c + 2), pair<LOW>(4 * c + 4), pair<LOW>(4 * c + 6));
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
        if (thread == 0) {
            for (int box = 0; box < T::BOXES; box++) {
                box_store(map, slab + box * NEXT_BOX, box * 64, (int)at->s.q0 + at->row + w * 64, at->h,
                          (int)at->s.view);
            }
        }
    }
    /* Until the warpgroup's boxes have left shared memory: its first thread knows. */
    VERB void wait_for_stores() const
    {
        if (threadIdx.x % 128 == 0) {
            box_store_wait();
        }
    }

    /* Stores O and what rounding takes from it by any dtype and stride, 32 columns at a time by way of the warp's place
     * in Q. */
    VERB void store_by_rows()
    {
        const int thread = here((int)threadIdx.x) % 128, first = row - thread % 32 / 4;
        const warp_rows<32> rows = {memory.q.tile(tile) + w * T::SLAB + thread / 32 * 16 * 128};
        const int left = at->rows_of_tensor(f.p) - first;
#pragma unroll 1
        for (int c = 0; c < f.p.Dv; c += 32) {
            float part[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                part[i] = O[i];
            }
            rows.put(part);
#pragma unroll 1
            for (int low = 0; low < 2; low++) {
                const ag_tensor &t = low ? f.p.a.o_low : f.p.a.o;
                rows.store({&t, f.p.out_dtype, !low && f.p.a.accumulate & AG_ACC_O},
                           element_at(t, at->s.view, at->h, at->s.q0 + first) + c * t.strides[3], left,
                           min(f.p.Dv - c, 32), low);
            }
#pragma unroll
            for (int i = 0; i + 16 < T::D / 2; i++) {
                O[i] = O[i + 16];
            }
        }
        shared_fence();
    }

    VERB float sum_of_row(int half) const
    {
        if constexpr (has_ones<T>()) {
            return O[T::D / 2 + 2 * half];
        }
        const float l = sum[half] + __shfl_xor_sync(~0u, sum[half], 1);
        return l + __shfl_xor_sync(~0u, l, 2);
    }
    /* O = O' / l; 0 if the row sees nothing or is not there. */
    VERB void store_values()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] = sum_of_row(half);
            factor[half] = sum[half] == 0 ? 0 : (DROPS ? f.x.inverse_keep : 1) / sum[half];
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] *= factor[i / 2 % 2];
        }
        if (at->row + w * 64 + 64 > at->s.n_q) {
#pragma unroll
            for (int i = 0; i < T::D / 2; i++) {
                O[i] = exists(i / 2 % 2) ? O[i] : 0;
            }
        }
        /* Behind the end of a packed sequence the next one begins. */
        const bool cut = f.p.flags & AG_PACKED && at->row + T::ROWS > at->s.n_q;
        if (!f.stores_boxes || cut) {
            store_by_rows();
            return;
        }
        store_boxes<false>(f.o);
        if (f.p.a.o_low.data != nullptr) {
            wait_for_stores();
            named_sync(WARPGROUP + w, 128);
            store_boxes<true>(f.o_low);
        }
    }
};

/* ---- The kernel ---- */

template <class T> VERB void run_forward(const agi_hopper_forward &f)
{
    SHARED_MEMORY(shared);
    const forward_memory<T> memory(shared);
    if (threadIdx.x == 0) {
        memory.init();
    }
    memory.write_ones();
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            forward_producer<T> producer = {f, memory, 0};
            if constexpr (has_mask(T::FEATURES)) {
                producer.run_seen();
            } else {
                producer.run();
            }
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        forward_consumer<T> c(f, memory);
        c.walk();
    }
}

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_forward f)                                  \
    {                                                                                                        \
        run_forward<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f);                                       \
    }
#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_forward f)                          \
    {                                                                                                        \
        run_forward<hopper_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set>>(f);                        \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_forward, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_forward_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
