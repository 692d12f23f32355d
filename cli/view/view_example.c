/* The page of the worked example: the layer of `attngrad demo` with its gradients, its tangents along the direction of
 * the demo's checks, the tangents of its gradients, and its variables at steps along that direction. */
#include "demo/demo_example.h"
#include "view_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t all_tokens[4] = {0, TOKENS, 0, TOKENS}; /* queries and keys */

/* The example and everything along its direction. */
struct along {
    struct layer layer;
    struct example e;
    struct inputs tx, tdx;
    struct activations ta;
    double tf, tdC[ROWS];
};

/* tdC = tdY Wo^T + dY tWo^T, with tdY = tY, as dY = Y - T. */
static void compute_tdC(struct along *a)
{
    for (int i = 0; i < TOKENS; i++) {
        for (int n = 0; n < MODEL; n++) {
            a->tdC[i * MODEL + n] = 0;
            for (int m = 0; m < MODEL; m++) {
                a->tdC[i * MODEL + n] += a->ta.Y[i * MODEL + m] * a->e.x.Wo[n * MODEL + m] +
                                         a->e.da.Y[i * MODEL + m] * a->tx.Wo[n * MODEL + m];
            }
        }
    }
}

static void compute(struct along *a)
{
    double tY[ROWS];
    example_run(&a->layer, &a->e);
    example_direction(1.0, &a->tx);
    layer_along(&a->layer, &a->e.x, &a->tx, a->e.da.Y, tY, &a->tdx);
    layer_jvp(&a->layer, &a->e.x, &a->tx, &a->ta);
    compute_tdC(a);
    a->tf = 0;
    for (int n = 0; n < ROWS; n++) {
        a->tf += a->e.da.Y[n] * a->ta.Y[n];
    }
}

/* ---- The layer's variables ---- */

static void add(agv_page *page, const char *name, const char *axes, int rows, int columns,
                const double *values)
{
    static const agv_extent all = {.is_full = true, .width = 8};
    agv_variable *v = agv_add_variable(&page->layer, name, axes, rows, columns);
    if (agv_make_room(v, &all) == AG_OK) {
        agv_collect(v, &all, 0, rows, values, NULL);
    }
}

static void add_tokens(agv_page *page, const char *name, const char *axes, const double *values)
{
    add(page, name, axes, TOKENS, MODEL, values);
}

static void add_weights(agv_page *page, const char *const names[4], const struct inputs *w)
{
    add(page, names[0], "mn", MODEL, MODEL, w->Wq);
    add(page, names[1], "mn", MODEL, MODEL, w->Wk);
    add(page, names[2], "mn", MODEL, MODEL, w->Wv);
    add(page, names[3], "nm", MODEL, MODEL, w->Wo);
}

static void add_layer(agv_page *page, const struct along *a)
{
    const struct example *e = &a->e;
    add_tokens(page, "X", "im", e->x.X);
    add_weights(page, (const char *const[]){"Wq", "Wk", "Wv", "Wo"}, &e->x);
    add_tokens(page, "C", "in", e->a.C);
    add_tokens(page, "Y", "im", e->a.Y);
    add_tokens(page, "T", "im", e->T);
    add(page, "f", "rr", 1, 1, &e->f);
    add_tokens(page, "dY", "im", e->da.Y);
    add_tokens(page, "dC", "in", e->da.C);
    add_weights(page, (const char *const[]){"dWq", "dWk", "dWv", "dWo"}, &e->dx);
    add_tokens(page, "dX", "im", e->dx.X);
    add_tokens(page, "tX", "im", a->tx.X);
    add_weights(page, (const char *const[]){"tWq", "tWk", "tWv", "tWo"}, &a->tx);
    add_tokens(page, "tC", "in", a->ta.C);
    add_tokens(page, "tY", "im", a->ta.Y);
    add(page, "tf", "rr", 1, 1, &a->tf);
    add_tokens(page, "tdY", "im", a->ta.Y);
    add_tokens(page, "tdC", "in", a->tdC);
    add_weights(page, (const char *const[]){"tdWq", "tdWk", "tdWv", "tdWo"}, &a->tdx);
    add_tokens(page, "tdX", "im", a->tdx.X);
}

/* ---- The heads ---- */

static ag_args head_arguments(const struct activations *a)
{
    ag_args args = {.struct_size = sizeof args};
    args.q = rows_of(a->Q), args.k = rows_of(a->K), args.v = rows_of(a->V);
    return args;
}

static ag_status add_heads(agv_page *page, const struct along *a)
{
    const ag_plan *plan = ag_layer_plan(a->layer.layer);
    ag_args args = head_arguments(&a->e.a);
    ag_status status = AG_OK;
    args.d_o = rows_of(a->e.da.C);
    args.tq = rows_of(a->ta.Q), args.tk = rows_of(a->ta.K), args.tv = rows_of(a->ta.V);
    args.td_o = rows_of(a->tdC);
    page->heads = calloc(HEADS, sizeof page->heads[0]);
    if (page->heads == NULL) {
        return AG_NO_MEMORY;
    }
    for (page->n_heads = 0; page->n_heads < HEADS && status == AG_OK; page->n_heads++) {
        agv_head *head = &page->heads[page->n_heads];
        head->head = page->n_heads;
        head->extent.is_full = true;
        head->extent.width = 8;
        memcpy(head->along, all_tokens, sizeof head->along);
        agv_describe_head(head, plan, &args, page->maps);
        status = agv_fill_head(head, plan, &args, page->maps, NULL);
    }
    return status;
}

/* ---- Along the direction ---- */

static ag_status collect(agv_page *page, const char *name, int step, const double *values)
{
    agv_variable *v = agv_find_variable(&page->layer, name);
    return agv_collect_along(page, v, all_tokens, step, 0, v->shape[0], values);
}

static ag_status add_step(agv_page *page, struct along *a, int step)
{
    double x[INPUTS], tx[INPUTS];
    struct inputs moved, gradient;
    struct activations at, da;
    memcpy(x, &a->e.x, sizeof x);
    memcpy(tx, &a->tx, sizeof tx);
    for (int n = 0; n < INPUTS; n++) {
        x[n] += page->steps[step] * tx[n];
    }
    memcpy(&moved, x, sizeof moved);
    const double f = example_loss(&a->layer, a->e.T, &moved, &at);
    example_gradient(&a->layer, a->e.T, &moved, &at, &da, &gradient);
    ag_args args = head_arguments(&at);
    args.d_o = rows_of(da.C);
    ag_status status = a->layer.status;
    for (int h = 0; h < HEADS && status == AG_OK; h++) {
        status = agv_fill_step(page, &page->heads[h], ag_layer_plan(a->layer.layer), &args, step, 0);
    }
    const struct {
        const char *name;
        const double *values;
    } results[] = {{"C", at.C},          {"Y", at.Y},          {"f", &f},
                   {"dY", da.Y},         {"dC", da.C},         {"dWq", gradient.Wq},
                   {"dWk", gradient.Wk}, {"dWv", gradient.Wv}, {"dWo", gradient.Wo},
                   {"dX", gradient.X}};
    for (size_t n = 0; n < sizeof results / sizeof results[0] && status == AG_OK; n++) {
        status = collect(page, results[n].name, step, results[n].values);
    }
    return status;
}

static double norm_of(const struct inputs *x)
{
    double values[INPUTS], squares = 0;
    memcpy(values, x, sizeof values);
    for (int n = 0; n < INPUTS; n++) {
        squares += values[n] * values[n];
    }
    return sqrt(squares);
}

static ag_status fill_in(agv_page *page, struct along *a)
{
    compute(a);
    ag_status status = a->layer.status;
    page->maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP;
    page->along_maps = AG_MAP_FORWARD | AG_MAP_VJP;
    page->layer_heads = HEADS;
    page->scale = 1 / sqrt(DIM);
    add_layer(page, a);
    if (status == AG_OK) {
        status = add_heads(page, a);
    }
    agv_set_steps(page, norm_of(&a->e.x), norm_of(&a->tx));
    for (int step = 0; step < page->n_steps && status == AG_OK; step++) {
        status = add_step(page, a, step);
    }
    return status;
}

ag_status view_example(agv_page *page)
{
    struct along *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return AG_NO_MEMORY;
    }
    layer_create(&a->layer);
    ag_status status = a->layer.status == AG_OK ? fill_in(page, a) : a->layer.status;
    layer_destroy(&a->layer);
    free(a);
    agv_add_line(&page->facts, "worked example: one self-attention layer, %d tokens", TOKENS);
    agv_add_line(&page->facts, "d_model %d", MODEL);
    agv_add_line(&page->facts, "%d heads of %d channels", HEADS, DIM);
    return status;
}
