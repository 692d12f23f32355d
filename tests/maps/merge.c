/* Shards: the sixteen parts of four query shards and four key shards, at their offsets, merged and added up,
 * give the whole in all maps, as in ring attention; parts of the heads and of the batch; parts without
 * keys; what ag_merge refuses. */
#include "outputs.h"

#include <math.h>

enum { SHARDS = 4, ROWS = 4 }; /* the whole has SHARDS * ROWS queries and keys */

/* ---- One shard of the tensors ------------------------------------------------------------------- */

static int is_by_keys(enum tensor t)
{
    return agc_tensor_info[t].shape == SHAPE_K || agc_tensor_info[t].shape == SHAPE_V;
}

/* The view of one shard in a tensor of the whole. */
static ag_tensor shard_of(struct arrays *whole, enum tensor t, int64_t query_shard, int64_t key_shard)
{
    ag_tensor view = *agc_arrays_tensor(whole, t);
    const enum tensor_shape shape = agc_tensor_info[t].shape;
    int64_t first = 0;
    if (view.data == NULL) {
        return view;
    }
    if (shape <= SHAPE_ROW) {
        first = (is_by_keys(t) ? key_shard : query_shard) * ROWS * view.strides[2];
    } else if (shape == SHAPE_BIAS || shape == SHAPE_MASK) {
        first = (whole->size[t][2] > 1 ? query_shard * ROWS * view.strides[2] : 0) +
                (whole->size[t][3] > 1 ? key_shard * ROWS * view.strides[3] : 0);
    }
    view.data = (char *)view.data + first * (int64_t)element_size(whole, t);
    return view;
}

/* The ring: the whole, which it must reproduce; the sum of the shards; and the outputs of one part. A sink belongs to
 * the parts of the first key shard. */
struct ring {
    struct arrays whole, sum, part;
    ag_plan *with_sink, *without_sink;
};

static int has_sink(const struct ring *r, int64_t key_shard)
{
    return (r->whole.p->flags & AG_SINK) != 0 && key_shard == 0;
}

static const ag_plan *plan_of(const struct ring *r, int64_t key_shard)
{
    return has_sink(r, key_shard) ? r->with_sink : r->without_sink;
}

static ag_args shard_args(struct ring *r, int64_t query_shard, int64_t key_shard)
{
    ag_args args = r->whole.args;
    args.q_offset += query_shard * ROWS;
    args.k_offset += key_shard * ROWS;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        struct arrays *from = agc_tensor_info[t].role == ROLE_OUTPUT ? &r->sum : &r->whole;
        ag_tensor *to = (ag_tensor *)(void *)((char *)&args + agc_tensor_info[t].offset);
        *to = shard_of(from, t, query_shard, key_shard);
        if (agc_tensor_info[t].shape == SHAPE_SINK && !has_sink(r, key_shard)) {
            to->data = NULL;
        }
    }
    return args;
}

/* ---- The maps over the ring ---------------------------------------------------------------- */

/* forward (with_tangents 0) or jvp of one query shard: the first part is computed in place, the others
 * separately, and merged into it. */
static void merge_keys(struct ring *r, int64_t query_shard, int with_tangents)
{
    const int map = with_tangents ? 2 : 0;
    ag_args args = shard_args(r, query_shard, 0);
    CHECK_OK(call_map(map, plan_of(r, 0), &args, NULL, r->part.workspace, r->part.workspace_bytes));
    for (int64_t key_shard = 1; key_shard < SHARDS; key_shard++) {
        const ag_args sum = shard_args(r, query_shard, key_shard);
        ag_merge_args m = {.struct_size = sizeof m,
                           .o1 = sum.o,
                           .lse1 = sum.lse,
                           .o = sum.o,
                           .lse = sum.lse,
                           .o2 = r->part.args.o,
                           .lse2 = r->part.args.lse};
        if (with_tangents) {
            m.to1 = m.to = sum.to;
            m.mu1 = m.mu = sum.mu;
            m.to2 = r->part.args.to;
            m.mu2 = r->part.args.mu;
        }
        args = sum;
        args.o = r->part.args.o;
        args.lse = r->part.args.lse;
        args.to = r->part.args.to;
        args.mu = r->part.args.mu;
        CHECK_OK(
            call_map(map, plan_of(r, key_shard), &args, NULL, r->part.workspace, r->part.workspace_bytes));
        CHECK_OK(ag_merge(plan_of(r, key_shard), &m, NULL));
    }
}

/* vjp or vjp_jvp of all parts, each of which accumulates the gradients of its queries, keys and biases. */
static void add_gradients(struct ring *r, int map)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&r->sum, t, map_bit[map])) {
            memset(r->sum.data[t], 0, tensor_bytes(&r->sum, t));
        }
    }
    for (int64_t query_shard = 0; query_shard < SHARDS; query_shard++) {
        for (int64_t key_shard = 0; key_shard < SHARDS; key_shard++) {
            ag_args args = shard_args(r, query_shard, key_shard);
            args.accumulate = 0x3ffff;
            CHECK_OK(call_map(map, plan_of(r, key_shard), &args, NULL, r->part.workspace,
                              r->part.workspace_bytes));
        }
    }
}

static void compare(const struct ring *r, uint32_t maps, double allowed, const char *text)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (!is_output(&r->whole, t, maps)) {
            continue;
        }
        double *wanted = test_read(&r->whole, t), *got = test_read(&r->sum, t);
        for (int64_t n = 0; n < r->whole.count[t]; n++) {
            const int same =
                got[n] == wanted[n] || fabs(got[n] - wanted[n]) <= allowed * (1 + fabs(wanted[n]));
            CHECK(same, "'%s': %s element %d is %.17g of the shards, %.17g of the whole", text,
                  agc_tensor_info[t].name, (int)n, got[n], wanted[n]);
        }
        free(wanted);
        free(got);
    }
}

static ag_plan *shard_plan(const struct arrays *whole, int sink)
{
    ag_plan *plan = NULL;
    ag_problem p = whole->given;
    p.q_len = p.kv_len = ROWS;
    for (int axis = 2; axis < 4; axis++) {
        p.bias_size[axis] = p.bias_size[axis] > 1 ? ROWS : 1;
        p.mask_size[axis] = p.mask_size[axis] > 1 ? ROWS : 1;
    }
    if (!sink) {
        p.flags &= ~(uint32_t)AG_SINK;
    }
    test_need(ag_plan_create(&plan, &p, NULL) == AG_OK, "no plan for a shard");
    return plan;
}

static void check_ring(const char *text, double allowed)
{
    struct ring r;
    make_arrays(&r.whole, text, NULL, 201);
    make_arrays(&r.sum, text, NULL, 201);
    r.with_sink = shard_plan(&r.whole, (r.whole.p->flags & AG_SINK) != 0);
    r.without_sink = shard_plan(&r.whole, 0);
    test_need(agc_arrays_create(&r.part, ag_plan_problem(r.with_sink), NULL, 1) == AG_OK &&
                  agc_arrays_add_second_direction(&r.part) == AG_OK,
              "no arrays for a part");
    CHECK_OK(agc_arrays_run_all(&r.whole));
    for (int with_tangents = 0; with_tangents < 2; with_tangents++) {
        for (int64_t query_shard = 0; query_shard < SHARDS; query_shard++) {
            merge_keys(&r, query_shard, with_tangents);
        }
        compare(&r, with_tangents ? AG_MAP_JVP : AG_MAP_FORWARD, allowed, text);
    }
    add_gradients(&r, 1);
    add_gradients(&r, 3);
    memcpy(r.sum.data[T_SMU], r.whole.data[T_SMU], tensor_bytes(&r.sum, T_SMU));
    add_gradients(&r, 4);
    compare(&r, AG_MAP_VJP | AG_MAP_VJP_JVP | AG_MAP_JVP_JVP, allowed, text);
    ag_plan_destroy(r.with_sink);
    ag_plan_destroy(r.without_sink);
    agc_arrays_destroy(&r.part);
    agc_arrays_destroy(&r.sum);
    agc_arrays_destroy(&r.whole);
}

/* ---- Shards of heads and batch ------------------------------------------------------------------ */

/* Head h and sequence b alone, with their indices as offsets: slopes and dropout are those of the whole. */
static void one_head_of_one_sequence(struct arrays *whole, int64_t b, int64_t h)
{
    ag_plan *plan = NULL;
    ag_problem p = whole->given;
    ag_args args = whole->args;
    double o[16 * 3] = {0}, lse[16] = {0};
    p.batch = p.heads = p.kv_heads = 1;
    p.head_offset = h;
    p.alibi_slopes += h;
    args.batch_offset = b;
    args.o = ag_bhnd(o, 1, 16, 3);
    args.lse = ag_bhnd(lse, 1, 16, 1);
    args.q.data = (double *)whole->data[T_Q] + agc_arrays_index(whole, T_Q, b, h, 0, 0);
    args.k.data = (double *)whole->data[T_K] + agc_arrays_index(whole, T_K, b, h / 2, 0, 0);
    args.v.data = (double *)whole->data[T_V] + agc_arrays_index(whole, T_V, b, h / 2, 0, 0);
    test_need(ag_plan_create(&plan, &p, NULL) == AG_OK, "no plan for one head");
    CHECK_OK(ag_forward(plan, &args, NULL, whole->workspace, whole->workspace_bytes));
    for (int64_t n = 0; n < 16 * 3; n++) {
        const double wanted = agc_arrays_f64(whole, T_O)[agc_arrays_index(whole, T_O, b, h, n / 3, n % 3)];
        CHECK(fabs(o[n] - wanted) <= 1e-14 * (1 + fabs(wanted)),
              "sequence %d, head %d, O[%d] is %.17g instead of %.17g", (int)b, (int)h, (int)n, o[n], wanted);
    }
    ag_plan_destroy(plan);
}

static void heads_and_batch(void)
{
    struct arrays x;
    make_arrays(&x, "b2 h4 kv2 q16 k16 d5 dv3 f64 causal dropout=0.4 alibi=slopes", NULL, 203);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    for (int64_t n = 0; n < 8; n++) {
        one_head_of_one_sequence(&x, n / 4, n % 4);
    }
    agc_arrays_destroy(&x);
}

/* ---- Single merges ------------------------------------------------------------------------------ */

enum { N = 6 }; /* rows of b1 h2 q3, with two channels each */

struct parts {
    double o[3][2 * N], lse[3][N], to[3][2 * N], mu[3][N];
    ag_merge_args m;
    ag_plan *plan;
};

static const char *const names[] = {"o1",  "lse1", "to1", "mu1", "o2", "lse2",
                                    "to2", "mu2",  "o",   "lse", "to", "mu"};

static ag_tensor *tensor_of(struct parts *x, int n)
{
    ag_tensor *const all[] = {&x->m.o1,  &x->m.lse1, &x->m.to1, &x->m.mu1, &x->m.o2, &x->m.lse2,
                              &x->m.to2, &x->m.mu2,  &x->m.o,   &x->m.lse, &x->m.to, &x->m.mu};
    return all[n];
}

/* Parts 0 and 1 with some values, and 2, for the result, filled with NaN; `m` merges 0 and 1 into 2. */
static void make_parts(struct parts *x)
{
    ag_problem p = AG_PROBLEM_INIT;
    for (int part = 0; part < 3; part++) {
        for (int n = 0; n < 2 * N; n++) {
            x->o[part][n] = part == 2 ? (double)NAN : sin(n + 20 * part);
            x->to[part][n] = part == 2 ? (double)NAN : cos(n + 30 * part);
        }
        for (int n = 0; n < N; n++) {
            x->lse[part][n] = part == 2 ? (double)NAN : 3 * sin(2 * n + part);
            x->mu[part][n] = part == 2 ? (double)NAN : cos(3 * n + part);
        }
    }
    x->m = (ag_merge_args){.struct_size = sizeof x->m};
    for (int part = 0; part < 3; part++) {
        *tensor_of(x, 4 * part) = ag_bhnd(x->o[part], 2, 3, 2);
        *tensor_of(x, 4 * part + 1) = ag_bhnd(x->lse[part], 2, 3, 1);
        *tensor_of(x, 4 * part + 2) = ag_bhnd(x->to[part], 2, 3, 2);
        *tensor_of(x, 4 * part + 3) = ag_bhnd(x->mu[part], 2, 3, 1);
    }
    x->plan = NULL;
    CHECK_OK(ag_problem_parse("h2 q3 k4 d5 dv2 f64", &p));
    test_need(ag_plan_create(&x->plan, &p, NULL) == AG_OK, "no plan to merge with");
}

static void near(double got, double wanted, const char *name, int n)
{
    CHECK(got == wanted || fabs(got - wanted) <= 1e-14 * (1 + fabs(wanted)),
          "%s[%d] is %.17g instead of %.17g", name, n, got, wanted);
}

/* Row by row against the formulas, in long double. */
static void check_formulas(const struct parts *x)
{
    for (int i = 0; i < N; i++) {
        const long double w1 = 1 / (1 + expl((long double)x->lse[1][i] - x->lse[0][i])), w2 = 1 - w1;
        const long double mu = w1 * x->mu[0][i] + w2 * x->mu[1][i];
        near(x->lse[2][i], (double)(x->lse[0][i] - logl(w1)), "lse", i);
        near(x->mu[2][i], (double)mu, "mu", i);
        for (int n = 2 * i; n < 2 * i + 2; n++) {
            near(x->o[2][n], (double)(w1 * x->o[0][n] + w2 * x->o[1][n]), "o", n);
            near(x->to[2][n],
                 (double)(w1 * (x->to[0][n] + (x->mu[0][i] - mu) * x->o[0][n]) +
                          w2 * (x->to[1][n] + (x->mu[1][i] - mu) * x->o[1][n])),
                 "to", n);
        }
    }
}

static void merges_by_the_formulas(void)
{
    struct parts x, in_place;
    make_parts(&x);
    CHECK_OK(ag_merge(x.plan, &x.m, NULL));
    check_formulas(&x);
    make_parts(&in_place);
    in_place.m.o = in_place.m.o1;
    in_place.m.lse = in_place.m.lse1;
    in_place.m.to = in_place.m.to1;
    in_place.m.mu = in_place.m.mu1;
    CHECK_OK(ag_merge(in_place.plan, &in_place.m, NULL));
    CHECK(memcmp(in_place.o[0], x.o[2], sizeof x.o[2]) == 0 &&
              memcmp(in_place.lse[0], x.lse[2], sizeof x.lse[2]) == 0 &&
              memcmp(in_place.to[0], x.to[2], sizeof x.to[2]) == 0 &&
              memcmp(in_place.mu[0], x.mu[2], sizeof x.mu[2]) == 0,
          "in place the bits differ");
    ag_plan_destroy(in_place.plan);
    ag_plan_destroy(x.plan);
}

/* If one part has lse = -inf, the result is the other part; if both have, zeros. What else such a part holds is not
 * used. */
static void parts_without_keys(void)
{
    for (int empty = 1; empty <= 3; empty++) {
        struct parts x;
        make_parts(&x);
        for (int part = 0; part < 2; part++) {
            for (int n = 0; (empty >> part & 1) && n < 2 * N; n++) {
                x.o[part][n] = x.to[part][n] = (double)NAN;
                x.lse[part][n / 2] = -INFINITY;
                x.mu[part][n / 2] = (double)NAN;
            }
        }
        CHECK_OK(ag_merge(x.plan, &x.m, NULL));
        const int other = empty == 1;
        for (int n = 0; n < 2 * N; n++) {
            near(x.o[2][n], empty == 3 ? 0 : x.o[other][n], "o with an empty part", n);
            near(x.to[2][n], empty == 3 ? 0 : x.to[other][n], "to with an empty part", n);
            near(x.lse[2][n / 2], empty == 3 ? -(double)INFINITY : x.lse[other][n / 2],
                 "lse with an empty part", n / 2);
            near(x.mu[2][n / 2], empty == 3 ? 0 : x.mu[other][n / 2], "mu with an empty part", n / 2);
        }
        ag_plan_destroy(x.plan);
    }
}

/* Weights whose logarithms differ by 2e4: no overflow, the larger part is the result. */
static void parts_far_apart(void)
{
    struct parts x;
    make_parts(&x);
    for (int n = 0; n < N; n++) {
        x.lse[0][n] = 1e4;
        x.lse[1][n] = -1e4;
    }
    CHECK_OK(ag_merge(x.plan, &x.m, NULL));
    for (int n = 0; n < N; n++) {
        near(x.lse[2][n], 1e4, "lse of parts far apart", n);
        near(x.mu[2][n], x.mu[0][n], "mu of parts far apart", n);
        near(x.o[2][2 * n], x.o[0][2 * n], "o of parts far apart", 2 * n);
        near(x.to[2][2 * n], x.to[0][2 * n], "to of parts far apart", 2 * n);
    }
    ag_plan_destroy(x.plan);
}

/* ---- Refusals ----------------------------------------------------------------------------------- */

static void refuse(struct parts *x, const char *what, const char *name)
{
    const struct parts before = *x;
    const ag_status status = ag_merge(x->plan, &x->m, NULL);
    CHECK(status == AG_INVALID_ARGUMENT, "%s of %s: %s", what, name, ag_status_string(status));
    CHECK(strstr(ag_last_message(), name) != NULL, "%s: '%s' does not name %s", what, ag_last_message(),
          name);
    CHECK(memcmp(before.o, x->o, sizeof x->o) == 0 && memcmp(before.lse, x->lse, sizeof x->lse) == 0 &&
              memcmp(before.to, x->to, sizeof x->to) == 0 && memcmp(before.mu, x->mu, sizeof x->mu) == 0,
          "%s of %s: something was written", what, name);
}

static void refusals(void)
{
    struct parts x;
    make_parts(&x);
    const ag_merge_args good = x.m;
    CHECK_STATUS(ag_merge(NULL, &x.m, NULL), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_merge(x.plan, NULL, NULL), AG_INVALID_ARGUMENT);
    x.m.reserved = 5;
    refuse(&x, "a value in reserved", "reserved");
    for (int n = 0; n < 12; n++) {
        x.m = good;
        tensor_of(&x, n)->data = NULL; /* of the tangents too: all six or none */
        refuse(&x, "a missing pointer", names[n]);
        x.m = good;
        tensor_of(&x, n)->data = (char *)tensor_of(&x, n)->data + 4;
        refuse(&x, "a misaligned pointer", names[n]);
    }
    for (int out = 8; out < 12; out++) {
        for (int other = 0; other < 12; other++) {
            if (other != out && other != out - 8) {
                x.m = good;
                tensor_of(&x, out)->data = tensor_of(&x, other)->data;
                refuse(&x, "an output that is another tensor", names[out]);
            }
        }
        for (int set = 0; set < 2;
             set++) { /* not exactly over set 1, but one row further, and the same in set 2 */
            x.m = good;
            const ag_tensor *t = tensor_of(&x, out - 8 + 4 * set);
            tensor_of(&x, out)->data = (double *)t->data + t->strides[2];
            refuse(&x, "an output that partly overlaps an input", names[out]);
        }
        x.m = good;
        tensor_of(&x, out)->strides[2] = 0;
        refuse(&x, "a zero stride", names[out]);
    }
    x.m = good;
    x.m.to1.data = x.m.mu1.data = x.m.to2.data = x.m.mu2.data = x.m.to.data = x.m.mu.data = NULL;
    CHECK_OK(ag_merge(x.plan, &x.m, NULL));
    ag_plan_destroy(x.plan);
}

int main(void)
{
    check_ring("b2 h4 kv2 q16 k16 d5 dv3 f64 causal dropout=0.2 table=6 alibi sink", 1e-12);
    check_ring("b2 h4 kv2 q16 k16 d5 dv3 f64 causal dropout=0.2 table=6,4,shared alibi=slopes sink softcap=2",
               1e-12);
    /* Rows that see no key of the part that has the sink, but keys of other parts. */
    check_ring("b2 h2 q16 k16 d4 f64 causal window=5,0 sink", 1e-12);
    check_ring("b2 h2 q16 k16 d4 f64 window=5,2 dropout=0.3 bias mask sink", 1e-12);
    check_ring("b2 h2 q16 k16 d4 f64 window=3,0 bias=b1q1 mask=1h1k table=3", 1e-12);
    check_ring("b2 h2 q16 k16 d4 f32 causal sink dropout=0.1", 1e-5);
    heads_and_batch();
    merges_by_the_formulas();
    parts_without_keys();
    parts_far_apart();
    refusals();
    return test_summary();
}
