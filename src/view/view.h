/* attngrad_view: the page of a call of attention. The command `attngrad view` and Python's explain both write it here,
 * so the same call gives the same bytes. */
#ifndef ATTNGRAD_VIEW_VIEW_H
#define ATTNGRAD_VIEW_VIEW_H

#include "view/page.h"

/* Queries and keys that are there in full, and along the tangent, if the caller names none. */
enum { AGV_WINDOW_LENGTH = 64 };

/* What of a call a page shows. A zero field: chosen by the size of the call. */
typedef struct agv_request {
    uint32_t maps;                  /* AG_MAP_*, of those that the call has the inputs for: agv_maps_of */
    const int64_t *batches, *heads; /* the heads to show: each of these heads in each of these sequences */
    int64_t n_batches, n_heads;
    int64_t rows[2], keys[2]; /* of a long sequence: those from .. to - 1 in full, and along the tangent */

    /* Called after every block of work with the share that is done; not zero: stop, with AG_CANCELLED. May be NULL. */
    int (*progress)(void *ctx, double share);
    void *ctx;
} agv_request;

/* The maps that a call has the inputs for: vjp if there is a cotangent, jvp if there is a tangent, vjp_jvp if both. */
uint32_t agv_maps_of(const ag_args *args);

/* Adds sizes, dtype and features of a call, in words. The problem is complete, as ag_plan_problem has it. */
void agv_add_facts(agv_lines *facts, const ag_problem *p, const ag_args *args);

/* Fills in a page with the heads of a call: everything but the title, facts of the caller, and the layer. page is zero
 * at first; the caller frees it, also after a failure. message[AGV_LINE_SIZE] gets a line about a failure. */
ag_status agv_page_of_call(agv_page *page, const ag_plan *plan, const ag_args *args,
                           const agv_request *request, char *message);

/* ---- Its parts, for a page of a layer, which is more than one call ---- */

/* How far the work is: rows of all heads. */
typedef struct agv_progress {
    const agv_request *request;
    double done, total;
} agv_progress;

/* Adds rows to what is done and tells the caller; AG_CANCELLED if it wants to stop. progress may be NULL. */
ag_status agv_report(agv_progress *progress, double rows);

/* Adds the variables of a head without their numbers. */
void agv_describe_head(agv_head *head, const ag_plan *plan, const ag_args *args, uint32_t maps);

/* Runs the maps of a head and collects their numbers. progress may be NULL. */
ag_status agv_fill_head(agv_head *head, const ag_plan *plan, const ag_args *args, uint32_t maps,
                        agv_progress *progress);

/* ---- Along the tangent ---- */

/* Chooses what is known along the tangent: of as many queries and keys as there is room for, and of vjp, too, if the
 * page shows its tangent and there is room. No maps: there is no room at all. */
void agv_choose_along(agv_page *page, const ag_plan *plan, const ag_args *args, const agv_request *request);

/* Rows of all heads at all steps. */
double agv_rows_along(const agv_page *page);

/* Computes what was chosen. The heads are filled in. */
ag_status agv_fill_along(agv_page *page, const ag_plan *plan, const ag_args *args, agv_progress *progress);

/* The steps along the tangent: from -1 to 1 times half the ratio of the inputs' size to the tangents'. */
void agv_set_steps(agv_page *page, double inputs, double tangents);

/* Runs page->along_maps at the inputs plus e times their tangents, for the queries of head->along, and keeps the
 * results as those of this step. */
ag_status agv_fill_step(const agv_page *page, agv_head *head, const ag_plan *plan, const ag_args *args,
                        int step, double e);

/* ---- Size ---- */

/* Bytes of the file that the numbers of a head take. */
double agv_bytes(const agv_head *head, const agv_extent *extent);

#endif
