/* Forward and jvp: blocks of query rows, each walking over all the keys it sees, with the online
 * softmax's state beside it. Where blocks are few the keys are walked in parts, each with a state of its
 * own, and the states are joined. Compiled for each real. */
#ifndef AGI_CPU_ROWWISE_H
#define AGI_CPU_ROWWISE_H

#include "cpu/amx/amx_operands.h"

enum {
    ROW_BLOCK = 192,      /* queries of a work item */
    AMX_ROW_BLOCK = 1024, /* at most, on the AMX unit: its operands of the keys take longer to make */
    ROW_PANELS = 16,      /* panels of a work item, at most */
    ROW_KEYS = 128,       /* keys of a tile */
    /* Numbers from key to key there: an odd number of cache lines, so that columns spread over the cache. */
    ROW_LD = PANEL + AGI_CACHE_LINE / (int)sizeof(real),
    AMX_KEYS = 1024,                    /* keys of a block on the AMX unit */
    AMX_WAITING = AMX_KEYS / GROUP_KEYS /* groups of keys whose weights wait for their product with V */
};

/* How the work is cut: a function of the shape alone. */
typedef struct {
    int64_t rows;   /* queries of a block */
    int64_t blocks; /* of a head's queries */
    int64_t items;  /* blocks of all heads */
    int64_t parts;  /* of the keys */
    int64_t keys;   /* of a part */
} agi_row_schedule;

agi_row_schedule agi_row_schedule_of(const ag_plan *plan, agi_map map);

/* The state of one panel of queries. */
typedef struct {
    int64_t i0, ni; /* its queries */
    int64_t W;      /* lanes: ni, rounded up to whole vectors */
    real *QT, *tQT; /* [Dk][PANEL] */
    agi_rows Q, tQ; /* of few queries instead; QT and tQT are the scratch for them */
    real *O, *tO;   /* [PANEL][Dv_pad]: O' and T' */
    real *m, *l;    /* [PANEL] */
    real *r, *a;
} agi_row_panel;

/* What a panel has beside that on the AMX unit: operands, and the sums O'^T and T'^T. */
typedef struct {
    amx_operand columns, t_columns;
    uint16_t *Q;  /* with tQ before it, where there are tangents */
    real *O, *tO; /* in tiles, by columns */
    real *norms;  /* [PANEL]: of Q */
    bool empty;   /* nothing has been added to the sums, and they are not zero yet */
} agi_amx_panel;

/* One thread's scratch there. */
typedef struct {
    agi_amx_panel panel[ROW_PANELS];
    uint16_t *K, *V, *tV; /* operands of a block of keys; K with tK */
    real *T[2], *U[2];    /* score tiles of a group, one filled while the other is used */
    int turn;             /* the one that is filled next */
    uint16_t *P, *tP;     /* weights that wait, as pairs, and their tangents */
    uint16_t *rows, *clean;
    uint8_t *keep;              /* [AMX_WAITING][GROUP_KEYS]: the panel sees the key */
    agi_amx_ahead ahead, after; /* what comes next, and what the item after this one begins with */
} agi_amx_row_scratch;

/* One thread's scratch. */
typedef struct {
    agi_row_panel panel[ROW_PANELS];
    real *T, *U;           /* score tiles, [ROW_KEYS][ROW_LD] */
    real *X, *tX, *F, *M;  /* features of the tile */
    real *K, *V, *tK, *tV; /* converted rows */
    real *clean;           /* V or tV without the keys that nobody sees */
    real *alpha, *delta;   /* [PANEL] */
    uint8_t *unseen;       /* [ROW_KEYS] */
    agi_amx_row_scratch amx;
} agi_row_scratch;

/* The rows of a block of keys, as the products want them. */
typedef struct {
    int64_t j0, nj;
    int64_t ahead; /* rows of K from the first on that lie in one array: the block's, or the sequence's */
    agi_rows K, V, tK, tV;
} agi_key_block;

void agi_row_lay_out(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, const agi_kernels *k,
                     agi_map map);

/* One call: what its items are given. */
typedef struct {
    const agi_call *call;
    const agi_kernels *k;
    agi_row_schedule schedule;
    agi_row_scratch *scratch; /* one a thread */
    real *states;             /* of the parts, where the keys are cut */
    bool small;               /* short heads are for small.c */
} agi_row_job;

/* Part number % parts of item number / parts. */
void agi_row_item(const agi_row_job *w, agi_row_scratch *s, int64_t number);

/* Makes one of an item's parts, where there are several. */
void agi_row_join(const agi_row_job *w, agi_row_scratch *s, int64_t item);

/* ---- rowwise_parts.c ---- */

/* Numbers that the states of all items' parts take; 0 where there is one part. */
int64_t agi_row_states(const ag_plan *plan, const agi_kernels *k, agi_map map);

/* Panel q of the block at i0; its state in the scratch, or, with parts, in the memory of part `number`. */
agi_row_panel agi_row_panel_of(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x, int64_t i0,
                               int64_t q, int64_t number);

/* Row i of another part is added to the panel's; the other's state is used up. */
void agi_row_join_row(const agi_head *x, agi_row_panel *panel, const agi_row_panel *other, int64_t i);

/* ---- forward.c, jvp.c: one tile of each map ---- */

void agi_forward_tile(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const agi_key_block *keys);
void agi_jvp_tile(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const agi_key_block *keys);

/* The keys of the block that the panel sees: the block's rows from *from on, *n of them. False where
 * band, mask and bias leave none. */
bool agi_clip_keys(const agi_head *x, const agi_row_panel *panel, const agi_key_block *keys, int64_t *from,
                   int64_t *n);

/* T = S^T = K Q^T for the block's rows from .. from + nj - 1. */
void agi_row_product(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                     const agi_key_block *keys, int64_t from, int64_t nj);

/* Scores in T become what softmax takes; returns whether some key is seen by no query of the panel. */
bool agi_row_scores(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, real *T, int64_t ld,
                    int64_t j0, int64_t nj);

#endif
