/* vjp and vjp_jvp: the order of their work, and what their tiles share. Compiled twice, with real = float and real =
 * double.
 *
 * Keys are taken in spans of a few blocks. For one span a thread walks over tiles of queries; the gradients dK
 * and dV of the span are summed in the thread's own memory. If there is one span, dQ of a tile is complete after
 * it; if there are several, dQ is summed in an array of reals for the whole sequence and rounded to its dtype
 * after the last one.
 *
 *     reduction group   sequences and kv heads that share a sum (the gradient of a broadcast bias, of a table);
 *                       otherwise one kv head of one sequence. Groups are independent: a work item is a group
 *     pass              one or several spans of keys of one kv head of one sequence of a group, with all query heads
 *                       that use it
 *     part              if there are few groups, a pass is cut into parts, which are the work items: one of its spans,
 *                       each with separate sums of dQ, and one split of the queries, each with separate sums of dK and
 *                       dV. Tiles of queries are dealt out to G splits: tiles s, s + G, s + 2 G, ... The sums are
 *                       added in order after each pass
 *     chain             if there are fewer than 64 groups with many spans in all, these are the work items instead. All
 *                       spans of a group add to the same sums of dQ, for each tile of queries in order: a span waits
 *                       for the one before it. A chain is memory for the sums of one group at a time
 *
 * All of it is a function of the shape. In vjp_jvp the gradients are tdQ, tdK, tdV and so on; here they have
 * vjp's names. */
#ifndef AGI_CPU_BACKWARD_H
#define AGI_CPU_BACKWARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "cpu/drivers/tile.h"

/* Queries of a tile: fewer in float64, whose score tiles take twice the cache. */
enum { TILE_ROWS_F32 = 192, TILE_ROWS_F64 = 128 };

enum {
    TILE_ROWS = sizeof(real) == sizeof(double) ? TILE_ROWS_F64 : TILE_ROWS_F32,
    TILE_PANELS = TILE_ROWS / PANEL,
    TILE_PAD = AGI_CACHE_LINE / (int)sizeof(real),
    TILE_LD = TILE_ROWS + TILE_PAD, /* odd number of cache lines: columns spread over the cache's sets */
    ROW_CHUNK = 16                  /* rows of O that are converted to reals at once */
};

/* A tile of queries, with its statistics. */
typedef struct {
    int64_t i0, ni;
    real *L_high, *L_low, *D, *mu, *tD; /* [TILE_ROWS]: row statistics; log2(e) L = L_high + L_low */
    double *Ps;                         /* [TILE_ROWS]: the weight of the sink */
    uint8_t *sees_no_key;               /* [TILE_ROWS]: the query sees no key, so its O is zero */
    real *dQ;                           /* where its dQ is summed, in the ops' own layout */
} agi_query_tile;

/* A block of keys, j0 .. j0 + nj - 1, and where its dK and dV are summed, in the ops' own layout. */
typedef struct {
    int64_t j0, nj;
    real *dK, *dV;
} agi_backward_key_block;

/* Score tiles, T[key][query], each computed in place: P holds Q K^T, then S, P and R = P o M; dS holds dP, then dS and
 * dZ; in vjp_jvp U and tdS hold their tangents, up to tR and tdZ. Z = scale Q K^T are the scores before the softcap, S
 * those after all features, M the dropout factors. */
typedef struct {
    real *P, *U, *dS, *tdS;
} agi_score_tiles;

/* One thread's scratch. */
typedef struct {
    agi_query_tile tile;
    real *X, *tX, *F, *G, *M;                 /* features of the score tiles: see agi_patch_weights */
    uint8_t *masked_keys, *panel_masked_keys; /* [block]: masked for all queries of the tile, of a panel */
    real *dK, *dV;                            /* sums of the span, unless its splits are work items */
    real *split_dK, *split_dV;                /* those of a split, before they are added to dK and dV */
    real *dQ;      /* one span: a tile; several, not shared: [heads per kv head][dq_rows][dq_width] */
    real *deltas;  /* [heads per kv head][2][Nq]: D and tD, if there are several spans, not shared */
    int64_t chain; /* that the thread works at, -1: none yet; see chains.c */
    void *own;     /* scratch of the ops */
} agi_backward_scratch;

/* A chain: the group that it is at, -1 if none yet, and how many of its spans have begun. */
typedef struct {
    int64_t group, spans_begun;
} agi_chain;

/* What all threads share. dK, dV, dQ and deltas: if work items are parts of passes. */
typedef struct {
    real *dK,
        *dV; /* [groups][q_splits][key_splits][span][D_pad], if there are several splits of the queries and no chains */
    real *dQ;                      /* [groups or chains][key_splits][heads per kv head][dq_rows][dq_width] */
    real *deltas;                  /* [groups or chains][heads per kv head][2][Nq] */
    atomic_int *spans_done;        /* [groups][heads per kv head][tiles of queries], if chained */
    agi_chain *chains;             /* [chains] */
    int64_t *group_before;         /* [groups]: which group had the same chain before; -1: none. If chained */
    real *bias_full;               /* dbias in reals, if agi_bias_needs_copy */
    double *bias_broadcast;        /* [parts][sizes of the bias], unless agi_bias_is_full */
    double *table;                 /* [heads][parts][buckets] */
    double *sink;                  /* [batch][heads][parts] */
    agi_backward_scratch *scratch; /* one per thread */
} agi_backward_layout;

void REAL(agi_backward_lay_out)(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, agi_map map);

/* One call of vjp or vjp_jvp: what every work item is given. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    const agi_backward_schedule *schedule;
    agi_backward_layout shared;
    int64_t pass;                 /* the current one, if work items are parts of passes */
    pthread_mutex_t chains_mutex; /* guards groups_begun, shared.chains and shared.group_before */
    int64_t groups_begun;         /* if chained */
    bool tangents;                /* vjp_jvp? */
    bool small;                   /* small heads are run by ops->small_head */
    /* The outputs of the map, by their names in vjp. */
    const ag_tensor *dq, *dk, *dv, *dbias, *dtable, *dsink;
    uint32_t acc_dq, acc_dk, acc_dv, acc_dbias, acc_dtable, acc_dsink;
} agi_backward_job;

static inline int64_t agi_heads_per_kv(const ag_problem *p)
{
    return p->heads / p->kv_heads;
}

/* The operations that vjp and vjp_jvp are made of. The drivers call them in this order:
 *
 *     begin_pass
 *         for each head, for each tile of queries: load_rows, row_dots (in the first span that the tile sees),
 *         begin_tile, block for each block of keys, end_tile; after the last span store_dq
 *     store_dkv
 *
 * A tile that sees no key of the span is not begun; its dQ is stored all the same. If the queries are split,
 * store_dkv is called after all splits are done, perhaps by another thread: it must not rely on what the pass left in
 * s->own. What the ops load of the keys may be kept in s->own for all heads of a pass. */
typedef struct agi_backward_ops {
    int64_t min_groups;      /* with so many reduction groups or more, passes have no parts */
    int64_t block_step;      /* a block has a multiple of this many keys */
    int64_t key_step;        /* dK and dV are summed for groups of this many keys */
    int64_t query_step;      /* row statistics are padded to a multiple of this; 0: to whole vectors */
    int64_t dq_row_step;     /* the sums of dQ are padded to a multiple of this many queries, */
    int64_t dq_channel_step; /* and of this many channels; 0: to whole vectors */

    /* Lays out the scratch of one thread: s->own, and the tiles of the features by agi_lay_out_features. In a dry run
     * s->own is NULL. */
    void (*lay_out)(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map);

    /* A pass begins, over the span of keys that starts at span0. May be NULL. */
    void (*begin_pass)(agi_backward_scratch *s, int64_t span0);

    /* Loads the rows of the tile that row_dots reads. May be NULL. */
    void (*load_rows)(agi_backward_scratch *s, const agi_head *x);

    /* D = rowsum(dO o O) and tD = rowsum(tO o dO + O o tdO) for n <= ROW_CHUNK rows, from row r of the tile on. Both
     * arrays come as zeros. */
    void (*row_dots)(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                     double *tD);

    /* Prepares the operands of the tile, whose statistics are loaded, for keys from .. to - 1. next: the first query
     * of the following tile, for prefetching. */
    void (*begin_tile)(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next);
    void (*block)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                  const agi_backward_key_block *keys);
    void (*end_tile)(agi_backward_scratch *s); /* may be NULL */

    /* Stores the tile's dQ, times the scale, in rows i0 .. i0 + ni - 1 of the caller's array. */
    void (*store_dq)(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                     bool accumulate);

    /* Stores sums of n keys, `width` elements per key, times factor, in rows first .. first + n - 1 of the caller's
     * array. */
    void (*store_dkv)(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width);

    /* The small-head path; both NULL if there is none. small_call: does the call qualify? small_head: runs a head that
     * is small, and returns false if it is not. */
    bool (*small_call)(const agi_call *call);
    bool (*small_head)(agi_backward_scratch *s, const agi_head *x);
} agi_backward_ops;

ag_status REAL(agi_backward_run)(const agi_call *call, void *memory);

/* Lays out the tiles of the features that the problem has, each of `elements` reals. For the ops' lay_out. */
void REAL(agi_lay_out_features)(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map,
                                int64_t elements);

/* ---- backward_load.c ---- */

/* Loads the tile that starts at query i0. deltas, if not NULL: D and tD of the head, written if `first` (the tile is
 * loaded for the first time), else read. */
void REAL(agi_load_tile)(agi_backward_scratch *s, const agi_head *x, int64_t i0, real *deltas, bool first);

/* ---- chains.c ---- */

/* How many chains there are: no more than threads. 0: the schedule has none. */
int64_t REAL(agi_chains_of)(const ag_plan *plan, const agi_backward_schedule *schedule);

void REAL(agi_begin_chains)(agi_backward_job *w);

/* A span of a group, with the chain that it belongs to. */
typedef struct {
    int64_t chain, group, span;
} agi_chain_span;

/* Begins a span, for the thread with scratch s; called once for each span of each group. The spans of a group begin in
 * order, and a group begins after all spans of the group that had the chain before have begun: so a span waits only for
 * spans that others are running, and whatever the number of threads and the order of the caller's tasks, those that
 * wait get on. */
agi_chain_span REAL(agi_begin_span)(agi_backward_job *w, agi_backward_scratch *s);

/* ---- feature_gradients.c: the gradients of bias, table and sink ---- */

/* agi_bias_is_full: does the bias have an element for each pair of query and key? Its gradient is then summed in the
 * caller's array or, if agi_bias_needs_copy (elements are sums of several terms, and that array's dtype is not real),
 * in bias_full and rounded once. If the bias is not full, its gradient is summed in bias_broadcast. */
bool REAL(agi_bias_is_full)(const ag_problem *p);
bool REAL(agi_bias_needs_copy)(const ag_problem *p);

void REAL(agi_clear_sums)(const agi_backward_job *w);
void REAL(agi_begin_sums)(const agi_backward_job *w, int64_t part, const agi_head *x, agi_sums *sums);
void REAL(agi_store_sums)(const agi_backward_job *w);

/* ---- patch_stages.c: what all ops do to the scores of a patch ---- */

/* The part of a tile that one panel of queries sees: keys from .. from + nj - 1 of the block. */
typedef struct {
    int64_t index;                    /* of the panel in the tile */
    int64_t i0, ni;                   /* its queries, counted from the tile's first */
    int64_t W;                        /* lanes: ni, rounded up to what the ops take at once */
    int64_t visible_from, visible_to; /* the keys that the band leaves it, not clipped to the block */
    int64_t from, nj;                 /* its keys in the block */
    int64_t at, ld; /* offset of its first score in a score tile, and that tile's row stride */
} agi_patch;

/* S^T becomes P. Fills the tiles of the features on the way: X what is added to the scores and tX its tangent, F and G
 * the softcap's first and second derivative, M the dropout factors. */
void REAL(agi_patch_weights)(const agi_backward_scratch *s, const agi_head *x,
                             const agi_backward_key_block *keys, const agi_patch *patch,
                             const agi_score_tiles *t);

/* vjp: P and dS, which holds dP, become R and dZ. vjp_jvp: also U, which holds tQ K^T + Q tK^T, and tdS, which holds
 * tdP, become tR and tdZ. */
void REAL(agi_vjp_patch)(const agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                         const agi_backward_key_block *keys, const agi_patch *patch,
                         const agi_score_tiles *t);
void REAL(agi_vjp_jvp_patch)(const agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                             const agi_backward_key_block *keys, const agi_patch *patch,
                             const agi_score_tiles *t);

#endif
