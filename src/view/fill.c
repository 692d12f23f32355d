/* Fills in a head of a page: its maps and their trace, block by block of query rows, and along the tangent. */
#include "view/runner.h"
#include "view/view.h"

#include <math.h>
#include <string.h>

void agv_describe_head(agv_head *head, const ag_plan *plan, const ag_args *args, uint32_t maps)
{
    const agv_source s = agv_source_of(plan, args, head->batch, head->head);
    head->slope = s.p->alibi_slopes != NULL ? s.p->alibi_slopes[head->head] : 0;
    head->first[0] = s.first_q;
    head->first[1] = s.first_k;
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
    status = agv_runner_create(&r, &source, maps);
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

void agv_set_steps(agv_page *page, double inputs, double tangents)
{
    int exponent = 0;
    page->n_steps = AGV_MAX_STEPS;
    if (inputs > 0 && tangents > 0 && isfinite(inputs / tangents)) {
        exponent = (int)lround(log2(inputs / tangents)) - 1;
    }
    for (int n = 0; n < page->n_steps; n++) {
        page->steps[n] = ldexp((n - AGV_MAX_STEPS / 2) / 10.0, exponent);
    }
}

/* Variables whose rows are keys are sums over all queries. */
static bool is_known(const agv_page *page, const agv_head *head, const agv_runner *r, agv_kind kind)
{
    const agv_info *info = &agv_infos[kind];
    const bool is_result = info->origin != COMPUTED && (info->origin != INPUT || page->layer_heads > 0);
    const bool has_rows = info->axes[0] == 'i' || (head->along[0] == 0 && head->along[1] == r->source.n_q);
    return r->values[kind] != NULL && is_result && has_rows && info->feature == HAS_ALWAYS;
}

static ag_status collect_step(const agv_page *page, agv_head *head, const agv_runner *r, int step,
                              int64_t row0)
{
    ag_status status = AG_OK;
    for (agv_kind kind = 0; kind < AGV_KINDS && status == AG_OK; kind++) {
        const agv_info *info = &agv_infos[kind];
        const bool of_queries = info->axes[0] == 'i';
        if (is_known(page, head, r, kind)) {
            status = agv_collect_along(page, agv_find_variable(&head->variables, info->name), head->along,
                                       step, of_queries ? row0 : 0,
                                       of_queries ? r->rows : agv_rows(&r->source, info), r->values[kind]);
        }
    }
    return status;
}

ag_status agv_fill_step(const agv_page *page, agv_head *head, const ag_plan *plan, const ag_args *args,
                        int step, double e)
{
    const agv_source source = agv_source_of(plan, args, head->batch, head->head);
    agv_runner r;
    ag_status status = agv_runner_create(&r, &source, page->along_maps);
    if (status == AG_OK) {
        agv_runner_begin(&r, e);
    }
    for (int64_t row = head->along[0]; row < head->along[1] && status == AG_OK; row += r.max_rows) {
        const int64_t left = head->along[1] - row;
        status = agv_runner_block(&r, row, left < r.max_rows ? left : r.max_rows);
        status = status == AG_OK ? collect_step(page, head, &r, step, row) : status;
    }
    agv_runner_destroy(&r);
    return status;
}
