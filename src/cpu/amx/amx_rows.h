/* Shared by the files of the row ops (forward and jvp) on AMX: the scratch, and the functions for each step of a
 * block of keys. amx_rows.c calls them in order. */
#ifndef AGI_CPU_AMX_ROWS_H
#define AGI_CPU_AMX_ROWS_H

#include "cpu/amx/amx_operands.h"
#include "cpu/drivers/rows.h"

enum {
    BLOCK_KEYS = 1024,                    /* keys of a block */
    MAX_PENDING = BLOCK_KEYS / GROUP_KEYS /* max groups of keys whose weights are not yet multiplied with V */
};

/* Operands of a panel, and the sums O^T and tO^T, not yet divided by l. */
typedef struct {
    amx_operand queries, t_queries;
    uint16_t *Q;  /* memory of the operands: [tQ | Q], or Q in forward */
    real *O, *tO; /* tiles in column-major order */
    /* [PANEL]: the sums of the rounded weights, and of their tangents, minus l and a, the sums of the exact ones. */
    real *excess, *t_excess;
    bool few_keys; /* a query sees FEW_KEYS or fewer: see there */
    bool empty;    /* no sums yet: the first product overwrites the memory */
} agi_amx_panel;

/* One thread's scratch. */
typedef struct {
    agi_amx_panel panel[ROW_PANELS];
    uint16_t *K, *V, *tV;       /* operands of a block of keys: [K | tK], V and tV transposed */
    real *T[2], *U[2];          /* score tiles of two groups: one is computed while the other is used */
    int next_buffer;            /* which of the two is computed next, 0 or 1 */
    uint16_t *P, *tP;           /* pending weights and their tangents, in VNNI pairs of keys */
    uint16_t *P_rest, *tP_rest; /* what rounding took from those of one group, likewise */
    uint16_t *rows;             /* [PANEL]: copied rows of queries or keys */
    uint16_t *zeroed;           /* V or tV of one group, with masked keys zero */
    uint8_t *visible;           /* [MAX_PENDING][GROUP_KEYS]: does some query of the panel see the key? */
    agi_prefetch_rows prefetch, next_item; /* the rows to prefetch; the first rows of the next item */
    amx_config saved_config; /* the caller's tile configuration, restored at the end of an item */
} agi_amx_row_scratch;

/* The operands of keys j0 .. j0 + nj - 1, a block. */
typedef struct {
    int64_t j0, nj;
    amx_operand K, V, tV; /* [K | tK], V and tV transposed; tV.p is NULL if it is absent */
} agi_amx_row_keys;

/* The groups of a block whose weights are pending, in slots 0 .. n - 1: groups first .. first + n - 1 of the block.
 * Bit g of `partial`: the group in slot g has keys that no query of the panel sees. */
typedef struct {
    int64_t first, n;
    uint32_t partial;
} agi_amx_pending_groups;

_Static_assert(MAX_PENDING <= 32, "one bit per pending group");

/* Group g of the block, whose weights go to slot `slot` of the pending ones. The panel sees its keys from .. to - 1. */
typedef struct {
    int64_t g, slot, from, to;
    float *T, *U; /* its scores, and in jvp tQ K^T + Q tK^T; transposed */
} agi_amx_key_group;

/* Lanes of a panel: its queries, rounded up to whole blocks of two tiles. */
static inline int64_t agi_amx_lanes(const agi_row_panel *panel)
{
    return agi_round_up(panel->ni, AMX_DEPTH);
}

/* amx_row_panels.c. Begin: makes the operands of the panel's queries and marks its sums as empty. End, after the
 * last key: corrects O and tO for the excess of the rounded weights; zeroes them if they are still empty. */
void agi_amx_begin_panel(agi_amx_row_scratch *s, const agi_head *x, const agi_row_panel *panel);
void agi_amx_end_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel);

/* Copies the sums to the panel's O and tO, by rows. */
void agi_amx_transpose_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel);

/* Rescales the sums by alpha after the running maximum m grew. In jvp r changed with it: first tO += delta O, with
 * delta = r_old - r_new. */
void agi_amx_rescale_panel(const agi_head *x, const agi_amx_panel *panel, int64_t lanes, const float *alpha,
                           const float *delta);

/* amx_row_weights.c: the weights of a group, rounded, and the queued products of the next group. Both return whether
 * the sums so far must be rescaled, by s->alpha and s->delta. The first is for a full panel whose queries all
 * see all keys of the group, without features and dropout; the second is for any group, and records in s->own which
 * of its keys are visible. */
bool agi_amx_whole_group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                                 const agi_amx_panel *amx_panel, const agi_amx_row_keys *keys,
                                 const agi_amx_key_group *group, const amx_queue *next);
bool agi_amx_group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                           const agi_amx_panel *amx_panel, const agi_amx_row_keys *keys,
                           const agi_amx_key_group *group, const amx_queue *next);

/* amx_row_values.c: adds the pending weights times V to the sums of the panel. */
void agi_amx_flush_pending(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                           const agi_amx_row_keys *keys, int64_t lanes,
                           const agi_amx_pending_groups *pending);

/* Adds what rounding took from the weights of one group, times V. They are in group->T and group->U, in float32;
 * rescaled: the sums are. */
void agi_amx_add_rest(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                      const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_key_group *group);

/* amx_row_prefetch.c. Collects the first rows of the next item in s->next_item: a thread usually takes items in
 * order. None if keys are split, as splits are short, nor in jvp, whose data fill the cache. */
void agi_amx_prefetch_next_item(const agi_row_job *w, agi_amx_row_scratch *s, const agi_head *x,
                                int64_t item);

/* Spreads the prefetch of keys next .. next + n - 1, or of s->next_item if n <= 0, over the given number of groups
 * of this block. */
void agi_amx_begin_row_prefetch(agi_amx_row_scratch *s, const agi_head *x, int64_t next, int64_t n,
                                int64_t groups);

#endif
