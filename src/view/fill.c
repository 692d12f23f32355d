/* Fills in a head of a page: its maps and their trace, block by block of query rows, and forward along the tangent. */
#include "view/runner.h"
#include "view/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void agv_describe_head(agv_head *head, const ag_plan *plan, const ag_args *args, uint32_t maps)
{
    const agv_source s = agv_source_of(plan, args, head->batch, head->head);
    for (int kind = 0; kind < AGV_KINDS; kind++) {
        const agv_info *info = &agv_infos[kind];
        if ((info->maps & maps) != 0 && agv_has(s.p, args, info->feature)) {
            agv_variable *v = agv_add_variable(&head->variables, info->name, info->axes, agv_rows(&s, info),
                                               agv_columns(&s, info));
            v->is_flag = kind == AGV_hidden;
            v->is_absent = info->origin == INPUT && agv_tensor_of(args, info)->data == NULL;
        }
    }
}

/* ---- The numbers ---- */

static ag_status make_room(agv_head *head)
{
    ag_status status = AG_OK;
    for (int n = 0; n < head->variables.count && status == AG_OK; n++) {
        status = agv_make_room(&head->variables.items[n], &head->extent);
    }
    return status;
}

static void collect_block(agv_head *head, const agv_runner *r, int64_t row0)
{
    for (int kind = 0; kind < AGV_KINDS; kind++) {
        const agv_info *info = &agv_infos[kind];
        if (r->values[kind] != NULL && info->axes[0] == 'i') {
            const bool is_of_pairs = strcmp(info->axes, "ij") == 0 && kind != AGV_hidden;
            agv_collect(agv_find_variable(&head->variables, info->name), &head->extent, row0, r->rows,
                        r->values[kind], is_of_pairs ? r->values[AGV_hidden] : NULL);
        }
    }
}

/* Variables whose rows are keys are complete after the last block. */
static void collect_rest(agv_head *head, const agv_runner *r)
{
    for (int kind = 0; kind < AGV_KINDS; kind++) {
        const agv_info *info = &agv_infos[kind];
        if (r->values[kind] != NULL && info->axes[0] != 'i') {
            agv_collect(agv_find_variable(&head->variables, info->name), &head->extent, 0,
                        agv_rows(&r->source, info), r->values[kind], NULL);
        }
    }
    for (int n = 0; n < head->variables.count; n++) {
        agv_finish(&head->variables.items[n]);
    }
}

ag_status agv_report(agv_progress *progress, double rows)
{
    const agv_request *request = progress != NULL ? progress->request : NULL;
    if (request == NULL || request->progress == NULL) {
        return AG_OK;
    }
    progress->done += rows;
    return request->progress(request->ctx, progress->done / progress->total) ? AG_CANCELLED : AG_OK;
}

ag_status agv_fill_head(agv_head *head, const ag_plan *plan, const ag_args *args, uint32_t maps,
                        agv_progress *progress)
{
    const agv_source source = agv_source_of(plan, args, head->batch, head->head);
    agv_runner r;
    ag_status status = make_room(head);
    if (status != AG_OK) {
        return status;
    }
    status = agv_runner_create(&r, &source, maps, true);
    if (status == AG_OK) {
        agv_runner_begin(&r, 0);
    }
    for (int64_t row = 0; row < source.n_q && status == AG_OK; row += r.max_rows) {
        const int64_t left = source.n_q - row;
        status = agv_runner_block(&r, row, left < r.max_rows ? left : r.max_rows);
        if (status == AG_OK) {
            collect_block(head, &r, row);
            status = agv_report(progress, (double)r.rows);
        }
    }
    if (status == AG_OK) {
        collect_rest(head, &r);
    }
    agv_runner_destroy(&r);
    return status;
}

/* ---- Along the tangent ---- */

void agv_set_steps(agv_page *page, double inputs, double tangents, bool for_norms)
{
    int exponent = 0;
    page->n_steps = for_norms ? AGV_NORM_STEPS : AGV_MAX_STEPS;
    if (inputs > 0 && tangents > 0 && isfinite(inputs / tangents)) {
        exponent = (int)lround(log2(inputs / tangents)) - 1;
    }
    for (int n = 0; n < page->n_steps; n++) {
        const double step = for_norms ? ldexp(1, n + 1 - page->n_steps) : (n - AGV_MAX_STEPS / 2) / 10.0;
        page->steps[n] = ldexp(step, exponent);
    }
}

static ag_status collect_step(const agv_page *page, agv_head *head, const agv_runner *r, int step)
{
    ag_status status = AG_OK;
    for (int kind = 0; kind < AGV_KINDS && status == AG_OK; kind++) {
        const agv_info *info = &agv_infos[kind];
        const bool is_result = info->origin != COMPUTED && (info->origin != INPUT || page->layer_heads > 0);
        if (r->values[kind] != NULL && is_result && info->feature == HAS_ALWAYS) {
            status = agv_collect_along(page, agv_find_variable(&head->variables, info->name), step,
                                       r->values[kind]);
        }
    }
    return status;
}

ag_status agv_fill_step(const agv_page *page, agv_head *head, const ag_plan *plan, const ag_args *args,
                        int step, double e)
{
    const agv_source source = agv_source_of(plan, args, head->batch, head->head);
    agv_runner r;
    ag_status status = agv_runner_create(&r, &source, page->along_maps, true);
    if (status == AG_OK) {
        agv_runner_begin(&r, e);
        status = agv_runner_block(&r, 0, source.n_q);
    }
    if (status == AG_OK) {
        status = collect_step(page, head, &r, step);
    }
    agv_runner_destroy(&r);
    return status;
}

/* ---- Norms along the tangent, for long sequences ---- */

typedef struct {
    double *O, *tO; /* at the inputs */
    double change, error;
} comparison;

static void take_rows(const agv_runner *r, int64_t row0, comparison *c)
{
    const size_t size = (size_t)(r->rows * r->source.p->dim_v) * sizeof(double);
    const int64_t first = row0 * r->source.p->dim_v;
    memcpy(c->O + first, r->values[AGV_O], size);
    memcpy(c->tO + first, r->values[AGV_tO], size);
}

static void compare_rows(const agv_runner *r, int64_t row0, comparison *c)
{
    const int64_t width = r->source.p->dim_v;
    for (int64_t n = 0; n < r->rows * width; n++) {
        const double change = r->values[AGV_O][n] - c->O[row0 * width + n];
        const double error = change - r->e * c->tO[row0 * width + n];
        c->change += change * change;
        c->error += error * error;
    }
}

static ag_status run_rows(agv_runner *r, double e, void (*use)(const agv_runner *, int64_t, comparison *),
                          comparison *c, agv_progress *progress)
{
    ag_status status = AG_OK;
    agv_runner_begin(r, e);
    for (int64_t row = 0; row < r->source.n_q && status == AG_OK; row += r->max_rows) {
        const int64_t left = r->source.n_q - row;
        status = agv_runner_block(r, row, left < r->max_rows ? left : r->max_rows);
        if (status == AG_OK) {
            use(r, row, c);
            status = agv_report(progress, (double)r->rows * AGV_NORM_SHARE);
        }
    }
    return status;
}

static ag_status compare_steps(const agv_page *page, agv_head *head, agv_runner *r, comparison *c,
                               agv_progress *progress)
{
    ag_status status = run_rows(r, 0, take_rows, c, progress);
    for (int step = 0; step < page->n_steps && status == AG_OK; step++) {
        c->change = c->error = 0;
        status = run_rows(r, page->steps[step], compare_rows, c, progress);
        head->change[step] = sqrt(c->change);
        head->error[step] = sqrt(c->error);
    }
    head->has_norms = status == AG_OK;
    return status;
}

ag_status agv_fill_norms(const agv_page *page, agv_head *head, const ag_plan *plan, const ag_args *args,
                         agv_progress *progress)
{
    const agv_source source = agv_source_of(plan, args, head->batch, head->head);
    const size_t count = (size_t)(source.n_q * source.p->dim_v);
    comparison c = {calloc(count, sizeof(double)), calloc(count, sizeof(double)), 0, 0};
    agv_runner r;
    ag_status status = agv_runner_create(&r, &source, AG_MAP_FORWARD | AG_MAP_JVP, false);
    if (c.O == NULL || c.tO == NULL) {
        status = AG_NO_MEMORY;
    }
    if (status == AG_OK) {
        status = compare_steps(page, head, &r, &c, progress);
    }
    agv_runner_destroy(&r);
    free(c.O);
    free(c.tO);
    return status;
}
