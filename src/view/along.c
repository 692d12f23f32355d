/* Along the tangent: which numbers of a page are known at steps of the inputs along their tangents, and their
 * computation. */
#include "view/runner.h"
#include "view/view.h"

#include <math.h>

/* ---- How much of it ---- */

/* Bytes of the page for the results of forward, or of forward and vjp, at every step. */
static double along_bytes(const agv_page *page, bool has_vjp)
{
    static const char *const names[] = {"Z", "S", "P", "L", "O", "D", "dP", "dS", "dQ", "dK", "dV"};
    double bytes = 0;
    for (int64_t h = 0; h < page->n_heads; h++) {
        agv_head *head = &page->heads[h];
        for (size_t n = 0; n < (has_vjp ? sizeof names / sizeof names[0] : 5); n++) {
            const agv_variable *v = agv_find_variable(&head->variables, names[n]);
            const int64_t count = agv_count_in(v, head->along);
            bytes += (double)count * AGV_MAX_STEPS * (count > AGV_DOUBLE_ALONG ? 4 : 8) * 4 / 3;
        }
    }
    return bytes;
}

static bool fits_along(const agv_page *page, bool has_vjp)
{
    double bytes = AGV_MAX_FRAME + along_bytes(page, has_vjp);
    for (int64_t h = 0; h < page->n_heads; h++) {
        bytes += agv_bytes(&page->heads[h], &page->heads[h].extent);
    }
    return bytes <= AGV_MAX_PAGE;
}

/* At most `limit` numbers of an axis: of its window if it has one (NULL: it has every number), else of the part that
 * the caller names, else of all. */
static void set_part(int64_t part[2], const int64_t *window, const int64_t asked[2], int64_t length,
                     int64_t limit)
{
    const bool is_named = asked[1] > 0 && length > limit;
    const int64_t first = window != NULL ? window[0] : is_named ? asked[0] : 0;
    const int64_t end = window != NULL ? window[1] : is_named ? asked[1] : length;
    part[0] = first;
    part[1] = end - first < limit ? end : first + limit;
}

static void set_parts(agv_page *page, const ag_plan *plan, const ag_args *args, const agv_request *request,
                      int64_t limit)
{
    for (int64_t n = 0; n < page->n_heads; n++) {
        agv_head *head = &page->heads[n];
        const agv_source s = agv_source_of(plan, args, head->batch, head->head);
        const int64_t *window = head->extent.is_full ? NULL : head->extent.window;
        set_part(head->along, window, request->rows, s.n_q, limit);
        set_part(head->along + 2, window != NULL ? window + 2 : NULL, request->keys, s.n_k, limit);
    }
}

void agv_choose_along(agv_page *page, const ag_plan *plan, const ag_args *args, const agv_request *request)
{
    const bool second = (page->maps & AG_MAP_VJP_JVP) != 0;
    page->along_maps = 0;
    for (int64_t limit = AGV_WINDOW_LENGTH; limit > 0 && page->along_maps == 0; limit /= 2) {
        set_parts(page, plan, args, request, limit);
        if (second && fits_along(page, true)) {
            page->along_maps = AG_MAP_FORWARD | AG_MAP_VJP;
        } else if (fits_along(page, false)) {
            page->along_maps = AG_MAP_FORWARD;
        }
    }
}

/* ---- The steps ---- */

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

/* ---- All of them ---- */

static double rows_along(const agv_head *head)
{
    return (double)(head->along[1] - head->along[0]);
}

double agv_rows_along(const agv_page *page)
{
    double rows = 0;
    for (int64_t n = 0; n < page->n_heads && page->along_maps != 0; n++) {
        rows += AGV_MAX_STEPS * rows_along(&page->heads[n]);
    }
    return rows;
}

/* Of three variables together: their sums of squares add up. hypot would ask for glibc 2.35 in the wheel. */
static double norm_of(agv_list *list, const char *const names[3])
{
    agv_stats all = {0};
    for (int n = 0; n < 3; n++) {
        const agv_stats *stats = &agv_find_variable(list, names[n])->stats;
        for (int k = 0; k < 3; k++) {
            all.squares[k] += stats->squares[k];
        }
    }
    return agv_norm(&all);
}

ag_status agv_fill_along(agv_page *page, const ag_plan *plan, const ag_args *args, agv_progress *progress)
{
    static const char *const inputs[] = {"Q", "K", "V"}, *const tangents[] = {"tQ", "tK", "tV"};
    agv_list *first = &page->heads[0].variables;
    ag_status status = AG_OK;
    if (page->along_maps == 0) {
        return AG_OK;
    }
    agv_set_steps(page, norm_of(first, inputs), norm_of(first, tangents));
    for (int64_t n = 0; n < page->n_heads * page->n_steps && status == AG_OK; n++) {
        agv_head *head = &page->heads[n / page->n_steps];
        const int step = (int)(n % page->n_steps);
        status = agv_fill_step(page, head, plan, args, step, page->steps[step]);
        status = status == AG_OK ? agv_report(progress, rows_along(head)) : status;
    }
    return status;
}
