/* What the files of the row ops on AMX share: the scratch, and one function for each step of a block of keys.
 * amx_rows.c is the order of the steps. */
#ifndef AGI_CPU_AMX_ROWS_H
#define AGI_CPU_AMX_ROWS_H

#include "cpu/amx/amx_operands.h"
#include "cpu/drivers/rows.h"

enum {
    BLOCK_KEYS = 1024,                    /* keys of a block */
    MAX_PENDING = BLOCK_KEYS / GROUP_KEYS /* max groups of keys whose weights are not yet multiplied with V */
};

/* Operands of a panel, and the sums O'^T and T'^T. */
typedef struct {
    amx_operand queries, t_queries;
    uint16_t *Q;  /* memory of the operands: [tQ | Q], or Q in forward */
    real *O, *tO; /* by columns of tiles */
    real *norms;  /* [PANEL]: norms of the queries; infinite: do not use the exp2 table */
    bool empty;   /* the sums are not set yet: the first product overwrites them */
} agi_amx_panel;

/* One thread's scratch. */
typedef struct {
    agi_amx_panel panel[ROW_PANELS];
    uint16_t *K, *V, *tV; /* operands of a block of keys: [K | tK], V and tV transposed */
    real *T[2], *U[2];    /* score tiles of two groups: one is computed while the other is used */
    int next_buffer;      /* which of the two is computed next */
    uint16_t *P, *tP;     /* pending weights and their tangents, in VNNI pairs of keys */
    uint16_t *rows, *zeroed;
    uint8_t *visible; /* [MAX_PENDING][GROUP_KEYS]: does some query of the panel see the key? */
    agi_prefetch_rows prefetch, after; /* rows that are read next, and the first rows of the next item */
    amx_config before;                 /* the caller's tile configuration, restored at the end of an item */
} agi_amx_row_scratch;

/* The operands of keys j0 .. j0 + nj - 1, a block. */
typedef struct {
    int64_t j0, nj;
    amx_operand K, V, tV; /* [K | tK], V and tV transposed; tV.p is NULL if it is absent */
    /* Per group: times the norm of a query, an upper bound of |c S|. */
    float max_score_per_norm[BLOCK_KEYS / GROUP_KEYS];
} agi_amx_row_keys;

/* The groups of a block whose weights are pending: n groups, starting with number `first` of the block. Bit g
 * of `partial`: group first + g has keys that no query of the panel sees. */
typedef struct {
    int64_t first, n;
    uint32_t partial;
} agi_amx_pending_groups;

_Static_assert(MAX_PENDING <= 32, "a bit for each group that is pending");

/* Group g of the block, number `at` of the pending ones. The panel sees its keys from .. to - 1. */
typedef struct {
    int64_t g, at, from, to;
    float *T, *U;
} agi_amx_key_group;

/* Lanes of a panel: its queries, rounded up to whole blocks of two tiles. */
static inline int64_t agi_amx_lanes(const agi_row_panel *panel)
{
    return agi_round_up(panel->ni, AMX_DEPTH);
}

/* May weights come from the exp2 table? */
static inline bool agi_amx_may_use_exp2_lut(const agi_head *x)
{
    return x->call->map == AGI_FORWARD && x->has.plain && !x->has.dropout;
}

/* amx_row_panels.c. Begin: the operands of the panel's queries; its sums are empty. End, after the last key:
 * corrects l for the truncation of the weights, and zeroes the sums if they are still empty. */
void agi_amx_begin_panel(agi_amx_row_scratch *s, const agi_head *x, const agi_row_panel *panel);
void agi_amx_end_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel);

/* Copies the sums to the panel's O and tO, by rows. */
void agi_amx_transpose_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel);

/* Rescales the sums after the running maximum m grew; if r changed with it, T' += (r_old - r_new) O'. */
void agi_amx_rescale_panel(const agi_head *x, const agi_amx_panel *panel, int64_t lanes, const float *alpha,
                           const float *delta);

/* amx_row_weights.c: the weights of a group, rounded, and the products of the next group. Both return whether
 * the sums so far must be rescaled, by s->alpha and s->delta. The first is for a whole panel whose queries
 * see all keys of the group, without features and dropout; the second is for any group, and notes which of
 * its keys are visible. */
bool agi_amx_whole_group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                                 const agi_amx_panel *own, const agi_amx_row_keys *keys,
                                 const agi_amx_key_group *group, const amx_queue *next);
bool agi_amx_group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                           const agi_amx_panel *own, const agi_amx_row_keys *keys,
                           const agi_amx_key_group *group, const amx_queue *next);

/* amx_row_values.c: adds the pending weights times V to the sums of the panel. */
void agi_amx_flush_pending(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                           const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_pending_groups *w);

/* amx_row_prefetch.c. Notes the first rows of the next item in s->after. A thread usually takes the item
 * after this one next. Not if keys are split, as splits are short, and not in jvp, whose cache is full. */
void agi_amx_prefetch_next_item(const agi_row_job *w, agi_amx_row_scratch *s, const agi_head *x,
                                int64_t item);

/* Plans the prefetch of keys next .. next + n - 1 during the given number of groups of this block; of
 * s->after if n <= 0. */
void agi_amx_begin_row_prefetch(agi_amx_row_scratch *s, const agi_head *x, int64_t next, int64_t n,
                                int64_t groups);

#endif
