/* Tests of the AMX table: the stages that work on score tiles. */
#include "kernels_amx_operands_tmpl.c"

/* Relative errors of rounded weights, and of sums of exact ones. */
#define AMX_WEIGHT_ERROR (0x1p-8 + 1e-4)
#define AMX_SUM_ERROR 1e-4

/* ---- The queued scores, which a stage interleaves with its own work ---- */

struct amx_queued {
    amx_queue next;
    amx_config caller;
    struct guarded rows[MAX_BLOCKS], columns[MAX_BLOCKS], T[MAX_BLOCKS];
};

/* Blocks of any depth, even 0, in one or the other half of a panel. */
static void draw_amx_queued(struct rng *r, struct amx_queued *b)
{
    b->next.n = agc_rng_range(r, 0, MAX_BLOCKS);
    b->next.prefetch = (const char *)b; /* any address may be prefetched */
    b->next.prefetch_end = b->next.prefetch + 64 * agc_rng_range(r, 0, MAX_PREFETCH_LINES);
    for (int64_t n = 0; n < b->next.n; n++) {
        amx_block2x2 *const block = &b->next.blocks[n];
        block->depth = agc_rng_range(r, 0, 6);
        block->ld = AMX_DEPTH * (block->depth + agc_rng_range(r, 0, 2));
        block->query_stride = AMX_AB * (block->depth + agc_rng_range(r, 0, 2));
        b->rows[n] = random_bf16(r, 31 * block->ld + AMX_DEPTH * block->depth);
        b->columns[n] = random_bf16(r, block->query_stride + AMX_AB * block->depth);
        b->T[n] = random_floats(r, GROUP_KEYS * PANEL, -1, 1);
        block->keys = bf16_of(&b->rows[n]);
        block->queries = bf16_of(&b->columns[n]);
        block->T = floats_of(&b->T[n]) + 32 * agc_rng_range(r, 0, 1);
        for (int64_t at = 0; at < GROUP_KEYS * PANEL; at++) { /* to see where nothing is written */
            floats_of(&b->T[n])[at] = 1e9F;
        }
    }
    agi_amx_table.begin(&b->caller);
}

static void check_amx_queued(struct amx_queued *b, const char *what)
{
    struct faults faults = {0};
    agi_amx_table.end(&b->caller);
    for (int64_t n = 0; n < b->next.n; n++) {
        const amx_block2x2 *const block = &b->next.blocks[n];
        const int64_t first = block->T - floats_of(&b->T[n]);
        for (int64_t e = 0; e < GROUP_KEYS * PANEL; e++) {
            const int64_t j = e / PANEL, i = e % PANEL - first;
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < AMX_DEPTH * block->depth; k++) {
                const int64_t tile = i / 16 * block->query_stride + k / 32 * AMX_AB,
                              pair = k % 32 / 2 * 32 + i % 16 * 2 + k % 2;
                const bool inside = i >= 0 && i < 32;
                const double term =
                    inside ? bf16_at(block->keys, j * block->ld + k) * bf16_at(block->queries, tile + pair)
                           : 0;
                sum += term;
                magnitude += fabs(term);
            }
            const bool inside = i >= 0 && i < 32;
            expect_near(&faults, e, (double)floats_of(&b->T[n])[e], inside ? sum : (double)1e9F,
                        1.1e-6 * magnitude);
        }
    }
    report(&faults, what);
    for (int64_t n = 0; n < b->next.n; n++) {
        check_and_free(&b->rows[n], what);
        check_and_free(&b->columns[n], what);
        check_and_free(&b->T[n], what);
    }
}

static void check_amx_score_blocks(struct rng *r)
{
    struct amx_queued b;
    draw_amx_queued(r, &b);
    agi_amx_table.score_blocks(&b.next);
    check_amx_queued(&b, "score_blocks");
}

/* ---- Stages ---- */

/* excess: the sum of the rounded weights of a lane minus that of the exact ones, which is l's. */
static double vnni_sum(const uint16_t *vnni, int64_t i)
{
    double sum = 0;
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        sum += bf16_at(vnni, vnni_index(j, i));
    }
    return sum;
}

/* Scores in base 2, some masked; some lanes see no key (blind), some have seen none yet (fresh). */
static void draw_amx_lanes(struct rng *r, float *scores, float *m, float *l)
{
    for (int64_t i = 0; i < PANEL; i++) {
        const bool fresh = agc_rng_chance(r, 0.3), blind = agc_rng_chance(r, 0.1);
        const double level = agc_rng_chance(r, 0.3) ? 40 * agc_rng_uniform(r) : 0;
        m[i] = fresh ? -INFINITY : (float)(10 * agc_rng_uniform(r) - 5);
        l[i] = fresh ? 0 : (float)(1 + 50 * agc_rng_uniform(r));
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const double t = level + 12 * agc_rng_uniform(r) - 8;
            scores[j * PANEL + i] = blind || agc_rng_chance(r, 0.1) ? -INFINITY : (float)t;
        }
    }
}

static void check_amx_softmax(struct rng *r)
{
    const int64_t W = 32 * agc_rng_range(r, 1, PANEL / 32);
    const float c = (float)(0.5 + agc_rng_uniform(r));
    float m[2][PANEL], l[2][PANEL], excess[PANEL], alpha[PANEL];
    struct guarded scores = guarded_alloc(GROUP_KEYS * PANEL, 4), vnni = guarded_alloc(W / 16 * AMX_AB, 2);
    struct faults weights = {0}, sums = {0}, rounded_sums = {0}, factors = {0};
    bool wanted = false;
    draw_amx_lanes(r, floats_of(&scores), m[0], l[0]);
    memcpy(m[1], m[0], sizeof m[0]);
    memcpy(l[1], l[0], sizeof l[0]);
    for (int64_t i = 0; i < PANEL; i++) {
        excess[i] = -l[0][i] / 512;
    }
    const bool rescaled =
        agi_amx_table.softmax(bf16_of(&vnni), floats_of(&scores), W, c, m[1], l[1], excess, alpha);
    for (int64_t i = 0; i < W; i++) {
        const double before = (double)m[0][i], after = (double)m[1][i], shift = isinf(after) ? 0 : after;
        const double factor = after == before ? 1 : exp2(before - after);
        const double alpha_error = isinf(before) ? 0 : 3e-7 * (1 + fabs(before - after));
        double sum = (double)l[0][i] * factor;
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const double p = exp2((double)c * (double)floats_of(&scores)[j * PANEL + i] - shift);
            CHECK(p < 0x1p9, "amx softmax: a weight of %g with its shift", p);
            expect_near(&weights, j * W + i, bf16_at(bf16_of(&vnni), vnni_index(j, i)), p,
                        AMX_WEIGHT_ERROR * p);
            sum += p;
        }
        wanted |= after != before && !isinf(before);
        expect_near(&factors, i, (double)alpha[i], factor, factor == 1 ? 0 : alpha_error * factor);
        expect_near(&sums, i, (double)l[1][i], sum, AMX_SUM_ERROR * sum);
        const double rounded = (1 - 1.0 / 512) * (double)l[0][i] * factor + vnni_sum(bf16_of(&vnni), i);
        expect_near(&rounded_sums, i, (double)l[1][i] + (double)excess[i], rounded, 1e-6 * (rounded + sum));
    }
    report(&rounded_sums, "softmax: l + excess");
    report(&weights, "softmax: weights");
    report(&factors, "softmax: alpha");
    report(&sums, "softmax: l");
    CHECK(rescaled == wanted, "amx softmax says %d, lanes that had seen a key moved: %d", rescaled, wanted);
    CHECK(memcmp(m[0] + W, m[1] + W, (size_t)(PANEL - W) * sizeof(float)) == 0, "amx softmax: lanes after W");
    check_and_free(&scores, "softmax");
    check_and_free(&vnni, "softmax");
}

/* A group's scores and a band; some lanes for which m has to move. */
struct band_trial {
    int64_t low, high;
    bool moves; /* a lane has seen no key before, or has too large a weight inside the band */
    float m[PANEL], l[PANEL], excess[PANEL];
    struct guarded scores;
};

static bool in_band(const struct band_trial *t, int64_t j, int64_t i)
{
    return t->low <= j - i && j - i <= t->high;
}

/* Scores outside the band are NaN or like those inside. */
static void draw_band_lanes(struct rng *r, struct band_trial *t)
{
    for (int64_t i = 0; i < PANEL; i++) {
        t->m[i] = (float)agc_rng_range(r, 0, 512) / 256;
        t->excess[i] = (float)agc_rng_uniform(r) / 512;
        t->l[i] = (float)agc_rng_uniform(r);
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const bool nan = !in_band(t, j, i) && (i + j) % 3 == 0;
            floats_of(&t->scores)[j * PANEL + i] = nan ? NAN : (float)(4 * agc_rng_uniform(r) - 2);
        }
    }
}

static void draw_band_trial(struct rng *r, struct band_trial *t)
{
    t->low = agc_rng_chance(r, 0.5) ? -1000000 : agc_rng_range(r, -80, 40);
    t->high = agc_rng_chance(r, 0.3) ? 1000000 : agc_rng_range(r, t->low < -80 ? -80 : t->low, 120);
    t->moves = false;
    t->scores = guarded_alloc(GROUP_KEYS * PANEL, sizeof(float));
    draw_band_lanes(r, t);
    if (agc_rng_chance(r, 0.3)) { /* a large weight at one key, which may be masked */
        const int64_t i = agc_rng_range(r, 0, PANEL - 1), j = agc_rng_range(r, 0, GROUP_KEYS - 1);
        floats_of(&t->scores)[j * PANEL + i] = t->m[i] + 9;
        t->moves = in_band(t, j, i);
    }
    if (agc_rng_chance(r, 0.2)) {
        t->m[agc_rng_range(r, 0, PANEL - 1)] = -INFINITY;
        t->moves = true;
    }
}

/* Weights, l and excess are those of softmax, with minus infinity outside the band. */
static void compare_with_softmax(struct band_trial *t, const uint16_t *got, const float *l,
                                 const float *excess)
{
    struct guarded wanted = guarded_alloc(PANEL / 16 * AMX_AB, sizeof(uint16_t));
    struct faults weights = {0}, sums = {0};
    float alpha[PANEL];
    for (int64_t n = 0; n < GROUP_KEYS * PANEL; n++) {
        float *const score = &floats_of(&t->scores)[n];
        *score = in_band(t, n / PANEL, n % PANEL) ? *score : -INFINITY;
    }
    agi_amx_table.softmax(bf16_of(&wanted), floats_of(&t->scores), PANEL, 1, t->m, t->l, t->excess, alpha);
    for (int64_t n = 0; n < PANEL / 16 * AMX_AB; n++) {
        expect_near(&weights, n, got[n], bf16_of(&wanted)[n], 0);
    }
    for (int64_t i = 0; i < PANEL; i++) {
        expect_near(&sums, i, (double)l[i], (double)t->l[i], 0);
        expect_near(&sums, i, (double)excess[i], (double)t->excess[i], 0);
    }
    report(&weights, "weights: weights");
    report(&sums, "weights: l or excess");
    check_and_free(&wanted, "weights");
}

/* The weights of softmax inside the band, zeros outside, whatever the scores are there, and the sum of those inside.
 * Nothing is added if m has to move. */
static void check_amx_weights(struct rng *r)
{
    struct band_trial t;
    struct amx_queued queued;
    struct guarded got = guarded_alloc(PANEL / 16 * AMX_AB, sizeof(uint16_t));
    float l[PANEL], excess[PANEL];
    draw_band_trial(r, &t);
    memcpy(l, t.l, sizeof l);
    memcpy(excess, t.excess, sizeof excess);
    draw_amx_queued(r, &queued);
    const bool done = agi_amx_table.weights(bf16_of(&got), floats_of(&t.scores), 1, t.low, t.high, t.m, l,
                                            excess, &queued.next);
    check_amx_queued(&queued, "weights: scores of the next group");
    CHECK(done == !t.moves, "amx weights says %d, m would have to move: %d", done, t.moves);
    CHECK(done || (memcmp(l, t.l, sizeof l) == 0 && memcmp(excess, t.excess, sizeof excess) == 0),
          "amx weights adds to the sums without being done");
    if (done) {
        compare_with_softmax(&t, bf16_of(&got), l, excess);
    }
    check_and_free(&t.scores, "weights");
    check_and_free(&got, "weights");
}

/* Weights and their tangents if m stays; nothing is added if it would have to move. */
static void check_amx_softmax_tangent(struct rng *r)
{
    const int64_t W = PANEL, moving = agc_rng_chance(r, 0.3) ? agc_rng_range(r, 0, W - 1) : -1;
    struct amx_queued b;
    const float c = (float)(0.5 + agc_rng_uniform(r)), scale = (float)(0.5 + agc_rng_uniform(r));
    struct guarded scores = random_floats(r, GROUP_KEYS * PANEL, -10, 2),
                   score_tangents = random_floats(r, GROUP_KEYS * PANEL, -2, 2);
    struct guarded m_per_lane = random_floats(r, PANEL, 0, 2), r_per_lane = random_floats(r, PANEL, -1, 1);
    struct guarded vnni = guarded_alloc(W / 16 * AMX_AB, 2), t_vnni = guarded_alloc(W / 16 * AMX_AB, 2);
    float l[PANEL], a[PANEL], excess[PANEL] = {0}, t_excess[PANEL] = {0};
    struct faults weights = {0}, tangents = {0}, sums = {0}, rounded_sums = {0};
    for (int64_t i = 0; i < PANEL; i++) {
        l[i] = (float)i;
        a[i] = (float)-i;
    }
    if (moving >= 0) {
        floats_of(&m_per_lane)[moving] = agc_rng_chance(r, 0.5) ? -INFINITY : -10;
    }
    draw_amx_queued(r, &b);
    const bool done = agi_amx_table.softmax_tangent(
        bf16_of(&vnni), bf16_of(&t_vnni), floats_of(&scores), floats_of(&score_tangents), c, scale,
        floats_of(&m_per_lane), l, excess, floats_of(&r_per_lane), a, t_excess, &b.next);
    check_amx_queued(&b, "softmax_tangent: scores of the next group");
    CHECK(done == (moving < 0), "amx softmax_tangent says %d, lane %d would have to move", done, (int)moving);
    for (int64_t i = 0; i < W; i++) {
        double sum = (double)i, tangent = (double)-i, magnitude = 1;
        for (int64_t j = 0; j < GROUP_KEYS && done; j++) {
            const int64_t at = j * PANEL + i;
            const double p =
                exp2((double)c * (double)floats_of(&scores)[at] - (double)floats_of(&m_per_lane)[i]);
            const double u = p * ((double)scale * (double)floats_of(&score_tangents)[at] -
                                  (double)floats_of(&r_per_lane)[i]);
            expect_near(&weights, at, bf16_at(bf16_of(&vnni), vnni_index(j, i)), p, AMX_WEIGHT_ERROR * p);
            expect_near(&tangents, at, bf16_at(bf16_of(&t_vnni), vnni_index(j, i)), u,
                        AMX_WEIGHT_ERROR * fabs(u) + 1e-6 * p);
            sum += p;
            tangent += u;
            magnitude += p + fabs(u);
        }
        expect_near(&sums, i, (double)l[i], sum, AMX_SUM_ERROR * (magnitude + sum));
        expect_near(&sums, i, (double)a[i], tangent, AMX_SUM_ERROR * (magnitude + sum));
        const double rounded = done ? vnni_sum(bf16_of(&vnni), i) : 0,
                     t_rounded = done ? vnni_sum(bf16_of(&t_vnni), i) : 0, error = 1e-6 * (magnitude + sum);
        expect_near(&rounded_sums, i, (double)l[i] + (double)excess[i], (double)i + rounded, error);
        expect_near(&rounded_sums, i, (double)a[i] + (double)t_excess[i], (double)-i + t_rounded, error);
    }
    report(&rounded_sums, "softmax_tangent: sums of rounded weights");
    report(&weights, "softmax_tangent: weights");
    report(&tangents, "softmax_tangent: their tangents");
    report(&sums, "softmax_tangent: sums");
    struct guarded *const arrays[] = {&scores, &score_tangents, &m_per_lane, &r_per_lane, &vnni, &t_vnni};
    for (int n = 0; n < 6; n++) {
        check_and_free(arrays[n], "softmax_tangent");
    }
}

static void check_amx_gradients(struct rng *r)
{
    const int64_t W = 32, tile_stride = PANEL / 32 * AMX_AB;
    const float c = (float)(0.5 + agc_rng_uniform(r));
    struct guarded scores = random_floats(r, GROUP_KEYS * PANEL, -10, 2),
                   dP = random_floats(r, GROUP_KEYS * PANEL, -2, 2);
    struct guarded L_per_lane = random_floats(r, PANEL, 3, 9), D_per_lane = random_floats(r, PANEL, -1, 1);
    struct guarded weights_out = guarded_alloc(2 * tile_stride, 2), dS = guarded_alloc(2 * tile_stride, 2),
                   vnni = guarded_alloc(W / 16 * AMX_AB, 2);
    struct faults weights = {0}, gradients = {0}, in_vnni = {0};
    agi_amx_table.gradients(bf16_of(&weights_out), bf16_of(&dS), tile_stride, bf16_of(&vnni),
                            floats_of(&scores), floats_of(&dP), c, floats_of(&L_per_lane),
                            floats_of(&D_per_lane));
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < W; i++) {
            const int64_t at = j * PANEL + i;
            const double p =
                exp2((double)c * (double)floats_of(&scores)[at] - (double)floats_of(&L_per_lane)[i]);
            const double ds = p * ((double)floats_of(&dP)[at] - (double)floats_of(&D_per_lane)[i]);
            const double error = AMX_WEIGHT_ERROR * fabs(ds) + 1e-6 * p;
            expect_near(&weights, at, bf16_at(bf16_of(&weights_out), split16_index(j, i, tile_stride)), p,
                        AMX_WEIGHT_ERROR * p);
            expect_near(&gradients, at, bf16_at(bf16_of(&dS), split16_index(j, i, tile_stride)), ds, error);
            expect_near(&in_vnni, at, bf16_at(bf16_of(&vnni), vnni_index(j, i)), ds, error);
        }
    }
    report(&weights, "gradients: P");
    report(&gradients, "gradients: dS");
    report(&in_vnni, "gradients: VNNI of dS");
    struct guarded *const arrays[] = {&scores, &dP, &L_per_lane, &D_per_lane, &weights_out, &dS, &vnni};
    for (int n = 0; n < 7; n++) {
        check_and_free(arrays[n], "gradients");
    }
}

/* The arguments of gradient_tangents: S, dP, U, tdP, then per lane L, mu, D, tD; R, dS, tR, tdS by rows; tdS, dS in
 * VNNI. */
struct tangent_trial {
    float c, scale;
    struct guarded in[8], rows[4], vnni[2];
};

static void draw_tangent_trial(struct rng *r, struct tangent_trial *t, int64_t tile_stride)
{
    t->c = (float)(0.5 + agc_rng_uniform(r));
    t->scale = (float)(0.5 + agc_rng_uniform(r));
    for (int n = 0; n < 8; n++) {
        const double lowest = n == 0 ? -10 : n == 4 ? 3 : -2;
        t->in[n] = random_floats(r, n < 4 ? GROUP_KEYS * PANEL : PANEL, lowest, n == 4 ? 9 : 2);
    }
    for (int n = 0; n < 4; n++) {
        t->rows[n] = guarded_alloc(2 * tile_stride, sizeof(uint16_t));
    }
    for (int n = 0; n < 2; n++) {
        t->vnni[n] = guarded_alloc(2 * AMX_AB, sizeof(uint16_t));
    }
}

static void release_tangent_trial(struct tangent_trial *t)
{
    for (int n = 0; n < 8; n++) {
        check_and_free(&t->in[n], "gradient_tangents");
    }
    for (int n = 0; n < 4; n++) {
        check_and_free(&t->rows[n], "gradient_tangents");
    }
    for (int n = 0; n < 2; n++) {
        check_and_free(&t->vnni[n], "gradient_tangents");
    }
}

/* R, dS, tR and tdS of key j and lane i. */
static void tangents_wanted(const struct tangent_trial *t, int64_t j, int64_t i, double wanted[4])
{
    double x[4], at_lane[4];
    for (int n = 0; n < 4; n++) {
        x[n] = (double)floats_of(&t->in[n])[j * PANEL + i];
        at_lane[n] = (double)floats_of(&t->in[4 + n])[i];
    }
    const double p = exp2((double)t->c * x[0] - at_lane[0]), e = x[1] - at_lane[2];
    const double w = (double)t->scale * x[2] - at_lane[1];
    wanted[0] = p;
    wanted[1] = p * e;
    wanted[2] = p * w;
    wanted[3] = p * (w * e + x[3] - at_lane[3]);
}

static void compare_tangents(const struct tangent_trial *t, int64_t tile_stride)
{
    struct faults wrong_rows = {0}, wrong_vnni = {0};
    for (int64_t at = 0; at < GROUP_KEYS * 32; at++) {
        const int64_t j = at / 32, i = at % 32;
        double wanted[4];
        tangents_wanted(t, j, i, wanted);
        for (int n = 0; n < 4; n++) {
            const double error = AMX_WEIGHT_ERROR * fabs(wanted[n]) + 1e-5 * wanted[0];
            const uint16_t *const rows = bf16_of(&t->rows[n]);
            expect_near(&wrong_rows, at, bf16_at(rows, split16_index(j, i, tile_stride)), wanted[n], error);
            if (n % 2 == 1) { /* tdS, n = 3, is the first in VNNI, dS, n = 1, the second */
                const uint16_t *const vnni = bf16_of(&t->vnni[n == 1]);
                expect_near(&wrong_vnni, at, bf16_at(vnni, vnni_index(j, i)), wanted[n], error);
            }
        }
    }
    report(&wrong_rows, "gradient_tangents: rows");
    report(&wrong_vnni, "gradient_tangents: VNNI");
}

static void check_amx_gradient_tangents(struct rng *r)
{
    const int64_t tile_stride = 2 * AMX_AB;
    struct tangent_trial t;
    struct amx_queued queued;
    draw_tangent_trial(r, &t, tile_stride);
    const float *const scores[4] = {floats_of(&t.in[0]), floats_of(&t.in[1]), floats_of(&t.in[2]),
                                    floats_of(&t.in[3])};
    uint16_t *const rows[4] = {bf16_of(&t.rows[0]), bf16_of(&t.rows[1]), bf16_of(&t.rows[2]),
                               bf16_of(&t.rows[3])};
    uint16_t *const vnni[2] = {bf16_of(&t.vnni[0]), bf16_of(&t.vnni[1])};
    draw_amx_queued(r, &queued);
    agi_amx_table.gradient_tangents(rows, tile_stride, vnni, scores, t.c, t.scale, floats_of(&t.in[4]),
                                    floats_of(&t.in[5]), floats_of(&t.in[6]), floats_of(&t.in[7]),
                                    &queued.next);
    check_amx_queued(&queued, "gradient_tangents: scores of the next group");
    compare_tangents(&t, tile_stride);
    release_tangent_trial(&t);
}
