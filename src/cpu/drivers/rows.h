/* Forward and jvp: blocks of query rows, each walking over all the keys it sees, with the state of the online softmax
 * kept per row. If there are few blocks, the keys are cut into parts, each walked with a state of its own, and the
 * states are merged. Compiled for each real. */
#ifndef AGI_CPU_ROWS_H
#define AGI_CPU_ROWS_H

#include "cpu/drivers/tile.h"

enum {
    ROW_BLOCK = 192, /* queries of a work item, if the ops want no more */
    ROW_PANELS = 16, /* panels of a work item, at most */
    ROW_KEYS = 128,  /* keys of a tile that features work on, at most */
    /* Numbers from key to key there: an odd number of cache lines, so that columns spread over the cache. */
    ROW_LD = PANEL + AGI_CACHE_LINE / (int)sizeof(real)
};

/* The state of one panel of queries. */
typedef struct {
    int64_t q;      /* its number in the work item */
    int64_t i0, ni; /* its queries */
    int64_t W;      /* lanes: ni, rounded up to whole vectors */
    real *O, *tO;   /* [PANEL][Dv_pad]: O' and T' */
    real *m, *l;    /* [PANEL] */
    real *r, *a;
} agi_row_panel;

/* One thread's scratch. */
typedef struct {
    agi_row_panel panel[ROW_PANELS];
    real *X, *tX, *F, *M; /* features of a tile */
    real *alpha, *delta;  /* [PANEL] */
    uint8_t *masked_keys; /* [ROW_KEYS] */
    void *own;            /* of who runs the maps */
} agi_row_scratch;

/* One call: what its items are given. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    agi_row_scratch *scratch; /* one per thread */
    real *states;             /* of the parts, if the keys are cut */
    bool small;               /* small heads are run by ops->small_head */
} agi_row_job;

/* Who runs forward and jvp. A work item is begun, given its blocks of keys in order, ended, and stored. */
typedef struct agi_row_ops {
    int64_t max_queries; /* of a work item */
    int64_t min_blocks;  /* of queries: with so many, blocks get no smaller and keys are not cut into parts */
    int64_t block_keys;  /* keys of a block */
    int64_t key_step;    /* a block begins at a multiple of this */
    int64_t query_step;  /* statistics are kept for a multiple of so many queries; 0: of a vector's lanes */

    /* Takes a thread's scratch: s->own. In a dry run nothing may be stored there. */
    void (*lay_out)(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map);

    /* The panels' operands, and their sums at zero. */
    void (*begin)(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, const agi_row_panel *panels,
                  int64_t n_panels, int64_t item);

    /* All panels against keys j0 .. j0 + nj - 1; those up to end - 1 come next. */
    void (*block)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels, int64_t j0,
                  int64_t nj, int64_t end);

    /* After the last block. If the keys are cut into parts, O' and T' are in the panel now, by rows. May be NULL. */
    void (*end)(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, agi_row_panel *panels,
                int64_t n_panels);

    /* O and tO of a panel, row r times factor[r], to the caller's arrays. */
    void (*store)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                  const agi_row_panel *panel, const double *factor);

    /* Both NULL, or: may the call's heads be run whole, if they are small? Runs one, if it is small. */
    bool (*small_call)(const agi_call *call);
    bool (*small_head)(agi_row_scratch *s, const agi_head *x);
} agi_row_ops;

/* ---- rows.c ---- */

void REAL(agi_row_lay_out)(agi_row_job *w, agi_arena *arena, const ag_plan *plan, agi_map map);
ag_status REAL(agi_row_run)(const agi_call *call, const ag_exec *exec, void *memory);

/* The head and the first query of a work item, not counting parts of the keys. */
int64_t REAL(agi_row_begin_item)(const agi_row_job *w, int64_t item, agi_head *x);

/* The ops' store for O' and T' that lie in the panel, by rows. */
void REAL(agi_row_store_panel)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                               const agi_row_panel *panel, const double *factor);

/* ---- rows_merge.c: parts of the keys ---- */

/* Numbers that the states of all items' parts take; 0 if there is one split. */
int64_t REAL(agi_row_states)(const ag_plan *plan, agi_map map);

/* Panel q of the block at i0; its state in the scratch, or, with parts, in the memory of part `number`. */
agi_row_panel REAL(agi_row_panel_of)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                                     int64_t i0, int64_t q, int64_t number);

/* Adds row i of another part to the panel's; the other's state is used up. */
void REAL(agi_row_merge_row)(const agi_head *x, agi_row_panel *panel, const agi_row_panel *other, int64_t i);

/* ---- row_scores.c: what all ops do to scores ---- */

/* Of keys j0 .. j0 + nj - 1 those that the panel sees: *n of them, from number *from on. False if band, mask and bias
 * leave none. */
bool REAL(agi_clip_keys)(const agi_head *x, const agi_row_panel *panel, int64_t j0, int64_t nj, int64_t *from,
                         int64_t *n);

/* Scores in T become what softmax takes; returns whether some key is seen by no query of the panel. */
bool REAL(agi_row_scores)(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, real *T,
                          int64_t ld, int64_t j0, int64_t nj);

#endif
