/* One layer with every array of its five maps, for the tests of attngrad_nn.h: made from a line of text,
 * filled with random numbers, run; its arrays are read and written as float64 whatever their dtypes. */
#ifndef AG_TESTS_NN_H
#define AG_TESTS_NN_H

#include <attngrad_nn.h>
#include <math.h>

#include "check/rng.h"
#include "test.h"

/* The variables of a layer, then its output. */
enum { X_Q, X_K, X_V, PARAMS, BIAS, TABLE, SINK, N_VARS, Y = N_VARS, N_ARRAYS };
/* Value, tangent, cotangent, tangent of the cotangent; tangent along the second direction; second tangent (of y). */
enum { VALUE, T, D, TD, S, ST, N_KINDS };

static const char *const nn_names[N_ARRAYS] = {"x_q", "x_k", "x_v", "params", "bias", "table", "sink", "y"};

typedef struct {
    const char *text; /* the problem, in the form of ag_problem_parse */
    uint32_t flags;
    int64_t d_model, q_width, k_width, v_width;
    int lengths; /* random q_lengths and kv_lengths */
} nn_config;

typedef struct {
    ag_layer *layer;
    const ag_problem *p;
    ag_layer_args a;
    ag_args attention;
    int64_t count[N_ARRAYS]; /* 0: this layer has no such array */
    ag_dtype dtype[N_KINDS][N_ARRAYS];
    void *at[N_KINDS][N_ARRAYS];
    unsigned char *mask;
    int64_t *q_lengths, *kv_lengths; /* or packed offsets */
    void *saved, *t_saved, *d_saved, *s_saved, *workspace;
    size_t bytes;
} nn_model;

static inline void *nn_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    test_need(memory != NULL, "memory");
    return memory;
}

static inline double nn_get(const nn_model *m, int kind, int array, int64_t i)
{
    const ag_dtype dtype = m->dtype[kind][array];
    double x = 0;
    (void)ag_convert(&x, AG_F64, (const char *)m->at[kind][array] + (size_t)i * ag_dtype_size(dtype), dtype,
                     1);
    return x;
}

static inline void nn_set(nn_model *m, int kind, int array, int64_t i, double x)
{
    const ag_dtype dtype = m->dtype[kind][array];
    (void)ag_convert((char *)m->at[kind][array] + (size_t)i * ag_dtype_size(dtype), dtype, &x, AG_F64, 1);
}

static inline int64_t nn_product(const int64_t size[4])
{
    return size[0] * size[1] * size[2] * size[3];
}

static inline void nn_count(nn_model *m, const nn_config *c, const ag_layer_desc *d)
{
    const ag_problem *p = m->p;
    const int packed = (p->flags & AG_PACKED) != 0;
    const int64_t q_rows = packed ? p->q_total : p->batch * p->q_len;
    const int64_t k_rows = packed ? p->kv_total : p->batch * p->kv_len;
    const int64_t q_width = d->q_width ? d->q_width : d->d_model, k_width = d->k_width ? d->k_width : q_width;
    m->count[X_Q] = q_rows * q_width;
    m->count[X_K] = c->flags & AG_LAYER_SELF ? 0 : k_rows * k_width;
    m->count[X_V] =
        c->flags & (AG_LAYER_SELF | AG_LAYER_SHARED_KV) ? 0 : k_rows * (d->v_width ? d->v_width : k_width);
    m->count[PARAMS] = ag_layer_size(m->layer);
    m->count[BIAS] = p->flags & AG_BIAS ? nn_product(p->bias_size) : 0;
    m->count[TABLE] = p->flags & AG_TABLE ? p->table_heads * p->table_buckets : 0;
    m->count[SINK] = p->flags & AG_SINK ? p->heads : 0;
    m->count[Y] = q_rows * (d->d_model ? d->d_model : q_width);
}

static inline ag_dtype nn_dtype(const ag_problem *p, int kind, int array)
{
    if (array == Y) {
        return p->out_dtype;
    }
    if (array >= BIAS) {
        return p->aux_dtype;
    }
    return kind == D || kind == TD ? p->grad_dtype : p->dtype;
}

/* A dense view of an array with these four axes. */
static inline ag_tensor nn_tensor(void *data, const int64_t size[4])
{
    return ag_bhnd(data, size[1], size[2], size[3]);
}

/* Sets the arguments of the attention and of the layer to the arrays. */
static inline void nn_arguments(nn_model *m)
{
    const ag_problem *p = m->p;
    const int64_t table[4] = {1, p->table_heads, 1, p->table_buckets}, sink[4] = {1, p->heads, 1, 1};
    ag_args *x = &m->attention;
    ag_tensor *const tensors[ST][3] = {{&x->bias, &x->table, &x->sink},
                                       {&x->tbias, &x->ttable, &x->tsink},
                                       {&x->dbias, &x->dtable, &x->dsink},
                                       {&x->tdbias, &x->tdtable, &x->tdsink},
                                       {&x->sbias, &x->stable, &x->ssink}};
    for (int kind = 0; kind < ST; kind++) {
        *tensors[kind][0] = nn_tensor(m->at[kind][BIAS], p->bias_size);
        *tensors[kind][1] = nn_tensor(m->at[kind][TABLE], table);
        *tensors[kind][2] = nn_tensor(m->at[kind][SINK], sink);
    }
    x->mask = nn_tensor(m->mask, p->mask_size);
    ag_layer_args *a = &m->a;
    a->attention = x;
    a->params = m->at[VALUE][PARAMS], a->x_q = m->at[VALUE][X_Q], a->x_k = m->at[VALUE][X_K];
    a->x_v = m->at[VALUE][X_V], a->y = m->at[VALUE][Y], a->saved = m->saved;
    a->dy = m->at[D][Y], a->dx_q = m->at[D][X_Q], a->dx_k = m->at[D][X_K], a->dx_v = m->at[D][X_V];
    a->d_params = m->at[D][PARAMS], a->d_saved = m->d_saved;
    a->tx_q = m->at[T][X_Q], a->tx_k = m->at[T][X_K], a->tx_v = m->at[T][X_V];
    a->t_params = m->at[T][PARAMS], a->ty = m->at[T][Y], a->t_saved = m->t_saved;
    a->tdy = m->at[TD][Y], a->tdx_q = m->at[TD][X_Q], a->tdx_k = m->at[TD][X_K], a->tdx_v = m->at[TD][X_V];
    a->td_params = m->at[TD][PARAMS];
    a->sx_q = m->at[S][X_Q], a->sx_k = m->at[S][X_K], a->sx_v = m->at[S][X_V];
    a->s_params = m->at[S][PARAMS], a->s_saved = m->s_saved, a->sty = m->at[ST][Y];
}

/* Draws lengths, or packed offsets of such lengths; the remaining rows are padding. */
static inline void nn_draw_lengths(nn_model *m, const nn_config *c, struct rng *r)
{
    const ag_problem *p = m->p;
    const int packed = (p->flags & AG_PACKED) != 0;
    if (!packed && !c->lengths) {
        return;
    }
    m->q_lengths = nn_alloc((size_t)(p->batch + 1) * sizeof(int64_t));
    m->kv_lengths = nn_alloc((size_t)(p->batch + 1) * sizeof(int64_t));
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t n_q = agc_rng_range(r, b == 0 ? 1 : 0, p->q_len);
        const int64_t n_k = c->flags & AG_LAYER_SELF && packed ? n_q : agc_rng_range(r, 1, p->kv_len);
        m->q_lengths[packed ? b + 1 : b] = n_q + (packed ? m->q_lengths[b] : 0);
        m->kv_lengths[packed ? b + 1 : b] = n_k + (packed ? m->kv_lengths[b] : 0);
    }
    *(packed ? &m->attention.q_packed : &m->attention.q_lengths) = m->q_lengths;
    *(packed ? &m->attention.k_packed : &m->attention.kv_lengths) = m->kv_lengths;
}

static inline void nn_fill(nn_model *m, int kind, int array, struct rng *r, double scale)
{
    for (int64_t i = 0; i < m->count[array]; i++) {
        nn_set(m, kind, array, i, scale * agc_rng_normal(r));
    }
}

static inline void nn_fill_all(nn_model *m, const nn_config *c, uint64_t seed)
{
    struct rng r;
    agc_rng_init(&r, seed, 0);
    nn_draw_lengths(m, c, &r);
    const double param_scale = 1 / sqrt((double)c->d_model);
    for (int array = 0; array < N_VARS; array++) {
        nn_fill(m, VALUE, array, &r, array == PARAMS ? param_scale : 1);
        nn_fill(m, T, array, &r, array == PARAMS ? param_scale : 1);
    }
    nn_fill(m, D, Y, &r, 1);
    nn_fill(m, TD, Y, &r, 1);
    for (int64_t i = 0; m->mask != NULL && i < nn_product(m->p->mask_size); i++) {
        m->mask[i] = (unsigned char)agc_rng_chance(&r, 0.7);
    }
    for (int array = 0; array < N_VARS; array++) {
        nn_fill(m, S, array, &r, array == PARAMS ? param_scale : 1);
    }
    m->attention.seed = seed;
}

static inline void nn_make_with(nn_model *m, const nn_config *c, const ag_options *options, uint64_t seed)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_layer_desc d = AG_LAYER_DESC_INIT;
    size_t bytes = 0;
    memset(m, 0, sizeof *m);
    test_need(ag_problem_parse(c->text, &p) == AG_OK, c->text);
    d.attention = &p, d.flags = c->flags, d.d_model = c->d_model;
    d.q_width = c->q_width, d.k_width = c->k_width, d.v_width = c->v_width;
    test_need(CHECK_OK(ag_layer_create(&m->layer, &d, options)), c->text);
    m->p = ag_plan_problem(ag_layer_plan(m->layer));
    m->a.struct_size = sizeof m->a;
    m->attention.struct_size = sizeof m->attention;
    nn_count(m, c, &d);
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int array = 0; array < N_ARRAYS; array++) {
            m->dtype[kind][array] = nn_dtype(m->p, kind, array);
            if (m->count[array] > 0) {
                m->at[kind][array] = nn_alloc((size_t)m->count[array] * ag_dtype_size(m->dtype[kind][array]));
            }
        }
    }
    if (m->p->flags & AG_MASK) {
        m->mask = nn_alloc((size_t)nn_product(m->p->mask_size));
    }
    CHECK_OK(ag_layer_saved(m->layer, AG_SAVED, &bytes));
    m->saved = nn_alloc(bytes);
    m->t_saved = nn_alloc(bytes);
    m->s_saved = nn_alloc(bytes);
    CHECK_OK(ag_layer_saved(m->layer, AG_D_SAVED, &bytes));
    m->d_saved = nn_alloc(bytes);
    const uint32_t maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP | AG_MAP_JVP_JVP;
    CHECK_OK(ag_layer_workspace(m->layer, maps, &m->bytes));
    m->workspace = nn_alloc(m->bytes);
    nn_fill_all(m, c, seed);
    nn_arguments(m);
}

static inline void nn_make_on(nn_model *m, const nn_config *c, ag_backend backend, int32_t threads,
                              uint64_t seed)
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = backend;
    options.threads = threads;
    nn_make_with(m, c, &options, seed);
}

static inline void nn_make(nn_model *m, const nn_config *c, int32_t threads, uint64_t seed)
{
    nn_make_on(m, c, AG_BACKEND_AUTO, threads, seed);
}

static inline void nn_free(nn_model *m)
{
    void *const memory[] = {m->mask,    m->q_lengths, m->kv_lengths, m->saved,
                            m->t_saved, m->d_saved,   m->s_saved,    m->workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        free(memory[i]);
    }
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int array = 0; array < N_ARRAYS; array++) {
            free(m->at[kind][array]);
        }
    }
    ag_layer_destroy(m->layer);
}

static inline ag_status nn_run_with(nn_model *m, uint32_t map, const ag_exec *exec)
{
    switch (map) {
    case AG_MAP_FORWARD: return ag_layer_forward(m->layer, &m->a, exec, m->workspace, m->bytes);
    case AG_MAP_VJP: return ag_layer_vjp(m->layer, &m->a, exec, m->workspace, m->bytes);
    case AG_MAP_JVP: return ag_layer_jvp(m->layer, &m->a, exec, m->workspace, m->bytes);
    case AG_MAP_VJP_JVP: return ag_layer_vjp_jvp(m->layer, &m->a, exec, m->workspace, m->bytes);
    default: return ag_layer_jvp_jvp(m->layer, &m->a, exec, m->workspace, m->bytes);
    }
}

static inline ag_status nn_run(nn_model *m, uint32_t map)
{
    return nn_run_with(m, map, NULL);
}

/* jvp along the second direction: writes the tangent of y along it and s_saved, and saved once more. */
static inline ag_status nn_run_along_s(const nn_model *m, const ag_exec *exec)
{
    ag_args attention = m->attention;
    ag_layer_args a = m->a;
    attention.tbias = attention.sbias, attention.ttable = attention.stable, attention.tsink = attention.ssink;
    a.attention = &attention;
    a.tx_q = a.sx_q, a.tx_k = a.sx_k, a.tx_v = a.sx_v, a.t_params = a.s_params;
    a.y = NULL, a.ty = m->at[S][Y], a.t_saved = a.s_saved;
    a.accumulate = 0;
    return ag_layer_jvp(m->layer, &a, exec, m->workspace, m->bytes);
}

static inline void nn_run_all(nn_model *m)
{
    CHECK_OK(nn_run(m, AG_MAP_FORWARD));
    CHECK_OK(nn_run(m, AG_MAP_VJP));
    CHECK_OK(nn_run(m, AG_MAP_JVP));
    CHECK_OK(nn_run(m, AG_MAP_VJP_JVP));
    CHECK_OK(nn_run_along_s(m, NULL));
    CHECK_OK(nn_run(m, AG_MAP_JVP_JVP));
}

/* <a, b> of one array of two kinds. */
static inline double nn_dot(const nn_model *m, int kind_a, int kind_b, int array)
{
    double sum = 0;
    for (int64_t i = 0; i < m->count[array]; i++) {
        sum += nn_get(m, kind_a, array, i) * nn_get(m, kind_b, array, i);
    }
    return sum;
}

#endif
