/* Forward and jvp: blocks of query rows, each walking over all the keys it sees, with the state of the online softmax
 * kept per row. If there are few blocks, the keys are split: each split is walked with a state of its own, and the
 * states are merged. Compiled twice, with real = float and real = double. row_ in a name: belongs to
 * forward and jvp. */
#ifndef AGI_CPU_ROWS_H
#define AGI_CPU_ROWS_H

#include "cpu/drivers/tile.h"

enum {
    ROW_BLOCK = 192, /* queries of a block, if the ops do not want more */
    ROW_PANELS = 16, /* max panels of a block */
    ROW_KEYS = 128,  /* max keys of a tile */
    /* Row stride of a score tile: an odd number of cache lines, so that columns spread over the cache's sets. */
    ROW_LD = PANEL + AGI_CACHE_LINE / (int)sizeof(real)
};

/* The state of the online softmax of one panel of queries: m the running maximum of the scores in base 2, l the sum of
 * weights p = 2^(S - m), O the sum of p V, not yet divided by l. In jvp r is the shift of the score tangents, a the sum
 * of p (tS - r), and tO the sum of p ((tS - r) V + tV). */
typedef struct {
    int64_t index;  /* of the panel in its block */
    int64_t i0, ni; /* its queries */
    int64_t W;      /* lanes: ni, rounded up to whole vectors */
    real *O, *tO;   /* [PANEL][Dv_pad] */
    real *m, *l;    /* [PANEL] */
    real *r, *a;
} agi_row_panel;

/* One thread's scratch. */
typedef struct {
    agi_row_panel panel[ROW_PANELS];
    real *X, *tX, *F, *M; /* features of a tile: see agi_row_scores */
    real *alpha, *delta;  /* [PANEL]: rescaling of the sums, see agi_kernels.softmax */
    uint8_t *masked_keys; /* [ROW_KEYS] */
    void *own;            /* scratch of the ops */
} agi_row_scratch;

/* One call of forward or jvp: what every work item is given. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    agi_row_scratch *scratch; /* one per thread */
    real *states;             /* of all panels and splits, if the keys are split */
    bool small;               /* small heads are run by ops->small_head */
} agi_row_job;

/* The operations that forward and jvp are made of. For each block of queries the drivers call begin, then block for
 * each block of keys that the queries see, end, and store for each panel. If the keys are split, store is called
 * after the merge, on another thread's scratch. */
typedef struct agi_row_ops {
    int64_t max_queries; /* max queries of a block */
    int64_t
        min_blocks; /* with so many blocks of queries or more, keys are not split and blocks not made smaller */
    int64_t block_keys; /* keys of a block */
    int64_t key_step;   /* a block of keys starts at a multiple of this */
    int64_t query_step; /* row statistics are padded to a multiple of this; 0: to whole vectors */

    /* Lays out the scratch of one thread, s->own. In a dry run that is NULL. */
    void (*lay_out)(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map);

    /* Loads the queries of the panels and zeroes their sums. item: the work item, for prefetching. */
    void (*begin)(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, const agi_row_panel *panels,
                  int64_t n_panels, int64_t item);

    /* Runs all panels against keys j0 .. j0 + nj - 1. Later calls continue up to key end - 1. */
    void (*block)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels, int64_t j0,
                  int64_t nj, int64_t end);

    /* After the last block of keys. If the keys are split, O and tO must be in the panels after it, by rows. May be
     * NULL. */
    void (*end)(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, agi_row_panel *panels,
                int64_t n_panels);

    /* Stores O and tO of a panel, row r times factor[r], in the caller's arrays. */
    void (*store)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                  const agi_row_panel *panel, const double *factor);

    /* The small-head path; both NULL if there is none. small_call: does the call qualify? small_head: runs a head that
     * is small, and returns false if it is not. */
    bool (*small_call)(const agi_call *call);
    bool (*small_head)(agi_row_scratch *s, const agi_head *x);
} agi_row_ops;

/* ---- rows.c ---- */

void REAL(agi_row_lay_out)(agi_row_job *w, agi_arena *arena, const ag_plan *plan, agi_map map);
ag_status REAL(agi_row_run)(const agi_call *call, void *memory);

/* Sets *x to the head of a block of queries; returns the block's first query. */
int64_t REAL(agi_row_begin_item)(const agi_call *call, const agi_row_schedule *schedule, int64_t block,
                                 agi_head *x);

/* A store for ops whose O and tO are in the panel, by rows. */
void REAL(agi_row_store_panel)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                               const agi_row_panel *panel, const double *factor);

/* ---- schedule.c: splits of the keys ---- */

/* How many splits a sequence has, and how many keys each of them. */
typedef struct {
    int64_t n, keys;
} agi_key_splits;
agi_key_splits REAL(agi_key_splits_of)(const agi_head *x, const agi_row_schedule *schedule);

/* How many panels have a state for each split; 0 if no keys are split. */
int64_t REAL(agi_split_panels)(const ag_plan *plan, const agi_row_schedule *schedule);

/* The number, among all of these, of panel `index` of a work item. */
int64_t REAL(agi_split_panel)(const ag_plan *plan, const agi_row_schedule *schedule, int64_t item,
                              int64_t index);

/* ---- rows_merge.c: merging splits of the keys ---- */

/* How many reals the states of all splits have; 0 if there is one split. */
int64_t REAL(agi_row_state_size)(const ag_plan *plan, agi_map map);

/* Panel `index` of the block that starts at query i0; its state is in the scratch or, if the keys are split, in the
 * memory of the work item. */
agi_row_panel REAL(agi_row_panel_of)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                                     int64_t i0, int64_t index, int64_t item);

/* Merges row i of another split's panel into this one; the other state is overwritten. */
void REAL(agi_row_merge_row)(const agi_head *x, agi_row_panel *panel, const agi_row_panel *other, int64_t i);

/* ---- row_scores.c: what all ops do to scores ---- */

/* Which of keys j0 .. j0 + nj - 1 queries i0 .. i0 + ni - 1 see: *n of them, from j0 + *from on. False if band, mask
 * and bias leave none. */
bool REAL(agi_clip_keys)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, int64_t *from,
                         int64_t *n);

/* Applies all features to the scores in T. Fills X, what was added to the scores, tX, its tangent, F, the derivative
 * of the softcap, and masked_keys. Returns whether there is a key that no query of the panel sees. */
bool REAL(agi_row_scores)(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, real *T,
                          int64_t ld, int64_t j0, int64_t nj);

#endif
