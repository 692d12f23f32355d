/* Fills in a head of a page: its maps and their trace, block by block of query rows. */
#include "view/runner.h"
#include "view/view.h"

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
