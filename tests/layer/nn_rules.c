/* What the layer promises in addition to its formulas: the same bits for any number of threads, any parallel loop and
 * any alignment of its buffers; packed and padded sequences give the same; positions per sequence; rows after the end
 * of a sequence have no effect; outputs may be written, accumulated or absent; empty batches; views into the saved
 * activations. */
#include "nn.h"

static const nn_config configs[] = {
    {"f32 b3 h4 kv2 q40 d17 causal", AG_LAYER_SELF | AG_LAYER_BIASES, 70, 0, 0, 0, 1},
    {"f64 b2 h2 q9 k13 d8 bias=1hqk sink table=3 dropout=0.2", AG_LAYER_BIASES, 20, 21, 22, 23, 0},
    {"bf16 grad=f32 b2 h2 q40 d16", AG_LAYER_SELF, 140, 0, 0, 0, 0},
    {"f16 b2 h2 q9 k13 d8", AG_LAYER_SHARED_KV | AG_LAYER_BIASES, 20, 21, 22, 0, 0},
};

enum { N_CONFIGS = sizeof configs / sizeof configs[0] };

static size_t array_bytes(const nn_model *m, int kind, int array)
{
    return (size_t)m->count[array] * ag_dtype_size(m->dtype[kind][array]);
}

static void check_same_bits(const nn_model *a, const nn_model *b, const char *text, const char *what)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int array = 0; array < N_ARRAYS; array++) {
            if (a->count[array] > 0) {
                CHECK(memcmp(a->at[kind][array], b->at[kind][array], array_bytes(a, kind, array)) == 0,
                      "%s: %s changes %s of kind %d", text, what, nn_names[array], kind);
            }
        }
    }
}

/* ---- Threads, loops, alignment ---- */

/* A loop that runs its tasks backwards on the caller's thread. */
static void backwards(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    for (int64_t i = n_tasks - 1; i >= 0; i--) {
        task(arg, i);
    }
}

static void run_by_exec(nn_model *m, const ag_exec *exec)
{
    CHECK_OK(ag_layer_forward(m->layer, &m->a, exec, m->workspace, m->bytes));
    CHECK_OK(ag_layer_vjp(m->layer, &m->a, exec, m->workspace, m->bytes));
    CHECK_OK(ag_layer_jvp(m->layer, &m->a, exec, m->workspace, m->bytes));
    CHECK_OK(ag_layer_vjp_jvp(m->layer, &m->a, exec, m->workspace, m->bytes));
    CHECK_OK(nn_run_along_s(m, exec));
    CHECK_OK(ag_layer_jvp_jvp(m->layer, &m->a, exec, m->workspace, m->bytes));
}

static void check_bits(const nn_config *c)
{
    nn_model one, other;
    ag_exec exec = AG_EXEC_INIT;
    exec.run = backwards;
    nn_make(&one, c, 1, 21);
    nn_run_all(&one);
    for (int32_t threads = 1; threads <= 3; threads++) {
        nn_make(&other, c, threads, 21);
        nn_run_all(&other);
        check_same_bits(&one, &other, c->text, threads == 1 ? "a second run" : "more threads");
        run_by_exec(&other, &exec);
        check_same_bits(&one, &other, c->text, "a loop run backwards");
        nn_free(&other);
    }
    nn_free(&one);
}

/* ---- Poll ---- */

static int32_t cancel_at(void *ctx)
{
    return --*(int *)ctx == 0;
}

/* Every map ends at its first poll; the next run of the same layer and workspace gives the same bits. */
static void check_poll(const nn_config *c)
{
    nn_model wanted, m;
    int left = 0;
    ag_exec exec = AG_EXEC_INIT;
    exec.ctx = &left;
    exec.poll = cancel_at;
    nn_make(&wanted, c, 1, 23);
    nn_run_all(&wanted);
    nn_make(&m, c, 2, 23);
    left = 1;
    CHECK_STATUS(ag_layer_forward(m.layer, &m.a, &exec, m.workspace, m.bytes), AG_CANCELLED);
    nn_run_all(&m);
    ag_status (*const maps[])(const ag_layer *, const ag_layer_args *, const ag_exec *, void *,
                              size_t) = {ag_layer_vjp, ag_layer_jvp, ag_layer_vjp_jvp, ag_layer_jvp_jvp};
    for (int n = 0; n < 4; n++) {
        left = 1;
        CHECK_STATUS(maps[n](m.layer, &m.a, &exec, m.workspace, m.bytes), AG_CANCELLED);
        CHECK_INT(left, 0);
    }
    run_by_exec(&m, &exec); /* the poll returns 0 from now on */
    CHECK(left < 0, "%s: the layer does not poll", c->text);
    check_same_bits(&wanted, &m, c->text, "a run after cancelled ones");
    nn_free(&m);
    nn_free(&wanted);
}

/* Buffers one byte off their alignment: nn_alloc allocates one byte more. */
static void check_alignment(const nn_config *c)
{
    nn_model plain, shifted;
    nn_make(&plain, c, 2, 22);
    nn_make(&shifted, c, 2, 22);
    nn_run_all(&plain);
    shifted.a.saved = (char *)shifted.saved + 1;
    shifted.a.t_saved = (char *)shifted.t_saved + 1;
    shifted.a.d_saved = (char *)shifted.d_saved + 1;
    shifted.a.s_saved = (char *)shifted.s_saved + 1;
    void *const workspace = shifted.workspace;
    shifted.workspace = (char *)workspace + 1;
    nn_run_all(&shifted);
    check_same_bits(&plain, &shifted, c->text, "a shift of the buffers");
    shifted.workspace = workspace;
    nn_free(&plain);
    nn_free(&shifted);
}

/* ---- Accumulated, not wanted ---- */

typedef struct {
    int kind, array;
    uint32_t map, bit;
} output;

static const output outputs[] = {
    {VALUE, Y, AG_MAP_FORWARD, AG_LAYER_ACC_Y},
    {T, Y, AG_MAP_JVP, AG_LAYER_ACC_TY},
    {ST, Y, AG_MAP_JVP_JVP, AG_LAYER_ACC_STY},
    {D, X_Q, AG_MAP_VJP, AG_LAYER_ACC_DX_Q},
    {D, X_K, AG_MAP_VJP, AG_LAYER_ACC_DX_K},
    {D, X_V, AG_MAP_VJP, AG_LAYER_ACC_DX_V},
    {D, PARAMS, AG_MAP_VJP, AG_LAYER_ACC_D_PARAMS},
    {TD, X_Q, AG_MAP_VJP_JVP, AG_LAYER_ACC_TDX_Q},
    {TD, X_K, AG_MAP_VJP_JVP, AG_LAYER_ACC_TDX_K},
    {TD, X_V, AG_MAP_VJP_JVP, AG_LAYER_ACC_TDX_V},
    {TD, PARAMS, AG_MAP_VJP_JVP, AG_LAYER_ACC_TD_PARAMS},
};

enum { N_OUTPUTS = sizeof outputs / sizeof outputs[0] };

static void check_accumulate(const nn_config *c)
{
    for (int o = 0; o < N_OUTPUTS; o++) {
        const output *x = &outputs[o];
        nn_model m;
        nn_make(&m, c, 2, 23);
        nn_run_all(&m);
        CHECK_OK(nn_run(&m, x->map)); /* again, as jvp has saved an O of other last bits than forward's */
        const double once = m.count[x->array] > 0 ? nn_get(&m, x->kind, x->array, m.count[x->array] - 1) : 0;
        m.a.accumulate = x->bit;
        CHECK_OK(nn_run(&m, x->map));
        if (m.count[x->array] > 0) {
            const double twice = nn_get(&m, x->kind, x->array, m.count[x->array] - 1);
            CHECK(once != 0 && fabs(twice - 2 * once) <= 0.01 * fabs(once),
                  "%s: %s of kind %d: %g accumulates to %g", c->text, nn_names[x->array], x->kind, once,
                  twice);
        }
        nn_free(&m);
    }
}

static void **pointer_of(ag_layer_args *a, const output *x)
{
    void **const pointers[N_OUTPUTS] = {&a->y,        &a->ty,    &a->sty,   &a->dx_q,  &a->dx_k,     &a->dx_v,
                                        &a->d_params, &a->tdx_q, &a->tdx_k, &a->tdx_v, &a->td_params};
    return pointers[x - outputs];
}

/* Without one output the others stay as they are. */
static void check_unwanted(const nn_config *c)
{
    nn_model all, less;
    nn_make(&all, c, 2, 24);
    nn_run_all(&all);
    for (int o = 3; o < N_OUTPUTS; o++) { /* y, ty and sty are required */
        const output *x = &outputs[o];
        nn_make(&less, c, 2, 24);
        *pointer_of(&less.a, x) = NULL;
        nn_run_all(&less);
        memcpy(less.at[x->kind][x->array] != NULL ? less.at[x->kind][x->array] : &less.bytes,
               all.at[x->kind][x->array] != NULL ? all.at[x->kind][x->array] : &all.bytes,
               array_bytes(&all, x->kind, x->array));
        check_same_bits(&all, &less, c->text, "an unwanted output");
        nn_free(&less);
    }
    nn_make(&less, c, 2, 24);
    less.a.y = NULL;
    CHECK_OK(nn_run(&less, AG_MAP_JVP));
    CHECK(memcmp(less.at[T][Y], all.at[T][Y], array_bytes(&all, T, Y)) == 0, "%s: ty changes without y",
          c->text);
    nn_free(&less);
    nn_free(&all);
}

/* ---- Rows after the end of a sequence ---- */

static void poison(nn_model *m, int kind, int array, const int64_t *lengths, int64_t n, int64_t width)
{
    for (int64_t b = 0; b < m->p->batch; b++) {
        for (int64_t i = (b * n + lengths[b]) * width; i < (b + 1) * n * width; i++) {
            nn_set(m, kind, array, i, NAN);
        }
    }
}

static void check_padding(void)
{
    const nn_config c = {"f32 b4 h2 q6 k9 d4 causal", AG_LAYER_BIASES, 5, 6, 7, 8, 1};
    nn_model clean, dirty;
    nn_make(&clean, &c, 2, 25);
    nn_make(&dirty, &c, 2, 25);
    const int kinds[] = {VALUE, T, S};
    for (int n = 0; n < 3; n++) {
        poison(&dirty, kinds[n], X_Q, dirty.q_lengths, 6, 6);
        poison(&dirty, kinds[n], X_K, dirty.kv_lengths, 9, 7);
        poison(&dirty, kinds[n], X_V, dirty.kv_lengths, 9, 8);
    }
    poison(&dirty, D, Y, dirty.q_lengths, 6, 5);
    poison(&dirty, TD, Y, dirty.q_lengths, 6, 5);
    nn_run_all(&clean);
    nn_run_all(&dirty);
    for (int o = 0; o < N_OUTPUTS; o++) {
        const output *x = &outputs[o];
        CHECK(memcmp(clean.at[x->kind][x->array], dirty.at[x->kind][x->array],
                     array_bytes(&clean, x->kind, x->array)) == 0,
              "%s of kind %d depends on rows after the lengths", nn_names[x->array], x->kind);
    }
    for (int64_t b = 0; b < 4; b++) {
        for (int64_t i = (b * 6 + clean.q_lengths[b]) * 5; i < (b + 1) * 6 * 5; i++) {
            CHECK(nn_get(&clean, VALUE, Y, i) == 0, "y[%lld], past the length, is not zero", (long long)i);
        }
    }
    nn_free(&clean);
    nn_free(&dirty);
}

/* ---- Packed and padded ---- */

/* Sequences of length 3 and 5: padded to 5, and packed into 8 rows. */
static void check_packed(void)
{
    const nn_config padded = {"f32 b2 h2 q5 d4 causal", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0};
    const nn_config packed = {
        "f32 b2 h2 q5 d4 causal packed=8,8", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0};
    const int64_t lengths[2] = {3, 5}, offsets[3] = {0, 3, 8};
    nn_model a, b;
    nn_make(&a, &padded, 1, 26);
    nn_make(&b, &packed, 1, 26);
    a.attention.q_lengths = a.attention.kv_lengths = lengths;
    b.attention.q_packed = b.attention.k_packed = offsets;
    for (int64_t i = 0; i < a.count[PARAMS]; i++) {
        nn_set(&b, VALUE, PARAMS, i, nn_get(&a, VALUE, PARAMS, i));
    }
    for (int64_t row = 0; row < 8; row++) {
        for (int64_t c = 0; c < 6; c++) {
            const int64_t from = (row < 3 ? row : row + 2) * 6 + c;
            nn_set(&b, VALUE, X_Q, row * 6 + c, nn_get(&a, VALUE, X_Q, from));
            nn_set(&b, D, Y, row * 6 + c, nn_get(&a, D, Y, from));
        }
    }
    CHECK_OK(nn_run(&a, AG_MAP_FORWARD));
    CHECK_OK(nn_run(&a, AG_MAP_VJP));
    CHECK_OK(nn_run(&b, AG_MAP_FORWARD));
    CHECK_OK(nn_run(&b, AG_MAP_VJP));
    for (int64_t row = 0; row < 8; row++) {
        for (int64_t c = 0; c < 6; c++) {
            const int64_t from = (row < 3 ? row : row + 2) * 6 + c, to = row * 6 + c;
            CHECK(nn_get(&a, VALUE, Y, from) == nn_get(&b, VALUE, Y, to), "y of row %lld differs",
                  (long long)row);
            CHECK(nn_get(&a, D, X_Q, from) == nn_get(&b, D, X_Q, to), "dx of row %lld differs",
                  (long long)row);
        }
    }
    for (int64_t i = 0; i < a.count[PARAMS]; i++) {
        const double x = nn_get(&a, D, PARAMS, i), y = nn_get(&b, D, PARAMS, i);
        CHECK(fabs(x - y) <= 1e-5 * (1 + fabs(x)), "d_params[%lld]: padded %g, packed %g", (long long)i, x,
              y);
    }
    nn_free(&a);
    nn_free(&b);
}

/* Rows after the last packed sequence have no effect, like those after the end of a padded one. */
static void check_packed_tail(void)
{
    const nn_config c = {"f32 b2 h2 q5 d4 packed=14,14", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0};
    const int64_t offsets[3] = {0, 4, 9};
    nn_model clean, dirty;
    nn_make(&clean, &c, 2, 30);
    nn_make(&dirty, &c, 2, 30);
    clean.attention.q_packed = clean.attention.k_packed = offsets;
    dirty.attention.q_packed = dirty.attention.k_packed = offsets;
    for (int64_t i = 9 * 6; i < 14 * 6; i++) {
        nn_set(&dirty, VALUE, X_Q, i, NAN);
        nn_set(&dirty, T, X_Q, i, NAN);
        nn_set(&dirty, S, X_Q, i, NAN);
        nn_set(&dirty, D, Y, i, NAN);
        nn_set(&dirty, TD, Y, i, NAN);
    }
    nn_run_all(&clean);
    nn_run_all(&dirty);
    for (int o = 0; o < N_OUTPUTS; o++) {
        const output *x = &outputs[o];
        const size_t bytes = array_bytes(&clean, x->kind, x->array);
        CHECK(bytes == 0 || memcmp(clean.at[x->kind][x->array], dirty.at[x->kind][x->array], bytes) == 0,
              "%s of kind %d depends on rows after the last sequence", nn_names[x->array], x->kind);
    }
    for (int64_t i = 9 * 6; i < 14 * 6; i++) {
        CHECK(nn_get(&clean, VALUE, Y, i) == 0, "y[%lld], after the last sequence, is not zero",
              (long long)i);
    }
    nn_free(&clean);
    nn_free(&dirty);
}

/* ---- Positions per sequence ---- */

enum { OFFSETS_BATCH = 3, OFFSETS_SIZE = 5 * 6 }; /* OFFSETS_SIZE: elements of x and y of one sequence */

/* Gives the layer of one sequence the parameters, tables and rows of sequence b of m. */
static void copy_sequence(nn_model *alone, const nn_model *m, int64_t b)
{
    const int rows[][2] = {{VALUE, X_Q}, {T, X_Q}, {S, X_Q}, {D, Y}, {TD, Y}};
    for (int array = PARAMS; array <= TABLE; array++) {
        for (int kind = 0; kind < N_KINDS && m->count[array] > 0; kind++) {
            memcpy(alone->at[kind][array], m->at[kind][array], array_bytes(m, kind, array));
        }
    }
    for (int n = 0; n < 5; n++) {
        const double *from = m->at[rows[n][0]][rows[n][1]];
        memcpy(alone->at[rows[n][0]][rows[n][1]], from + b * OFFSETS_SIZE, OFFSETS_SIZE * sizeof *from);
    }
}

static void compare_sequence(const nn_model *alone, const nn_model *m, int64_t b)
{
    const int results[][2] = {{VALUE, Y}, {T, Y}, {ST, Y}, {D, X_Q}, {TD, X_Q}};
    for (int n = 0; n < 5; n++) {
        const int kind = results[n][0], array = results[n][1];
        for (int64_t i = 0; i < OFFSETS_SIZE; i++) {
            const double got = nn_get(m, kind, array, b * OFFSETS_SIZE + i);
            const double wanted = nn_get(alone, kind, array, i);
            CHECK(fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted)),
                  "offsets: sequence %lld, %s of kind %d: %g instead of %g", (long long)b, nn_names[array],
                  kind, got, wanted);
        }
    }
}

/* Each sequence gives what it gives alone, with its q_offset and k_offset. */
static void check_offsets(void)
{
    const nn_config all = {"f64 b3 h2 q5 d4 causal table=4", AG_LAYER_SELF, 6, 0, 0, 0, 0};
    const nn_config one = {"f64 b1 h2 q5 d4 causal table=4", AG_LAYER_SELF, 6, 0, 0, 0, 0};
    const int64_t q_offsets[OFFSETS_BATCH] = {3, 0, 7}, k_offsets[OFFSETS_BATCH] = {1, 2, 0};
    nn_model m, alone;
    nn_make(&m, &all, 2, 32);
    m.attention.q_offsets = q_offsets;
    m.attention.k_offsets = k_offsets;
    nn_run_all(&m);
    for (int64_t b = 0; b < OFFSETS_BATCH; b++) {
        nn_make(&alone, &one, 1, 32);
        alone.attention.q_offset = q_offsets[b];
        alone.attention.k_offset = k_offsets[b];
        copy_sequence(&alone, &m, b);
        nn_run_all(&alone);
        compare_sequence(&alone, &m, b);
        nn_free(&alone);
    }
    nn_free(&m);
}

/* ---- Empty ---- */

static void check_empty(void)
{
    const nn_config nothing[] = {{"f32 b0 h2 q5 d4", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0},
                                 {"f32 b2 h2 q0 k3 d4", AG_LAYER_BIASES, 6, 0, 0, 0, 0}};
    for (int c = 0; c < 2; c++) {
        nn_model m;
        nn_make(&m, &nothing[c], 2, 27);
        nn_fill(&m, D, PARAMS, &(struct rng){{1, 2, 3, 4}}, 1);
        nn_run_all(&m);
        CHECK(nn_dot(&m, D, D, PARAMS) == 0, "%s: d_params is not zero", nothing[c].text);
        nn_free(&m);
    }
    const nn_config keyless = {"f32 b2 h2 q3 k0 d4", AG_LAYER_BIASES, 6, 0, 0, 0, 0};
    nn_model m;
    nn_make(&m, &keyless, 2, 28);
    nn_run_all(&m);
    ag_param_view bo = AG_PARAM_VIEW_INIT;
    CHECK_OK(ag_layer_param(m.layer, 7, &bo));
    for (int64_t i = 0; i < m.count[Y]; i++) {
        CHECK(nn_get(&m, VALUE, Y, i) == nn_get(&m, VALUE, PARAMS, bo.offset + i % 6),
              "y without keys is not bo");
    }
    nn_free(&m);
}

/* ---- Looking into the saved activations ---- */

static void check_views(void)
{
    const nn_config c = {"f64 b2 h2 q3 d4", AG_LAYER_SELF, 5, 0, 0, 0, 0};
    nn_model m;
    ag_saved_views v = {.struct_size = sizeof v}, d = {.struct_size = sizeof d};
    nn_make(&m, &c, 1, 29);
    CHECK_OK(nn_run(&m, AG_MAP_FORWARD));
    CHECK_OK(nn_run(&m, AG_MAP_VJP));
    CHECK_OK(ag_layer_saved_views(m.layer, AG_SAVED, m.saved, &v));
    CHECK_OK(ag_layer_saved_views(m.layer, AG_D_SAVED, m.d_saved, &d));
    CHECK(d.lse.data == NULL, "d_saved has no lse");
    /* q of sequence 1, head 1, row 2, channel 3, and dC at the same position, by their formulas */
    double q = 0, dC = 0;
    ag_param_view wo = AG_PARAM_VIEW_INIT;
    CHECK_OK(ag_layer_param(m.layer, 3, &wo));
    for (int64_t l = 0; l < 5; l++) {
        q += nn_get(&m, VALUE, X_Q, (1 * 3 + 2) * 5 + l) * nn_get(&m, VALUE, PARAMS, l * 8 + 1 * 4 + 3);
        dC += nn_get(&m, D, Y, (1 * 3 + 2) * 5 + l) *
              nn_get(&m, VALUE, PARAMS, wo.offset + (1 * 4 + 3) * 5 + l);
    }
    const double *at_q = v.q.data, *at_o = d.o.data;
    const double got_q = at_q[v.q.strides[0] + v.q.strides[1] + 2 * v.q.strides[2] + 3 * v.q.strides[3]];
    const double got_o = at_o[d.o.strides[0] + d.o.strides[1] + 2 * d.o.strides[2] + 3 * d.o.strides[3]];
    CHECK(fabs(got_q - q) <= 1e-14 * (1 + fabs(q)), "q is %g, the formula gives %g", got_q, q);
    CHECK(fabs(got_o - dC) <= 1e-14 * (1 + fabs(dC)), "dC is %g, the formula gives %g", got_o, dC);
    nn_free(&m);
}

int main(void)
{
    for (int c = 0; c < N_CONFIGS; c++) {
        check_bits(&configs[c]);
        check_poll(&configs[c]);
        check_alignment(&configs[c]);
        check_unwanted(&configs[c]);
    }
    check_accumulate(&configs[1]);
    check_accumulate(&configs[2]);
    check_padding();
    check_packed();
    check_packed_tail();
    check_offsets();
    check_empty();
    check_views();
    return test_summary();
}
