/* Runs the maps and the trace of one head in float64, a block of query rows after another: memory grows with the block,
 * not with the square of the sequence. */
#ifndef ATTNGRAD_VIEW_RUNNER_H
#define ATTNGRAD_VIEW_RUNNER_H

#include "view/variables.h"

/* A head of a call: where its rows are. */
typedef struct agv_source {
    const ag_problem *p; /* of the call's plan, with every default filled in */
    const ag_args *args;
    int32_t threads; /* of the call's plan */
    int64_t batch, head, kv_head;
    int64_t n_q, n_k;         /* lengths of the sequence */
    int64_t row_q, row_k;     /* its first rows in the tensors */
    int64_t first_q, first_k; /* positions of query 0 and key 0 */
} agv_source;

agv_source agv_source_of(const ag_plan *plan, const ag_args *args, int64_t batch, int64_t head);

/* The shape of a variable of this head. */
int64_t agv_rows(const agv_source *s, const agv_info *info);
int64_t agv_columns(const agv_source *s, const agv_info *info);

typedef struct agv_runner {
    agv_source source;
    uint32_t maps;
    double e;           /* the inputs are those of the call plus e times their tangents */
    int64_t max_rows;   /* of a block */
    int64_t rows;       /* of the block that was run last */
    bool is_first;      /* no block was run yet: sums over queries start */
    ag_problem problem; /* of a block */
    ag_args args;
    ag_plan *plan, *trace_plan;
    ag_plan *mask_plan; /* the problem without dropout, if it has dropout; see find_hidden */
    double slope;
    double *values
        [AGV_KINDS]; /* of the block; of variables whose rows are keys, and of numbers: of the whole head */
    double *bias, *tbias, *table, *ttable;
    uint8_t *mask;
    void *workspace;
    size_t bytes;
} agv_runner;

/* On failure, too, the runner is to be destroyed. A status other than AG_NO_MEMORY has its text in
 * ag_last_message(). */
ag_status agv_runner_create(agv_runner *r, const agv_source *source, uint32_t maps);
void agv_runner_destroy(agv_runner *r);

/* Loads keys, values and what else all queries share, at e, and starts the sums over queries. */
void agv_runner_begin(agv_runner *r, double e);

/* Runs rows row0 .. row0 + rows - 1, at most max_rows. */
ag_status agv_runner_block(agv_runner *r, int64_t row0, int64_t rows);

#endif
