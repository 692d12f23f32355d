/* The runner: one head as a float64 problem of its own, a block of query rows at a time. */
#include "view/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_PAIRS = 1 << 18,     /* pairs of a query and a key per block: 2 MB per matrix */
    REFERENCE_PAIRS = 1 << 16, /* up to here the reference runs the maps, too */
    CHUNK = 512                /* numbers of a tangent that are read at a time */
};

/* ---- The head ---- */

agv_source agv_source_of(const ag_plan *plan, const ag_args *args, int64_t batch, int64_t head)
{
    const ag_problem *p = ag_plan_problem(plan);
    const bool packed = (p->flags & AG_PACKED) != 0;
    agv_source s = {.p = p, .args = args, .batch = batch, .head = head};
    ag_plan_info info = {.struct_size = sizeof info};
    s.threads = ag_plan_info_get(plan, &info) == AG_OK ? info.threads : 0;
    s.kv_head = head / (p->heads / p->kv_heads);
    s.row_q = packed ? args->q_packed[batch] : 0;
    s.row_k = packed ? args->k_packed[batch] : 0;
    s.n_q = packed                    ? args->q_packed[batch + 1] - s.row_q
            : args->q_lengths != NULL ? args->q_lengths[batch]
                                      : p->q_len;
    s.n_k = packed                     ? args->k_packed[batch + 1] - s.row_k
            : args->kv_lengths != NULL ? args->kv_lengths[batch]
                                       : p->kv_len;
    s.first_q = args->q_offsets != NULL ? args->q_offsets[batch] : args->q_offset;
    s.first_k = args->k_offsets != NULL ? args->k_offsets[batch] : args->k_offset;
    s.first_q += p->align == AG_ALIGN_BOTTOM_RIGHT ? s.n_k - s.n_q : 0;
    return s;
}

int64_t agv_rows(const agv_source *s, const agv_info *info)
{
    return info->axes[0] == 'i' ? s->n_q : info->axes[0] == 'j' ? s->n_k : 1;
}

int64_t agv_columns(const agv_source *s, const agv_info *info)
{
    switch (info->width) {
    case WIDTH_QK: return s->p->dim_qk;
    case WIDTH_V: return s->p->dim_v;
    case WIDTH_KEYS: return s->n_k;
    default: return 1;
    }
}

/* ---- Loading ---- */

/* Reads rows of a tensor as float64, one after another. */
static void load_rows(const ag_tensor *t, ag_dtype dtype, const int64_t start[3], int64_t rows,
                      int64_t columns, double *to)
{
    const int64_t size = (int64_t)ag_dtype_size(dtype);
    const int64_t base = start[0] * t->strides[0] + start[1] * t->strides[1];
    for (int64_t r = 0; r < rows; r++) {
        const char *from = (const char *)t->data + (base + (start[2] + r) * t->strides[2]) * size;
        const bool dense = columns == 1 || t->strides[3] == 1;
        for (int64_t c = 0; c < columns; c += dense ? columns : 1) {
            ag_convert(to + r * columns + c, AG_F64, from + c * t->strides[3] * size, dtype,
                       dense ? columns : 1);
        }
    }
}

/* The same plus e times the tangent; zeros if the tensor is absent. */
static void load_moved(const ag_tensor *x, const ag_tensor *tx, double e, ag_dtype dtype,
                       const int64_t start[3], int64_t rows, int64_t columns, double *to)
{
    memset(to, 0, (size_t)(rows * columns) * sizeof to[0]);
    if (x->data != NULL) {
        load_rows(x, dtype, start, rows, columns, to);
    }
    for (int64_t r = 0; e != 0 && tx->data != NULL && r < rows; r++) {
        double row[CHUNK];
        for (int64_t c = 0; c < columns; c += CHUNK) {
            const int64_t width = columns - c < CHUNK ? columns - c : CHUNK;
            ag_tensor part = *tx;
            part.data = (char *)tx->data + c * tx->strides[3] * (int64_t)ag_dtype_size(dtype);
            load_rows(&part, dtype, (int64_t[3]){start[0], start[1], start[2] + r}, 1, width, row);
            for (int64_t n = 0; n < width; n++) {
                to[r * columns + c + n] += e * row[n];
            }
        }
    }
}

static bool is_shown(const agv_runner *r, agv_kind kind)
{
    const agv_info *info = &agv_infos[kind];
    return (info->maps & r->maps) != 0 && agv_has(r->source.p, r->source.args, info->feature);
}

static ag_dtype dtype_of(const ag_problem *p, agv_kind kind)
{
    switch (kind) {
    case AGV_s:
    case AGV_ts: return p->aux_dtype;
    case AGV_dO:
    case AGV_tdO: return p->out_dtype;
    case AGV_dL:
    case AGV_tdL: return AG_F64;
    default: return p->dtype;
    }
}

/* The tangent of an input of forward or vjp; an absent tensor for all others. */
static const ag_tensor *tangent_of(const ag_args *args, agv_kind kind)
{
    static const ag_tensor none;
    switch (kind) {
    case AGV_Q: return &args->tq;
    case AGV_K: return &args->tk;
    case AGV_V: return &args->tv;
    case AGV_s: return &args->tsink;
    case AGV_dO: return &args->td_o;
    case AGV_dL: return &args->td_lse;
    default: return &none;
    }
}

/* Loads an input: rows of a variable whose rows are queries, all of any other. */
static void load_input(agv_runner *r, agv_kind kind, int64_t row0, int64_t rows)
{
    const agv_source *s = &r->source;
    const agv_info *info = &agv_infos[kind];
    const bool keys = info->axes[0] == 'j', single = info->axes[0] == 'r';
    const bool packed = (s->p->flags & AG_PACKED) != 0;
    const int64_t start[3] = {packed || single ? 0 : s->batch, keys ? s->kv_head : s->head,
                              single ? 0
                              : keys ? s->row_k
                                     : s->row_q + row0};
    load_moved(agv_tensor_of(s->args, info), tangent_of(s->args, kind), r->e, dtype_of(s->p, kind), start,
               keys     ? s->n_k
               : single ? 1
                        : rows,
               agv_columns(s, info), r->values[kind]);
}

static void load_inputs(agv_runner *r, bool of_queries, int64_t row0, int64_t rows)
{
    for (agv_kind kind = 0; kind < AGV_KINDS; kind++) {
        if (r->values[kind] != NULL && agv_infos[kind].origin == INPUT &&
            (agv_infos[kind].axes[0] == 'i') == of_queries) {
            load_input(r, kind, row0, rows);
        }
    }
}

/* Rows of bias or mask; size: of their four axes. */
static void pair_start(const agv_source *s, const int64_t size[4], int64_t row0, int64_t start[3])
{
    start[0] = size[0] > 1 ? s->batch : 0;
    start[1] = size[1] > 1 ? s->head : 0;
    start[2] = size[2] > 1 ? row0 : 0;
}

static void load_mask(agv_runner *r, int64_t row0, int64_t rows)
{
    const ag_tensor *t = &r->source.args->mask;
    int64_t start[3];
    pair_start(&r->source, r->source.p->mask_size, row0, start);
    const uint8_t *base = (const uint8_t *)t->data + start[0] * t->strides[0] + start[1] * t->strides[1];
    const int64_t columns = r->problem.mask_size[3];
    for (int64_t i = 0; i < (r->source.p->mask_size[2] > 1 ? rows : 1); i++) {
        for (int64_t j = 0; j < columns; j++) {
            r->mask[i * columns + j] = base[(start[2] + i) * t->strides[2] + j * t->strides[3]];
        }
    }
}

static void load_pairs(agv_runner *r, int64_t row0, int64_t rows)
{
    const agv_source *s = &r->source;
    static const ag_tensor none;
    int64_t start[3];
    if (r->bias != NULL) {
        const int64_t bias_rows = s->p->bias_size[2] > 1 ? rows : 1, columns = r->problem.bias_size[3];
        pair_start(s, s->p->bias_size, row0, start);
        load_moved(&s->args->bias, &s->args->tbias, r->e, s->p->aux_dtype, start, bias_rows, columns,
                   r->bias);
        if (r->tbias != NULL) {
            load_moved(&s->args->tbias, &none, 0, s->p->aux_dtype, start, bias_rows, columns, r->tbias);
        }
    }
    if (r->mask != NULL) {
        load_mask(r, row0, rows);
    }
}

static void load_table(agv_runner *r)
{
    const agv_source *s = &r->source;
    static const ag_tensor none;
    const int64_t start[3] = {0, s->p->table_heads > 1 ? s->head : 0, 0};
    if (r->table != NULL) {
        load_moved(&s->args->table, &s->args->ttable, r->e, s->p->aux_dtype, start, 1, s->p->table_buckets,
                   r->table);
    }
    if (r->ttable != NULL) {
        load_moved(&s->args->ttable, &none, 0, s->p->aux_dtype, start, 1, s->p->table_buckets, r->ttable);
    }
}

/* ---- The problem of a block ---- */

static void pair_size(const int64_t whole[4], int64_t rows, int64_t keys, int64_t size[4])
{
    size[0] = size[1] = 1;
    size[2] = whole[2] > 1 ? rows : 1;
    size[3] = whole[3] > 1 ? keys : 1;
}

static void describe_block(agv_runner *r, int64_t rows)
{
    const agv_source *s = &r->source;
    ag_problem *p = &r->problem;
    *p = *s->p;
    p->struct_size = sizeof *p;
    p->flags &= ~(uint32_t)(AG_PACKED | AG_ALIBI);
    p->flags |= AG_SCALE | ((s->p->flags & AG_ALIBI) != 0 ? (uint32_t)AG_SLOPES : 0U);
    p->dtype = p->out_dtype = p->grad_dtype = p->aux_dtype = AG_F64;
    p->align = AG_ALIGN_TOP_LEFT;
    p->batch = p->heads = p->kv_heads = 1;
    p->q_len = rows;
    p->kv_len = s->n_k;
    p->q_total = p->kv_total = 0;
    p->table_heads = 1;
    pair_size(s->p->bias_size, rows, s->n_k, p->bias_size);
    pair_size(s->p->mask_size, rows, s->n_k, p->mask_size);
    p->head_offset = s->p->head_offset + s->head;
    if (p->flags & AG_SLOPES) {
        r->slope = s->p->alibi_slopes[s->head];
        p->alibi_slopes = &r->slope;
    }
}

/* The fused backend is the faster one for the maps, the reference the one with a trace; small blocks have both from
 * the reference, so that every digit of a page is the reference's. */
static ag_status make_plans(agv_runner *r, int64_t rows)
{
    ag_options options = AG_OPTIONS_INIT;
    ag_plan_destroy(r->plan);
    ag_plan_destroy(r->trace_plan);
    ag_plan_destroy(r->mask_plan);
    r->plan = r->trace_plan = r->mask_plan = NULL;
    describe_block(r, rows);
    const bool small = r->source.n_q * r->source.n_k <= REFERENCE_PAIRS;
    options.backend = small ? AG_BACKEND_REFERENCE : AG_BACKEND_AUTO;
    options.threads = r->source.threads;
    ag_status status = ag_plan_create(&r->plan, &r->problem, &options);
    options.backend = AG_BACKEND_REFERENCE;
    options.threads = 1;
    if (status == AG_OK) {
        status = ag_plan_create(&r->trace_plan, &r->problem, &options);
    }
    if (status == AG_OK && r->problem.dropout > 0) {
        ag_problem masked = r->problem;
        masked.dropout = 0;
        status = ag_plan_create(&r->mask_plan, &masked, &options);
    }
    return status;
}

static ag_status reserve(agv_runner *r, const ag_plan *plan)
{
    size_t bytes = 0;
    ag_status status = ag_plan_workspace(plan, r->maps, &bytes);
    if (status == AG_OK && bytes > r->bytes) {
        free(r->workspace);
        r->workspace = malloc(bytes);
        r->bytes = r->workspace != NULL ? bytes : 0;
        status = r->workspace != NULL ? AG_OK : AG_NO_MEMORY;
    }
    return status;
}

static ag_status plan_block(agv_runner *r, int64_t rows)
{
    ag_status status = r->plan != NULL && r->problem.q_len == rows ? AG_OK : make_plans(r, rows);
    if (status == AG_OK) {
        status = reserve(r, r->plan);
    }
    status = status == AG_OK ? reserve(r, r->trace_plan) : status;
    return status == AG_OK && r->mask_plan != NULL ? reserve(r, r->mask_plan) : status;
}

/* ---- Memory ---- */

static bool allocate(double **to, int64_t count)
{
    *to = calloc((size_t)(count > 0 ? count : 1), sizeof **to);
    return *to != NULL;
}

static bool allocate_values(agv_runner *r)
{
    bool made = true;
    for (agv_kind kind = 0; kind < AGV_KINDS && made; kind++) {
        const char rows = agv_infos[kind].axes[0];
        if (is_shown(r, kind)) {
            made = allocate(&r->values[kind], (rows == 'i'   ? r->max_rows
                                               : rows == 'j' ? r->source.n_k
                                                             : 1) *
                                                  agv_columns(&r->source, &agv_infos[kind]));
        }
    }
    return made;
}

static bool allocate_features(agv_runner *r)
{
    const ag_problem *p = r->source.p;
    const int64_t pairs = r->max_rows * r->source.n_k;
    const bool tangents = (r->maps & AG_MAP_JVP) != 0;
    bool made = (p->flags & AG_BIAS) == 0 || allocate(&r->bias, pairs);
    made = made && (!tangents || r->source.args->tbias.data == NULL || allocate(&r->tbias, pairs));
    made = made && ((p->flags & AG_TABLE) == 0 || allocate(&r->table, p->table_buckets));
    made =
        made && (!tangents || r->source.args->ttable.data == NULL || allocate(&r->ttable, p->table_buckets));
    if (made && (p->flags & AG_MASK) != 0) {
        r->mask = calloc((size_t)(pairs > 0 ? pairs : 1), 1);
        made = r->mask != NULL;
    }
    return made;
}

ag_status agv_runner_create(agv_runner *r, const agv_source *source, uint32_t maps)
{
    memset(r, 0, sizeof *r);
    r->source = *source;
    r->maps = maps;
    r->max_rows = BLOCK_PAIRS / (source->n_k > 0 ? source->n_k : 1);
    r->max_rows = r->max_rows < 1 ? 1 : r->max_rows > source->n_q ? source->n_q : r->max_rows;
    return allocate_values(r) && allocate_features(r) ? AG_OK : AG_NO_MEMORY;
}

void agv_runner_destroy(agv_runner *r)
{
    double *const memory[] = {r->bias, r->tbias, r->table, r->ttable};
    for (size_t n = 0; n < sizeof memory / sizeof memory[0]; n++) {
        free(memory[n]);
    }
    for (int kind = 0; kind < AGV_KINDS; kind++) {
        free(r->values[kind]);
    }
    free(r->mask);
    free(r->workspace);
    ag_plan_destroy(r->plan);
    ag_plan_destroy(r->trace_plan);
    ag_plan_destroy(r->mask_plan);
    memset(r, 0, sizeof *r);
}

/* ---- Running ---- */

void agv_runner_begin(agv_runner *r, double e)
{
    r->e = e;
    r->is_first = true;
    load_inputs(r, false, 0, 0);
    load_table(r);
}

static void set_arguments(agv_runner *r, int64_t row0, int64_t rows)
{
    const agv_source *s = &r->source;
    ag_args *a = &r->args;
    memset(a, 0, sizeof *a);
    a->struct_size = sizeof *a;
    a->q_offset = s->first_q + row0;
    a->k_offset = s->first_k;
    a->batch_offset = s->args->batch_offset + s->batch;
    a->seed = s->args->seed;
    for (int kind = 0; kind < AGV_KINDS; kind++) {
        const agv_info *info = &agv_infos[kind];
        if (r->values[kind] != NULL && (info->origin == INPUT || info->origin == OUTPUT)) {
            ag_tensor *tensor = (ag_tensor *)(void *)((char *)a + info->offset);
            *tensor = ag_bhnd(r->values[kind], 1, info->axes[0] == 'j' ? s->n_k : rows, agv_columns(s, info));
        }
    }
    a->bias = ag_bhnd(r->bias, 1, r->problem.bias_size[2], r->problem.bias_size[3]);
    a->tbias = ag_bhnd(r->tbias, 1, r->problem.bias_size[2], r->problem.bias_size[3]);
    a->mask = ag_bhnd(r->mask, 1, r->problem.mask_size[2], r->problem.mask_size[3]);
    a->table = ag_bhnd(r->table, 1, 1, s->p->table_buckets);
    a->ttable = ag_bhnd(r->ttable, 1, 1, s->p->table_buckets);
    if (!r->is_first) {
        a->accumulate = AG_ACC_DK | AG_ACC_DV | AG_ACC_DSINK | AG_ACC_TDK | AG_ACC_TDV | AG_ACC_TDSINK;
    }
}

static ag_status run_maps(agv_runner *r)
{
    const bool tangents = (r->maps & AG_MAP_JVP) != 0;
    ag_status status = (tangents ? ag_jvp : ag_forward)(r->plan, &r->args, NULL, r->workspace, r->bytes);
    if (status == AG_OK && (r->maps & AG_MAP_VJP) != 0) {
        status = ag_vjp(r->plan, &r->args, NULL, r->workspace, r->bytes);
    }
    if (status == AG_OK && (r->maps & AG_MAP_VJP_JVP) != 0) {
        status = ag_vjp_jvp(r->plan, &r->args, NULL, r->workspace, r->bytes);
    }
    return status;
}

static ag_status trace_map(agv_runner *r, uint32_t map)
{
    ag_trace_args trace = {.struct_size = sizeof trace};
    for (int kind = 0; kind < AGV_KINDS; kind++) {
        if (agv_infos[kind].origin == TRACE) {
            memcpy((char *)&trace + agv_infos[kind].offset, &r->values[kind], sizeof(double *));
        }
    }
    if (r->mask_plan == NULL) {
        trace.M = r->values[AGV_hidden]; /* see find_hidden */
    }
    return ag_trace(r->trace_plan, map, &r->args, &trace, r->workspace, r->bytes);
}

/* vjp_jvp has every variable; without it vjp and jvp have theirs. A trace clears what its map does not have, so what
 * vjp wrote is kept from jvp's. */
static ag_status run_trace(agv_runner *r)
{
    if (r->maps & AG_MAP_VJP_JVP) {
        return trace_map(r, AG_MAP_VJP_JVP);
    }
    if ((r->maps & AG_MAP_JVP) == 0) {
        return trace_map(r, r->maps & AG_MAP_VJP ? AG_MAP_VJP : AG_MAP_FORWARD);
    }
    ag_status status = trace_map(r, AG_MAP_JVP);
    if (status == AG_OK && (r->maps & AG_MAP_VJP) != 0) {
        double *const tangents[] = {r->values[AGV_tZ], r->values[AGV_tS], r->values[AGV_tP]};
        r->values[AGV_tZ] = r->values[AGV_tS] = r->values[AGV_tP] = NULL;
        status = trace_map(r, AG_MAP_VJP);
        r->values[AGV_tZ] = tangents[0], r->values[AGV_tS] = tangents[1], r->values[AGV_tP] = tangents[2];
    }
    return status;
}

/* Without dropout M is 1, and 0 for hidden pairs. */
static ag_status find_hidden(agv_runner *r, int64_t rows)
{
    double *hidden = r->values[AGV_hidden];
    const ag_trace_args trace = {.struct_size = sizeof trace, .M = hidden};
    ag_status status = AG_OK;
    if (r->mask_plan != NULL) {
        status = ag_trace(r->mask_plan, AG_MAP_FORWARD, &r->args, &trace, r->workspace, r->bytes);
    }
    for (int64_t n = 0; n < rows * r->source.n_k && status == AG_OK; n++) {
        hidden[n] = hidden[n] == 0;
    }
    return status;
}

/* tB, which the trace does not have: tS = tZ o phi'(Z) + tB. */
static void compute_tB(agv_runner *r, int64_t rows)
{
    double *const *v = r->values;
    for (int64_t n = 0; v[AGV_tB] != NULL && n < rows * r->source.n_k; n++) {
        const double phi1 = v[AGV_phi1] != NULL ? v[AGV_phi1][n] : 1;
        v[AGV_tB][n] = v[AGV_hidden][n] != 0 ? 0 : v[AGV_tS][n] - v[AGV_tZ][n] * phi1;
    }
}

ag_status agv_runner_block(agv_runner *r, int64_t row0, int64_t rows)
{
    ag_status status = plan_block(r, rows);
    if (status != AG_OK) {
        return status;
    }
    load_inputs(r, true, row0, rows);
    load_pairs(r, row0, rows);
    set_arguments(r, row0, rows);
    status = run_maps(r);
    status = status == AG_OK ? run_trace(r) : status;
    if (status == AG_OK) {
        status = find_hidden(r, rows);
        compute_tB(r, rows);
    }
    r->rows = rows;
    r->is_first = false;
    return status;
}
