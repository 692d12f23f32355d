/* The backend's table and its loop over sequences and heads.
 *
 * A work item owns everything that it adds to: the gradients of K and V are sums over a group of query heads,
 * those of a broadcast bias, of the table and of the sink are sums over sequences and perhaps heads. So an
 * item is one kv head of one sequence, together with all others that add to the same sum. The order inside an
 * item is fixed: the same bits for any number of threads. */
#include <string.h>

#include "reference/head.h"
#include "reference/reference.h"

/* ---- Workspace ---- */

void agi_reference_lay_out(agi_reference_layout *layout, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    const bool sums = map == AGI_VJP || map == AGI_VJP_JVP;
    memset(layout, 0, sizeof *layout);
    if (sums && agi_has(p, AG_BIAS)) {
        layout->sum_bias = agi_take(arena, agi_count(p->bias_size), sizeof(double));
    }
    if (sums && agi_has(p, AG_TABLE)) {
        layout->sum_table =
            agi_take(arena, agi_saturating_product(p->table_heads, p->table_buckets, 1, 1), sizeof(double));
    }
    if (sums && agi_has(p, AG_SINK)) {
        layout->sum_sink = agi_take(arena, p->heads, sizeof(double));
    }
    layout->heads = agi_take(arena, plan->threads, sizeof(head));
    for (int64_t scratch_index = 0; scratch_index < plan->threads; scratch_index++) {
        head dry;
        agi_reference_lay_out_head(layout->heads == NULL ? &dry : &layout->heads[scratch_index], arena, plan,
                                   map);
    }
}

static size_t workspace(const ag_plan *plan, agi_map map)
{
    agi_reference_layout layout;
    agi_arena arena = agi_arena_begin(NULL);
    agi_reference_lay_out(&layout, &arena, plan, map);
    return agi_arena_bytes(&arena);
}

/* ---- The loop ---- */

/* join_b, join_hk: number of sequences and of kv heads in one item. items_hk: number of items that the kv heads of a
 * sequence form. */
typedef struct {
    const agi_call *call;
    agi_reference_layout *layout;
    int64_t join_b, join_hk, items_hk;
} loop;

/* Joins the sequences and kv heads that add to the same sum. */
static void join(loop *x, const ag_problem *p)
{
    const bool sums = x->call->map == AGI_VJP || x->call->map == AGI_VJP_JVP;
    const bool bias_b = agi_has(p, AG_BIAS) && p->bias_size[0] == 1;
    const bool bias_h = agi_has(p, AG_BIAS) && p->bias_size[1] == 1;
    const bool table_h = agi_has(p, AG_TABLE) && p->table_heads == 1;
    x->join_b = sums && (bias_b || agi_has(p, AG_TABLE | AG_SINK)) && p->batch > 0 ? p->batch : 1;
    x->join_hk = sums && (bias_h || table_h) ? p->kv_heads : 1;
    x->items_hk = p->kv_heads / x->join_hk;
}

void agi_reference_run_head(head *x)
{
    agi_reference_features(x);
    switch (x->call->map) {
    case AGI_FORWARD: agi_reference_forward(x); break;
    case AGI_VJP: agi_reference_vjp(x); break;
    case AGI_JVP: agi_reference_jvp(x); break;
    case AGI_VJP_JVP: agi_reference_vjp_jvp(x); break;
    default: agi_reference_jvp_jvp(x); break;
    }
}

/* One kv head of one sequence: all query heads of its group, in order. */
static void run_group(head *x, const agi_call *call, int64_t b, int64_t hk)
{
    const int64_t group = call->plan->p.heads / call->plan->p.kv_heads;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        agi_reference_begin_head(x, call, b, h);
        if (h == hk * group) {
            agi_reference_load_keys(x);
        }
        agi_reference_load_queries(x);
        agi_reference_run_head(x);
        agi_reference_store_queries(x);
    }
    agi_reference_store_keys(x);
}

static void run_item(void *arg, int64_t item, int64_t scratch_index)
{
    const loop *x = arg;
    head *my_head = &x->layout->heads[scratch_index];
    const int64_t first_b = item / x->items_hk * x->join_b;
    const int64_t first_hk = item % x->items_hk * x->join_hk;
    my_head->sum_bias = x->layout->sum_bias;
    my_head->sum_table = x->layout->sum_table;
    my_head->sum_sink = x->layout->sum_sink;
    for (int64_t b = first_b; b < first_b + x->join_b; b++) {
        for (int64_t hk = first_hk; hk < first_hk + x->join_hk; hk++) {
            run_group(my_head, x->call, b, hk);
        }
    }
}

/* ---- Sums over sequences and heads ---- */

/* Rows of n_columns each, so that the call can be cancelled between them. */
static void clear_sum(const agi_call *call, double *sum, int64_t n_rows, int64_t n_columns)
{
    for (int64_t row = 0; row < n_rows && sum != NULL && !agi_cancelled(call->exec); row++) {
        memset(sum + row * n_columns, 0, (size_t)n_columns * sizeof sum[0]);
    }
}

static void clear_sums(const agi_call *call, const agi_reference_layout *layout)
{
    const ag_problem *p = &call->plan->p;
    const int64_t *bias = p->bias_size;
    clear_sum(call, layout->sum_bias, bias[0] * bias[1] * bias[2], bias[3]);
    clear_sum(call, layout->sum_table, p->table_heads, p->table_buckets);
    clear_sum(call, layout->sum_sink, 1, p->heads);
}

static void store_sum(const agi_call *call, const ag_tensor *t, uint32_t bit, agi_shape shape,
                      const double *sum)
{
    const agi_output out = {t, call->plan->p.aux_dtype, (call->a.accumulate & bit) != 0, false};
    int64_t size[4];
    agi_shape_of(&call->plan->p, shape, size);
    for (int64_t row = 0; row < size[0] * size[1] * size[2] && sum != NULL && !agi_cancelled(call->exec);
         row++) {
        const int64_t head_row = row / size[2];
        agi_store_rows(out, head_row / size[1], head_row % size[1], row % size[2], 1, size[3],
                       sum + row * size[3], 0);
    }
}

static void store_sums(const agi_call *call, const agi_reference_layout *layout)
{
    const ag_args *a = &call->a;
    const bool vjp = call->map == AGI_VJP;
    store_sum(call, vjp ? &a->dbias : &a->tdbias, vjp ? AG_ACC_DBIAS : AG_ACC_TDBIAS, AGI_SHAPE_BIAS,
              layout->sum_bias);
    store_sum(call, vjp ? &a->dtable : &a->tdtable, vjp ? AG_ACC_DTABLE : AG_ACC_TDTABLE, AGI_SHAPE_TABLE,
              layout->sum_table);
    store_sum(call, vjp ? &a->dsink : &a->tdsink, vjp ? AG_ACC_DSINK : AG_ACC_TDSINK, AGI_SHAPE_SINK,
              layout->sum_sink);
}

/* ---- The table ---- */

/* See agi_loop: plain loops take some ten times as long per multiplication as a vector unit. */
static double cost_of(const ag_problem *p)
{
    const double pairs = (double)p->batch * (double)p->heads * (double)p->q_len * (double)p->kv_len;
    return 64 * pairs * (double)(p->dim_qk + p->dim_v);
}

static ag_status run(const agi_call *call, void *memory)
{
    const ag_problem *p = &call->plan->p;
    agi_reference_layout layout;
    agi_arena arena = agi_arena_begin(memory);
    agi_reference_lay_out(&layout, &arena, call->plan, call->map);
    loop x = {.call = call, .layout = &layout};
    join(&x, p);
    clear_sums(call, &layout);
    const agi_loop items = {p->batch / x.join_b * x.items_hk, cost_of(p), run_item, &x};
    const ag_status status = agi_parallel_for(call->plan, call->exec, &items);
    if (status == AG_OK) {
        agi_store_packed_tails(call);
        store_sums(call, &layout);
    }
    return status;
}

/* Accepts every problem, with every option. */
static ag_status accept(ag_plan *plan)
{
    (void)plan;
    return AG_OK;
}

static void fill_info(const ag_plan *plan, ag_plan_info *info)
{
    (void)plan;
    info->compute_dtype = AG_F64;
    info->deterministic = 1;
}

const agi_backend agi_reference_backend = {
    .id = AG_BACKEND_REFERENCE,
    .name = "reference",
    .abilities = AGI_CAN_JVP_JVP | AGI_CAN_GIVEN_O | AGI_CAN_SEQUENCE_OFFSETS | AGI_CAN_INVARIANT,
    .accept = accept,
    .workspace = workspace,
    .run = run,
    .merge = agi_reference_merge,
    .trace = agi_reference_trace,
    .info = fill_info,
};
