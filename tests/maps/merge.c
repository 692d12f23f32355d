/* Shards: the sixteen parts of four query shards and four key shards, at their offsets, merged and added up,
 * give the whole in all maps, as in ring attention; parts of the heads and of the batch; single merges of every
 * tensor by the formulas, in place, and of sets without keys; what ag_merge refuses. */
#include "device.h"
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
        CHECK_OK(agc_run_merge(plan_of(r, key_shard), &m));
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
    CHECK_OK(agc_run_map(plan, AG_MAP_FORWARD, &args, whole->workspace, whole->workspace_bytes));
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

/* What ag_merge combines, in the order in which each set of ag_merge_args has it. */
enum output { O, LSE, TO, MU, SO, SMU, STO, NU, OUTPUTS };
static const char *const output_name[OUTPUTS] = {"o", "lse", "to", "mu", "so", "smu", "sto", "nu"};

enum { SETS = 3, RESULT = 2 }; /* two sets of keys, and the result */

struct parts {
    double value[OUTPUTS][SETS][2 * N]; /* of a row statistic the first N are used */
    ag_merge_args m;
    ag_plan *plan;
};

static int channels(enum output x)
{
    return x == O || x == TO || x == SO || x == STO ? 2 : 1;
}

static ag_tensor *tensor_of(struct parts *x, int set, enum output n)
{
    ag_merge_args *m = &x->m;
    ag_tensor *const all[SETS][OUTPUTS] = {
        {&m->o1, &m->lse1, &m->to1, &m->mu1, &m->so1, &m->smu1, &m->sto1, &m->nu1},
        {&m->o2, &m->lse2, &m->to2, &m->mu2, &m->so2, &m->smu2, &m->sto2, &m->nu2},
        {&m->o, &m->lse, &m->to, &m->mu, &m->so, &m->smu, &m->sto, &m->nu}};
    return all[set][n];
}

/* Sets 0 and 1 with some values, and the result filled with NaN; `m` merges the first two into it. */
static void make_parts(struct parts *x)
{
    ag_problem p = AG_PROBLEM_INIT;
    memset(x, 0, sizeof *x);
    x->m.struct_size = sizeof x->m;
    for (enum output n = 0; n < OUTPUTS; n++) {
        for (int set = 0; set < SETS; set++) {
            for (int e = 0; e < 2 * N; e++) {
                const double some = n == LSE ? 3 * sin(2 * e + set) : sin(e + 20 * set + 7 * (int)n);
                x->value[n][set][e] = set == RESULT ? (double)NAN : some;
            }
            *tensor_of(x, set, n) = ag_bhnd(x->value[n][set], 2, 3, channels(n));
        }
    }
    CHECK_OK(ag_problem_parse("h2 q3 k4 d5 dv2 f64", &p));
    test_need(ag_plan_create(&x->plan, &p, NULL) == AG_OK, "no plan to merge with");
}

static void near(double got, double wanted, const char *what, enum output x, int n)
{
    CHECK(got == wanted || fabs(got - wanted) <= 1e-14 * (1 + fabs(wanted)),
          "%s: %s[%d] is %.17g instead of %.17g", what, output_name[x], n, got, wanted);
}

/* The formulas for element c of row i, in long double. */
static void merged_by_formulas(const struct parts *x, int i, int c, long double result[OUTPUTS])
{
    long double v[2][OUTPUTS], w[2];
    for (enum output n = 0; n < OUTPUTS; n++) {
        for (int k = 0; k < 2; k++) {
            v[k][n] = x->value[n][k][channels(n) * i + (channels(n) == 2 ? c : 0)];
        }
        result[n] = 0;
    }
    w[0] = 1 / (1 + expl(v[1][LSE] - v[0][LSE])), w[1] = 1 - w[0];
    result[LSE] = v[0][LSE] - logl(w[0]);
    for (int k = 0; k < 2; k++) {
        result[O] += w[k] * v[k][O];
        result[MU] += w[k] * v[k][MU];
        result[SMU] += w[k] * v[k][SMU];
    }
    for (int k = 0; k < 2; k++) {
        const long double t = v[k][MU] - result[MU], s = v[k][SMU] - result[SMU];
        result[TO] += w[k] * (v[k][TO] + t * v[k][O]);
        result[SO] += w[k] * (v[k][SO] + s * v[k][O]);
        result[NU] += w[k] * (v[k][NU] + t * s);
    }
    for (int k = 0; k < 2; k++) {
        const long double t = v[k][MU] - result[MU], s = v[k][SMU] - result[SMU];
        result[STO] +=
            w[k] * (v[k][STO] + t * v[k][SO] + s * v[k][TO] + (v[k][NU] - result[NU] + t * s) * v[k][O]);
    }
}

static void merges_by_the_formulas(void)
{
    struct parts x, in_place;
    make_parts(&x);
    CHECK_OK(agc_run_merge(x.plan, &x.m));
    for (int e = 0; e < 2 * N; e++) {
        long double wanted[OUTPUTS];
        merged_by_formulas(&x, e / 2, e % 2, wanted);
        for (enum output n = 0; n < OUTPUTS; n++) {
            const int at = channels(n) == 2 ? e : e / 2;
            near(x.value[n][RESULT][at], (double)wanted[n], "by the formulas", n, at);
        }
    }
    make_parts(&in_place);
    for (enum output n = 0; n < OUTPUTS; n++) {
        *tensor_of(&in_place, RESULT, n) = *tensor_of(&in_place, 0, n);
    }
    CHECK_OK(agc_run_merge(in_place.plan, &in_place.m));
    for (enum output n = 0; n < OUTPUTS; n++) {
        const size_t bytes = (size_t)(channels(n) * N) * sizeof(double);
        CHECK(memcmp(in_place.value[n][0], x.value[n][RESULT], bytes) == 0, "in place the bits of %s differ",
              output_name[n]);
    }
    ag_plan_destroy(in_place.plan);
    ag_plan_destroy(x.plan);
}

/* The result must be set `set`, or that of no keys if set is -1. */
static void result_is(const struct parts *x, int set, const char *what)
{
    for (enum output n = 0; n < OUTPUTS; n++) {
        for (int e = 0; e < channels(n) * N; e++) {
            const double empty = n == LSE ? -(double)INFINITY : 0;
            near(x->value[n][RESULT][e], set < 0 ? empty : x->value[n][set][e], what, n, e);
        }
    }
}

/* If one set has lse = -inf, the result is the other set; if both have, zeros. What else such a set holds is not
 * used. */
static void parts_without_keys(void)
{
    for (int empty = 1; empty <= 3; empty++) {
        struct parts x;
        make_parts(&x);
        for (enum output n = 0; n < OUTPUTS; n++) {
            for (int e = 0; e < 2 * 2 * N; e++) {
                if (empty >> e % 2 & 1) {
                    x.value[n][e % 2][e / 2] = n == LSE ? -(double)INFINITY : (double)NAN;
                }
            }
        }
        CHECK_OK(agc_run_merge(x.plan, &x.m));
        result_is(&x, empty == 3 ? -1 : empty == 1, "with a set without keys");
        ag_plan_destroy(x.plan);
    }
}

/* Weights whose logarithms differ by 2e4: no overflow, the larger set is the result. */
static void parts_far_apart(void)
{
    for (int larger = 0; larger < 2; larger++) {
        struct parts x;
        make_parts(&x);
        for (int e = 0; e < N; e++) {
            x.value[LSE][larger][e] = 1e4;
            x.value[LSE][!larger][e] = -1e4;
        }
        CHECK_OK(agc_run_merge(x.plan, &x.m));
        result_is(&x, larger, "sets far apart");
        ag_plan_destroy(x.plan);
    }
}

/* ---- Refusals ----------------------------------------------------------------------------------- */

/* The merge is refused with a message about one tensor and the name of a field, and writes nothing. */
static void refuse(struct parts *x, const char *what, const char *name, const char *field)
{
    const struct parts before = *x;
    const ag_status status = ag_merge(x->plan, &x->m, NULL);
    CHECK(status == AG_INVALID_ARGUMENT, "%s of %s: %s", what, name, ag_status_string(status));
    CHECK(strstr(ag_last_message(), name) != NULL, "%s: '%s' does not name %s", what, ag_last_message(),
          name);
    CHECK(strcmp(ag_last_field(), field) == 0, "%s: the field is '%s' instead of '%s'", what, ag_last_field(),
          field);
    CHECK(memcmp(before.value, x->value, sizeof x->value) == 0, "%s of %s: something was written", what,
          name);
}

/* Of the tangents, too: all of an order or none, and none without the order before. */
static void pointers(struct parts *x)
{
    const ag_merge_args good = x->m;
    for (int set = 0; set < SETS; set++) {
        for (enum output n = 0; n < OUTPUTS; n++) {
            ag_tensor *t = tensor_of(x, set, n);
            char name[8];
            snprintf(name, sizeof name, "%s%s", output_name[n], set == 0 ? "1" : set == 1 ? "2" : "");
            t->data = (char *)t->data + 4;
            refuse(x, "a misaligned pointer", name, name);
            x->m = good;
            t->data = NULL;
            refuse(x, "a missing pointer", name, name);
            x->m = good;
        }
    }
}

/* An output may lie exactly over the tensor of its own name in set 1, and nowhere else. The field is the first of two
 * outputs that overlap. */
static void overlaps(struct parts *x, enum output n)
{
    const char *name = output_name[n];
    const ag_merge_args good = x->m;
    ag_tensor *out = tensor_of(x, RESULT, n);
    for (int set = 0; set < SETS; set++) {
        for (enum output other = 0; other < OUTPUTS; other++) {
            if (other != n || set == 1) {
                out->data = tensor_of(x, set, other)->data;
                const char *first = output_name[set == RESULT && other < n ? other : n];
                refuse(x, "an output that is another tensor", name, first);
                x->m = good;
            }
        }
        if (set != RESULT) {
            const ag_tensor *t = tensor_of(x, set, n);
            out->data = (double *)t->data + t->strides[2];
            refuse(x, "an output that partly overlaps an input", name, name);
            x->m = good;
        }
    }
    out->strides[2] = 0;
    refuse(x, "a zero stride", name, name);
    x->m = good;
}

static void refusals(void)
{
    struct parts x;
    make_parts(&x);
    const ag_merge_args good = x.m;
    CHECK_STATUS(ag_merge(NULL, &x.m, NULL), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_merge(x.plan, NULL, NULL), AG_INVALID_ARGUMENT);
    x.m.reserved = 5;
    refuse(&x, "a value in reserved", "reserved", "reserved");
    x.m = good;
    pointers(&x);
    for (enum output n = 0; n < OUTPUTS; n++) {
        overlaps(&x, n);
    }
    for (enum output n = OUTPUTS; n-- > TO;) { /* from the second tangents down to the tangents */
        for (int set = 0; set < SETS; set++) {
            tensor_of(&x, set, n)->data = NULL;
        }
        if (n == SO || n == TO) {
            CHECK_OK(agc_run_merge(x.plan, &x.m));
        }
    }
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
    return test_maps_summary();
}
