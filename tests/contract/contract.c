/* What every field means: compares O and L of forward with their definition, written out here a second time,
 * pair by pair, from the contract and not from the library's source. Other tests compare derivatives with
 * finite differences of forward, so together they determine all maps. */
#include "feature_pairs.h"
#include "check/bounds.h"

#include <math.h>

static const double LIMIT = 1e-13; /* relative to the bounds of bounds.h */

/* One query row: sequence b, head h, row i. */
struct row {
    const struct arrays *x;
    int64_t b, h, i;
    int64_t position; /* p_i = i + q_offset, shifted by n_k - n_q for bottom-right alignment */
};

static int visible(const struct row *r, int64_t j)
{
    const ag_problem *p = r->x->p;
    int64_t key = j + agc_arrays_k_offset(r->x, r->b);
    if ((p->flags & AG_CAUSAL) && key > r->position) {
        return 0;
    }
    if (p->flags & AG_WINDOW) {
        int too_early = p->window_left != -1 && r->position - key > p->window_left;
        int too_late = p->window_right != -1 && key - r->position > p->window_right;
        if (too_early || too_late) {
            return 0;
        }
    }
    const uint8_t *mask = r->x->data[T_MASK];
    return mask == NULL || mask[agc_arrays_index(r->x, T_MASK, r->b, r->h, r->i, j)] != 0;
}

/* 2^(-8 (h + 1) / H) for H a power of two; else the slopes of the largest power n below H, then every
 * other slope of 2 n, from the first. */
static double default_slope(int64_t h, int64_t heads)
{
    int64_t n = 1;
    while (2 * n <= heads) {
        n *= 2;
    }
    return h < n ? pow(2, -8.0 * (double)(h + 1) / (double)n)
                 : pow(2, -8.0 * (double)(2 * (h - n) + 1) / (double)(2 * n));
}

/* bias + table + ALiBi */
static double bias(const struct row *r, int64_t j)
{
    const struct arrays *x = r->x;
    int64_t distance = j + agc_arrays_k_offset(x, r->b) - r->position, R = x->p->table_radius;
    double sum = 0;
    if (x->data[T_BIAS] != NULL) {
        sum += agc_arrays_f64(x, T_BIAS)[agc_arrays_index(x, T_BIAS, r->b, r->h, r->i, j)];
    }
    if (x->data[T_TABLE] != NULL) {
        int64_t column = R + (distance > R ? R : distance < -R ? -R : distance);
        column = x->buckets != NULL ? x->buckets[column] : column;
        sum += agc_arrays_f64(x, T_TABLE)[agc_arrays_index(x, T_TABLE, 0, r->h, 0, column)];
    }
    if (x->p->flags & (AG_ALIBI | AG_SLOPES)) {
        double slope = x->slopes != NULL ? x->slopes[r->h] : default_slope(r->h, x->p->heads);
        sum -= slope * fabs((double)distance);
    }
    return sum;
}

/* c tanh(scale q.k / c) + bias */
static double score(const struct row *r, int64_t j)
{
    const struct arrays *x = r->x;
    int64_t group = x->p->heads / x->p->kv_heads;
    const double *q = agc_arrays_f64(x, T_Q) + agc_arrays_index(x, T_Q, r->b, r->h, r->i, 0);
    const double *k = agc_arrays_f64(x, T_K) + agc_arrays_index(x, T_K, r->b, r->h / group, j, 0);
    double scale = x->p->flags & AG_SCALE ? x->given.scale : 1 / sqrt((double)x->p->dim_qk);
    double dot = 0;
    for (int64_t c = 0; c < x->p->dim_qk; c++) {
        dot += q[c] * k[c];
    }
    double z = scale * dot, cap = x->p->softcap;
    return (cap > 0 ? cap * tanh(z / cap) : z) + bias(r, j);
}

/* Philox 4x32, ten rounds. */
static uint32_t philox_word(uint64_t seed, const uint32_t counter[4], int word)
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
    }
    return c[word];
}

/* M_ij: 0 or 1 / (1 - p) */
static double dropout_factor(const struct row *r, int64_t j)
{
    const struct arrays *x = r->x;
    double p = x->p->dropout;
    int64_t key = j + agc_arrays_k_offset(x, r->b);
    const uint32_t counter[4] = {(uint32_t)(key / 4), (uint32_t)r->position,
                                 (uint32_t)(r->h + x->p->head_offset),
                                 (uint32_t)(r->b + x->args.batch_offset)};
    uint32_t word = philox_word(x->args.seed, counter, (int)(key % 4));
    return p == 0 ? 1 : word < (uint32_t)floor(p * 4294967296.0) ? 0 : 1 / (1 - p);
}

/* O_i = sum_j exp(S_ij - L_i) M_ij V_j and L_i = log(sum_j exp(S_ij) + exp(s)); o holds zeros. */
static double define_row(const struct row *r, double *o)
{
    const struct arrays *x = r->x;
    int64_t group = x->p->heads / x->p->kv_heads;
    double sum = x->data[T_SINK] != NULL ? exp(agc_arrays_f64(x, T_SINK)[r->h]) : 0;
    for (int64_t j = 0; j < agc_arrays_k_length(x, r->b); j++) {
        double weight = visible(r, j) ? exp(score(r, j)) : 0;
        const double *v = agc_arrays_f64(x, T_V) + agc_arrays_index(x, T_V, r->b, r->h / group, j, 0);
        sum += weight;
        for (int64_t c = 0; c < x->p->dim_v; c++) {
            o[c] += weight * dropout_factor(r, j) * v[c];
        }
    }
    for (int64_t c = 0; c < x->p->dim_v && sum > 0; c++) {
        o[c] /= sum;
    }
    return sum > 0 ? log(sum) : -INFINITY;
}

/* Every row of O and L; rows of no sequence are 0 and minus infinity. */
static void define_forward(const struct arrays *x, double *o, double *lse)
{
    for (int64_t n = 0; n < x->count[T_O]; n++) {
        o[n] = 0;
    }
    for (int64_t n = 0; n < x->count[T_LSE]; n++) {
        lse[n] = -INFINITY;
    }
    for (int64_t n = 0; n < x->p->batch * x->p->heads; n++) {
        struct row r = {x, n / x->p->heads, n % x->p->heads, 0, 0};
        int64_t shift = agc_arrays_k_length(x, r.b) - agc_arrays_q_length(x, r.b);
        for (r.i = 0; r.i < agc_arrays_q_length(x, r.b); r.i++) {
            r.position =
                r.i + agc_arrays_q_offset(x, r.b) + (x->p->align == AG_ALIGN_BOTTOM_RIGHT ? shift : 0);
            lse[agc_arrays_index(x, T_LSE, r.b, r.h, r.i, 0)] =
                define_row(&r, o + agc_arrays_index(x, T_O, r.b, r.h, r.i, 0));
        }
    }
}

static void compare(struct arrays *x, ag_check_report *results)
{
    struct bounds bounds;
    double *o = test_alloc(x->count[T_O], sizeof *o), *lse = test_alloc(x->count[T_LSE], sizeof *lse);
    test_need(agc_bounds_of(&bounds, x) == AG_OK, "no memory");
    define_forward(x, o, lse);
    struct worst worst_o = WORST_NONE, worst_lse = WORST_NONE;
    agc_note_differences(&worst_o, &bounds, T_O, agc_arrays_f64(x, T_O), o, x->count[T_O]);
    agc_note_differences(&worst_lse, &bounds, T_LSE, agc_arrays_f64(x, T_LSE), lse, x->count[T_LSE]);
    agc_results_add_worst(results, x, &worst_o, LIMIT, "o");
    agc_results_add_worst(results, x, &worst_lse, LIMIT, "lse");
    free(o);
    free(lse);
}

static void test(const ag_check_case *s)
{
    struct arrays x;
    ag_check_report results = {.count = 0};
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1;
    if (!CHECK_OK(agc_arrays_of_case(&x, s, &options))) {
        return;
    }
    ag_status status = agc_arrays_run(&x, AG_MAP_FORWARD);
    if (status == AG_OK) {
        compare(&x, &results);
    }
    features_report(s, "", status, &results);
    agc_arrays_destroy(&x);
}

int main(void)
{
    printf("%d problems\n", features_each(&small_pairs, test));
    for (int n = 0; n < test_count(2000); n++) {
        ag_check_case s;
        ag_check_random(&s, 40, (uint64_t)n, AG_CHECK_SMALL);
        s.problem.dtype = AG_F64;
        s.problem.out_dtype = s.problem.grad_dtype = s.problem.aux_dtype = 0;
        test(&s);
    }
    return test_summary();
}
