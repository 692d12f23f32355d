/* The contract of the sharded maps, with threads as ranks: failures that all ranks report alike, before anything is
 * written; timeout, ranks that wait for one that computes, cancelling, the same bits twice, accumulating, what is sent
 * and the size of the workspace. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "mpi/plan.h"
#include "shards.h"
#include "slow_rank.h"
#include "test.h"
#include "thread_ranks.h"

#include <math.h>

enum { RANKS = 3 };

static void make_arrays(struct arrays *x, const char *text)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1;
    test_need(ag_problem_parse(text, &p) == AG_OK && agc_arrays_create(x, &p, &options, 5) == AG_OK &&
                  agc_arrays_add_second_direction(x) == AG_OK,
              text);
}

static ag_mpi_options ring_options(const ag_options *plan, ag_mpi_way way)
{
    ag_mpi_options o = AG_MPI_OPTIONS_INIT;
    o.way = way;
    o.plan = plan;
    o.timeout_s = 60;
    return o;
}

/* ---- A wrong argument on one rank ---- */

enum wrong {
    WRONG_Q,
    WRONG_ALIGNMENT,
    WRONG_LENGTH,
    WRONG_WORKSPACE,
    WRONG_SEED,
    WRONG_TENSOR,
    WRONG_ACCUMULATE,
    WRONG_BIAS,
    WRONG_STRUCT,
    WRONG_COUNT
};

static const struct {
    const char *field;
    ag_status status;
} expected[WRONG_COUNT] = {
    [WRONG_Q] = {"q", AG_INVALID_ARGUMENT},
    [WRONG_ALIGNMENT] = {"v", AG_INVALID_ARGUMENT},
    [WRONG_LENGTH] = {"kv_lengths", AG_INVALID_ARGUMENT},
    [WRONG_WORKSPACE] = {"workspace", AG_WORKSPACE},
    [WRONG_SEED] = {"seed", AG_INVALID_ARGUMENT},
    [WRONG_TENSOR] = {"tk", AG_INVALID_ARGUMENT},
    [WRONG_ACCUMULATE] = {"accumulate", AG_INVALID_ARGUMENT},
    [WRONG_BIAS] = {"bias", AG_INVALID_ARGUMENT},
    [WRONG_STRUCT] = {"args", AG_INVALID_ARGUMENT},
};

static void spoil(struct shard *s, enum wrong wrong, int64_t *lengths)
{
    switch (wrong) {
    case WRONG_Q: s->args.q.data = NULL; break;
    case WRONG_ALIGNMENT: s->args.v.data = (char *)s->args.v.data + 1; break;
    case WRONG_LENGTH:
        lengths[0] = s->x->p->kv_len + 1;
        s->args.kv_lengths = lengths;
        break;
    case WRONG_WORKSPACE: s->bytes = 10; break;
    case WRONG_SEED: s->args.seed++; break;
    case WRONG_TENSOR: s->args.tk.data = NULL; break;
    case WRONG_ACCUMULATE: s->args.accumulate = AG_ACC_TO; break;
    case WRONG_BIAS: s->args.bias.data = NULL; break;
    default: s->args.struct_size = 1; break;
    }
}

struct wrong_trial {
    const struct arrays *x;
    ag_mpi_way way;
    int32_t bad;
};

static void check_wrong(struct shard *s, const struct wrong_trial *trial, int32_t rank, enum wrong wrong)
{
    int64_t lengths[4] = {0};
    char name[16];
    const struct shard kept = *s;
    memset(s->data[T_TO], 0x11, 8);
    if (rank == trial->bad) {
        spoil(s, wrong, lengths);
    }
    const ag_status status = ag_mpi_jvp(s->plan, &s->args, NULL, s->workspace, s->bytes);
    CHECK_INT(status, expected[wrong].status);
    CHECK(strcmp(ag_mpi_last_field(), expected[wrong].field) == 0, "field '%s' instead of '%s': %s",
          ag_mpi_last_field(), expected[wrong].field, ag_mpi_last_message());
    snprintf(name, sizeof name, "rank %d", (int)trial->bad);
    CHECK(strstr(ag_mpi_last_message(), name) != NULL || wrong >= WRONG_SEED, "%s is not named: %s", name,
          ag_mpi_last_message());
    CHECK(((const unsigned char *)s->data[T_TO])[0] == 0x11, "an output was written");
    *s = kept;
}

static void wrong_rank(const agi_mpi_transport *t, void *arg)
{
    const struct wrong_trial *trial = arg;
    const ag_mpi_options options = ring_options(NULL, trial->way);
    ag_mpi_plan *plan = NULL;
    struct shard s;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &trial->x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, trial->x));
    for (enum wrong wrong = 0; wrong < WRONG_COUNT; wrong++) {
        check_wrong(&s, trial, t->rank, wrong);
    }
    CHECK(shard_run_all(&s) == AG_OK, "after the failures: %s", ag_mpi_last_message()); /* still usable */
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void wrong_arguments(void)
{
    struct arrays x;
    make_arrays(&x, "b2 h2 q13 k17 d4 f32 bias=11qk dropout=0.1");
    for (int32_t bad = 0; bad < RANKS; bad++) {
        struct wrong_trial trial = {&x, AG_MPI_RING_KEYS, bad};
        on_thread_ranks(RANKS, wrong_rank, &trial);
        trial.way = AG_MPI_ALL_TO_ALL;
        on_thread_ranks(RANKS, wrong_rank, &trial);
    }
    agc_arrays_destroy(&x);
}

/* ---- A wrong output on one rank ---- */

enum wrong_output {
    DBIAS_AT_BIAS,
    DBIAS_AT_DK,
    DBIAS_AT_DQ,
    DBIAS_WITHOUT_STRIDES,
    DQ_AT_BIAS,
    DBIAS_AT_WORKSPACE,
    WRONG_OUTPUTS
};

/* Of two outputs that overlap, the first one is named. */
static const char *const wrong_fields[WRONG_OUTPUTS] = {"dbias", "dk", "dq", "dbias", "dq", "dbias"};

static void spoil_output(struct shard *s, enum wrong_output wrong)
{
    ag_args *a = &s->args;
    switch (wrong) {
    case DBIAS_AT_BIAS: a->dbias.data = a->bias.data; break;
    case DBIAS_AT_DK: a->dbias.data = a->dk.data; break;
    case DBIAS_AT_DQ: a->dbias.data = a->dq.data; break;
    case DBIAS_WITHOUT_STRIDES: memset(a->dbias.strides, 0, sizeof a->dbias.strides); break;
    case DQ_AT_BIAS: a->dq.data = a->bias.data; break;
    default: a->dbias.data = s->workspace; break;
    }
}

static void wrong_output_rank(const agi_mpi_transport *t, void *arg)
{
    const struct wrong_trial *trial = arg;
    const ag_mpi_options options = ring_options(NULL, trial->way);
    ag_mpi_plan *plan = NULL;
    struct shard s;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &trial->x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, trial->x));
    for (enum wrong_output wrong = 0; wrong < WRONG_OUTPUTS; wrong++) {
        const struct shard kept = s;
        memset(s.data[T_DV], 0x11, 8);
        if (t->rank == trial->bad) {
            spoil_output(&s, wrong);
        }
        CHECK_INT(ag_mpi_vjp(plan, &s.args, NULL, s.workspace, s.bytes), AG_INVALID_ARGUMENT);
        CHECK(strcmp(ag_mpi_last_field(), wrong_fields[wrong]) == 0 &&
                  strstr(ag_mpi_last_message(), "rank 1: ") != NULL,
              "output %d: field '%s': %s", (int)wrong, ag_mpi_last_field(), ag_mpi_last_message());
        CHECK(((const unsigned char *)s.data[T_DV])[0] == 0x11, "an output was written");
        s = kept;
    }
    CHECK(shard_run_all(&s) == AG_OK, "after the failures: %s", ag_mpi_last_message());
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void wrong_outputs(void)
{
    static const char *const texts[] = {"b2 h2 q13 k17 d4 f32 bias=bh1k", "b2 h2 q13 k17 d4 f32 bias=11qk",
                                        "b2 h2 q13 k17 d4 f32 packed=20,24 bias=11qk"};
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        struct arrays x;
        make_arrays(&x, texts[n]);
        for (ag_mpi_way way = AG_MPI_RING_KEYS; way <= AG_MPI_ALL_TO_ALL; way++) {
            struct wrong_trial trial = {&x, way, 1};
            if (way != AG_MPI_RING_QUERIES || n == 0) { /* not with a bias that has rows */
                on_thread_ranks(RANKS, wrong_output_rank, &trial);
            }
        }
        agc_arrays_destroy(&x);
    }
}

/* ---- A wrong problem on one rank ---- */

struct wrong_plan {
    ag_problem good, bad;
    ag_mpi_options bad_options;
    const char *field;
    ag_status status;
};

static void wrong_plan_rank(const agi_mpi_transport *t, void *arg)
{
    const struct wrong_plan *trial = arg;
    const ag_mpi_options options = ring_options(NULL, AG_MPI_AUTO);
    const bool bad = t->rank == 1;
    ag_mpi_plan *plan = NULL;
    const ag_status status =
        agi_mpi_plan_create(&plan, bad ? &trial->bad : &trial->good, t, bad ? &trial->bad_options : &options);
    CHECK(plan == NULL, "a plan was made");
    CHECK_INT(status, trial->status);
    CHECK(strcmp(ag_mpi_last_field(), trial->field) == 0 && strstr(ag_mpi_last_message(), "rank 1") != NULL,
          "field %s: %s", ag_mpi_last_field(), ag_mpi_last_message());
    ag_mpi_plan_destroy(plan);
}

static void wrong_plans(void)
{
    struct wrong_plan trial = {.good = AG_PROBLEM_INIT};
    CHECK_OK(ag_problem_parse("h4 q20 d8 f32 causal", &trial.good));
    const struct {
        const char *text, *field;
        ag_status status;
        ag_mpi_layout layout;
        int32_t way;
    } cases[] = {{"h4 q21 d8 f32 causal", "q_len", AG_INVALID_PROBLEM, AG_MPI_ZIGZAG, 0},
                 {"h4 q20 d8 f64 causal", "dtype", AG_INVALID_PROBLEM, AG_MPI_ZIGZAG, 0},
                 {"h4 q20 d8 f32", "flags", AG_INVALID_PROBLEM, AG_MPI_ZIGZAG, 0},
                 {"h4 q20 d8 f32 causal", "options.layout", AG_INVALID_PROBLEM, AG_MPI_CONTIGUOUS, 0},
                 {"h4 q20 d8 f32 causal", "options.way", AG_INVALID_PROBLEM, AG_MPI_ZIGZAG, 9}};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        trial.bad = (ag_problem)AG_PROBLEM_INIT;
        CHECK_OK(ag_problem_parse(cases[n].text, &trial.bad));
        trial.bad_options = ring_options(NULL, cases[n].way);
        trial.bad_options.layout = cases[n].layout;
        trial.field = cases[n].field;
        trial.status = cases[n].status;
        on_thread_ranks(RANKS, wrong_plan_rank, &trial);
    }
    trial.bad = trial.good;
    trial.bad.kv_heads = 3;
    trial.bad_options = ring_options(NULL, AG_MPI_AUTO);
    trial.field = "kv_heads";
    trial.status = AG_INVALID_PROBLEM;
    on_thread_ranks(RANKS, wrong_plan_rank, &trial);

    trial.bad = trial.good;
    trial.bad_options.timeout_s = 61;
    trial.field = "options.timeout_s";
    on_thread_ranks(RANKS, wrong_plan_rank, &trial);

    const ag_options cuda = {.struct_size = sizeof cuda, .backend = AG_BACKEND_CUDA};
    trial.bad_options = ring_options(NULL, AG_MPI_AUTO);
    trial.bad_options.plan = &cuda;
    trial.field = "options.plan.backend";
    trial.status = AG_UNSUPPORTED;
    on_thread_ranks(RANKS, wrong_plan_rank, &trial);
}

/* ---- Timeout ---- */

static void timeout_rank(const agi_mpi_transport *t, void *arg)
{
    const struct arrays *x = arg;
    ag_mpi_options options = ring_options(NULL, AG_MPI_RING_KEYS);
    ag_mpi_plan *plan = NULL;
    struct shard s;
    options.timeout_s = 2;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, x));
    const double start = agi_mpi_seconds();
    CHECK_INT(shard_run(&s, AG_MAP_VJP), AG_TIMEOUT);
    CHECK(agi_mpi_seconds() - start < 30, "the timeout took %g s", agi_mpi_seconds() - start);
    CHECK(strstr(ag_mpi_last_message(), "timeout_s") != NULL, "%s", ag_mpi_last_message());
    const double again = agi_mpi_seconds();
    CHECK_INT(shard_run(&s, AG_MAP_FORWARD), AG_TIMEOUT);
    CHECK(agi_mpi_seconds() - again < 1.5, "the plan waited again");
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void timeouts(void)
{
    struct arrays x;
    make_arrays(&x, "h2 q24 d8 f32 causal");
    CHECK_OK(agc_arrays_run_all(&x));
    /* Creating the plan takes 2 sends of a rank, agreeing on the call 2 more: rank 1 falls silent there, and later. */
    for (int32_t after = 3; after < 8; after += 2) {
        thread_ranks_silence(1, after);
        on_thread_ranks(RANKS, timeout_rank, &x);
    }
    thread_ranks_silence(-1, -1);
    agc_arrays_destroy(&x);
}

/* The last rank has the only head. */
static void slow_task(const agi_mpi_transport *t, void *arg)
{
    const struct arrays *x = arg;
    ag_mpi_options options = ring_options(NULL, AG_MPI_ALL_TO_ALL);
    struct slow_rank slow = {0};
    const bool is_slow = t->rank == RANKS - 1;
    const ag_exec exec = slow_exec(&slow);
    ag_mpi_plan *plan = NULL;
    struct shard s;
    options.timeout_s = SLOW_TIMEOUT_S;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, x));
    CHECK(ag_mpi_forward(plan, &s.args, is_slow ? &exec : NULL, s.workspace, s.bytes) == AG_OK, "rank %d: %s",
          (int)t->rank, ag_mpi_last_message());
    CHECK_INT(slow.naps, is_slow ? SLOW_NAPS : 0);
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

/* One head on three ranks: two of them wait longer than timeout_s for the one that computes. */
static void slow_but_alive(void)
{
    struct arrays x;
    make_arrays(&x, "h1 q8000 d64 f32");
    on_thread_ranks(RANKS, slow_task, &x);
    agc_arrays_destroy(&x);
}

/* ---- Cancelling ---- */

static int32_t cancel(void *ctx)
{
    return *(const int32_t *)ctx == 1;
}

struct cancel_trial {
    const struct arrays *x;
    ag_mpi_way way;
};

static void cancel_rank(const agi_mpi_transport *t, void *arg)
{
    const struct cancel_trial *trial = arg;
    const ag_mpi_options options = ring_options(NULL, trial->way);
    int32_t rank = t->rank;
    const ag_exec exec = {.struct_size = sizeof exec, .ctx = &rank, .poll = cancel};
    ag_mpi_plan *plan = NULL;
    struct shard s;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &trial->x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, trial->x));
    CHECK_INT(ag_mpi_forward(plan, &s.args, &exec, s.workspace, s.bytes), AG_CANCELLED);
    CHECK(strstr(ag_mpi_last_message(), "rank 1") != NULL, "%s", ag_mpi_last_message());
    CHECK(shard_run_all(&s) == AG_OK, "after cancelling: %s", ag_mpi_last_message());
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void cancelling(void)
{
    struct cancel_trial trial;
    struct arrays x;
    make_arrays(&x, "h3 q40 d8 f32 causal");
    trial.x = &x;
    for (trial.way = AG_MPI_RING_KEYS; trial.way <= AG_MPI_ALL_TO_ALL; trial.way++) {
        on_thread_ranks(RANKS, cancel_rank, &trial);
    }
    agc_arrays_destroy(&x);
}

/* ---- The same bits ---- */

struct bits_trial {
    const struct arrays *x;
    struct arrays *y;
    ag_mpi_options options;
};

static void bits_rank(const agi_mpi_transport *t, void *arg)
{
    struct bits_trial *trial = arg;
    ag_mpi_plan *plan = NULL;
    struct shard s;
    if (CHECK_OK(agi_mpi_plan_create(&plan, &trial->x->given, t, &trial->options))) {
        CHECK_OK(shard_create(&s, plan, t->rank, trial->x));
        CHECK(shard_run_all(&s) == AG_OK, "%s", ag_mpi_last_message());
        shard_collect(&s, trial->y, t->rank == 0);
        shard_destroy(&s);
    }
    ag_mpi_plan_destroy(plan);
}

static void same_bits(const struct arrays *a, const struct arrays *b, int only_rows, const char *label)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (a->data[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT &&
            (!only_rows || agc_tensor_info[t].shape <= SHAPE_ROW)) {
            CHECK(memcmp(a->data[t], b->data[t], (size_t)a->count[t] * agc_element_size(a, t)) == 0,
                  "%s: the bits of %s differ", label, agc_tensor_info[t].name);
        }
    }
}

/* Two runs, on 1 and on 2 threads; with AG_INVARIANT, all-to-all also against one process. */
static void bits_of_way(const struct arrays *x, ag_mpi_way way, int32_t ranks, uint32_t flags)
{
    struct arrays y[2];
    char label[64];
    snprintf(label, sizeof label, "way %d on %d ranks, flags %u", (int)way, (int)ranks, (unsigned)flags);
    for (int n = 0; n < 2; n++) {
        ag_options plan = AG_OPTIONS_INIT;
        plan.threads = 1 + n;
        plan.flags = flags;
        if (!CHECK_OK(agc_arrays_clone_as(&y[n], x, x->given.dtype, &plan))) {
            return;
        }
        struct bits_trial trial = {x, &y[n], ring_options(&plan, way)};
        on_thread_ranks(ranks, bits_rank, &trial);
    }
    same_bits(&y[0], &y[1], 0, label);
    if (way == AG_MPI_ALL_TO_ALL && flags == AG_INVARIANT) {
        same_bits(&y[0], x, 1, "all-to-all and one process");
    }
    agc_arrays_destroy(&y[0]);
    agc_arrays_destroy(&y[1]);
}

static void bits(void)
{
    static const char *const texts[] = {
        "b2 h8 kv4 q150 k170 d16 dv12 f32 causal window=100,-1 softcap=4 dropout=0.2 table=9 sink",
        "b2 h4 q130 d16 bf16 causal sink",
        "b3 h4 q60 k50 d8 f16 packed=150,120 alibi",
        "b2 h4 kv2 q70 k60 d8 f32 causal bias=bh1k mask=b11k",
        "b2 h4 kv2 q70 k60 d8 f32 causal bias=bhqk mask=b1qk",
    };
    const size_t last =
        sizeof texts / sizeof texts[0] - 1; /* its queries cannot travel: bias and mask have rows */
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        ag_problem p = AG_PROBLEM_INIT;
        ag_options options = AG_OPTIONS_INIT;
        struct arrays x;
        options.flags = AG_INVARIANT;
        test_need(ag_problem_parse(texts[n], &p) == AG_OK &&
                      agc_arrays_create(&x, &p, &options, 6) == AG_OK &&
                      agc_arrays_add_second_direction(&x) == AG_OK,
                  texts[n]);
        CHECK_OK(agc_arrays_run_all(&x));
        for (ag_mpi_way way = AG_MPI_RING_KEYS; way <= AG_MPI_ALL_TO_ALL; way++) {
            for (int32_t ranks = 2; ranks <= 4 && (way != AG_MPI_RING_QUERIES || n < last); ranks += 2) {
                bits_of_way(&x, way, ranks, 0);
                bits_of_way(&x, way, ranks, AG_INVARIANT);
            }
        }
        agc_arrays_destroy(&x);
    }
}

/* ---- Accumulating, and AG_GIVEN_O ---- */

struct add_trial {
    const struct arrays *x;
    ag_mpi_way way;
};

/* An output of a second run that adds to the first is twice the first, to rounding. */
static void check_twice(const struct shard *s, enum tensor t, const double *once, int64_t count)
{
    const double *twice = s->data[t];
    for (int64_t n = 0; n < count; n++) {
        if (!(fabs(twice[n] - 2 * once[n]) <= 1e-13 * (1 + fabs(once[n])))) {
            CHECK(0, "%s[%lld] is %g, twice %g was expected", agc_tensor_info[t].name, (long long)n, twice[n],
                  once[n]);
            return;
        }
    }
    CHECK(1, "twice");
}

static void add_output(struct shard *s, enum tensor t, uint32_t map)
{
    const int64_t *size = s->size[t], count = size[0] * size[1] * size[2] * size[3];
    double *once = test_alloc(count, sizeof *once);
    CHECK(shard_run(s, map) == AG_OK, "%s", ag_mpi_last_message());
    memcpy(once, s->data[t], (size_t)count * sizeof *once);
    s->args.accumulate = agc_tensor_info[t].accumulate;
    CHECK(shard_run(s, map) == AG_OK, "%s", ag_mpi_last_message());
    check_twice(s, t, once, count);
    s->args.accumulate = 0;
    CHECK(shard_run(s, map) == AG_OK, "%s", ag_mpi_last_message()); /* what later maps read */
    free(once);
}

static void given_o(struct shard *s)
{
    const size_t bytes =
        (size_t)(s->size[T_TO][0] * s->size[T_TO][1] * s->size[T_TO][2] * s->size[T_TO][3]) * 8;
    double *to = test_alloc((int64_t)bytes, 1);
    CHECK(shard_run(s, AG_MAP_JVP) == AG_OK, "%s", ag_mpi_last_message());
    memcpy(to, s->data[T_TO], bytes);
    s->args.flags = AG_GIVEN_O;
    CHECK(ag_mpi_jvp(s->plan, &s->args, NULL, s->workspace, s->bytes) == AG_OK, "%s", ag_mpi_last_message());
    s->args.flags = 0;
    double error = 0, size = 0;
    for (size_t n = 0; n < bytes / 8; n++) {
        const double d = to[n] - ((const double *)s->data[T_TO])[n];
        error += d * d;
        size += to[n] * to[n];
    }
    CHECK(error <= 1e-24 * size, "given o: to differs by %g of %g", error, size);
    free(to);
}

static void add_rank(const agi_mpi_transport *t, void *arg)
{
    const struct add_trial *trial = arg;
    const ag_mpi_options options = ring_options(NULL, trial->way);
    ag_mpi_plan *plan = NULL;
    struct shard s;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &trial->x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, trial->x));
    CHECK(shard_run_all(&s) == AG_OK, "%s", ag_mpi_last_message());
    for (enum tensor x = 0; x < T_COUNT; x++) {
        const struct agc_tensor_info *info = &agc_tensor_info[x];
        if (s.data[x] != NULL && info->accumulate != 0 && info->role == ROLE_OUTPUT && x != T_O &&
            x != T_LSE) {
            add_output(&s, x, info->writers);
        }
    }
    given_o(&s);
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void adding(void)
{
    struct add_trial trial;
    struct arrays x;
    make_arrays(&x, "b2 h4 kv2 q21 k26 d4 dv3 f64 causal table=3 sink bias=11qk");
    trial.x = &x;
    for (int n = 0; n < 2; n++) {
        trial.way = n == 0 ? AG_MPI_RING_KEYS : AG_MPI_ALL_TO_ALL;
        on_thread_ranks(RANKS, add_rank, &trial);
    }
    agc_arrays_destroy(&x);
    make_arrays(&x, "b2 h4 kv2 q21 k26 d4 dv3 f64 causal table=3 sink bias=bh1k");
    trial.way = AG_MPI_RING_QUERIES;
    on_thread_ranks(RANKS, add_rank, &trial);
    agc_arrays_destroy(&x);
}

/* ---- What is sent, and how much memory ---- */

static void window_rank(const agi_mpi_transport *t, void *arg)
{
    const struct arrays *x = arg;
    ag_mpi_options options = ring_options(NULL, AG_MPI_RING_KEYS);
    ag_mpi_traffic traffic = {.struct_size = sizeof traffic};
    ag_mpi_plan *plan = NULL;
    struct shard s;
    options.layout = AG_MPI_CONTIGUOUS;
    if (!CHECK_OK(agi_mpi_plan_create(&plan, &x->given, t, &options))) {
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, x));
    CHECK(shard_run(&s, AG_MAP_FORWARD) == AG_OK, "%s", ag_mpi_last_message());
    CHECK_OK(ag_mpi_traffic_get(plan, &traffic));
    /* Each chunk of 16 rows of k and v, 16 channels of 4 bytes, is seen by itself and by the next. */
    CHECK_INT(traffic.bytes_sent, t->rank < t->size - 1 ? 2 * 16 * 16 * 4 : 0);
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void workspace_rank(const agi_mpi_transport *t, void *arg)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options plan_options = AG_OPTIONS_INIT;
    size_t *bytes = arg;
    ag_mpi_plan *plan = NULL;
    plan_options.threads = 1;
    const ag_mpi_options options = ring_options(&plan_options, AG_MPI_RING_KEYS);
    CHECK_OK(ag_problem_parse("h4 q262144 d64 f32 causal", &p));
    if (CHECK_OK(agi_mpi_plan_create(&plan, &p, t, &options)) && t->rank == 0) {
        CHECK_OK(ag_mpi_plan_workspace(plan, AG_MAP_VJP, bytes));
    }
    ag_mpi_plan_destroy(plan);
}

static void traffic(void)
{
    struct arrays x;
    size_t one = 0, four = 0;
    make_arrays(&x, "q64 d16 f32 causal window=9,0");
    on_thread_ranks(4, window_rank, &x);
    agc_arrays_destroy(&x);
    on_thread_ranks(1, workspace_rank, &one);
    on_thread_ranks(4, workspace_rank, &four);
    CHECK(four < one / 3, "the workspace has %zu bytes on 4 ranks and %zu on one", four, one);
}

int main(void)
{
    wrong_arguments();
    wrong_outputs();
    wrong_plans();
    timeouts();
    slow_but_alive();
    cancelling();
    bits();
    adding();
    traffic();
    return test_summary();
}
