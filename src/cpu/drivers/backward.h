/* vjp and vjp_jvp: the order of their work, and what their tiles share. Compiled for each real.
 *
 * Keys are taken in spans of a few blocks. For one span a thread walks over tiles of queries; the
 * gradients of the span's keys are summed in its own memory, and that of the tile's queries, where there
 * are several spans, in a float array of the whole sequence, rounded to its dtype after the last.
 *
 *     chain    sequences and kv heads that share a sum (a broadcast bias, a table), else one kv head
 *              of one sequence: chains are independent of each other
 *     pass     one span of one kv head of one sequence of a chain, with all query heads of its group
 *     part     tiles of queries g, g + G, g + 2 G ... of every pass, where chains are few; the key
 *              gradients of the parts are added up after each pass
 *
 * All of it is a function of the shape. In vjp_jvp the gradients are tdQ, tdK, tdV and so on; they go by
 * the same names here. */
#ifndef AGI_CPU_BACKWARD_H
#define AGI_CPU_BACKWARD_H

#include "cpu/drivers/tile.h"

/* Queries of a tile: in float64 fewer, as its score tiles take twice the cache. */
enum { TILE_ROWS_F32 = 192, TILE_ROWS_F64 = 128 };

enum {
    TILE_ROWS = sizeof(real) == sizeof(double) ? TILE_ROWS_F64 : TILE_ROWS_F32,
    TILE_PANELS = TILE_ROWS / PANEL,
    TILE_PAD = AGI_CACHE_LINE / (int)sizeof(real),
    TILE_LD = TILE_ROWS + TILE_PAD, /* an odd number of cache lines, so that columns spread over the cache */
    ROW_CHUNK = 16,                 /* rows of O that are converted at once */
    MAX_Q_SPLITS = 8
};

/* A tile of queries, with its statistics. */
typedef struct {
    int64_t i0, ni;
    real *high, *low, *D, *mu, *tD; /* [TILE_ROWS]: log2(e) L in two parts, and the statistics */
    double *Ps;                     /* [TILE_ROWS]: the sink's share */
    uint8_t *no_output;             /* [TILE_ROWS]: the query has no output */
    real *dQ;                       /* its place in the sums, in the ops' own layout */
} agi_query_tile;

/* A block of keys; dK and dV are its place in the span's sums, in the ops' own layout. */
typedef struct {
    int64_t j0, nj;
    real *dK, *dV;
} agi_key_tile;

/* Score tiles, T[key][query]: S^T becomes P, then R = P o M; tS^T (U) becomes tR; dP^T becomes dS, then dZ; likewise
 * tdP^T. vjp has P and dS alone. */
typedef struct {
    real *P, *U, *dS, *tdS;
} agi_score_tiles;

/* One thread's scratch. */
typedef struct {
    agi_query_tile tile;
    real *X, *tX, *F, *G, *M; /* features of the score tiles */
    uint8_t *masked_keys, *panel_masked_keys;
    real *dK, *dV; /* the span's sums, if there is one split */
    real *dQ; /* [group][dq_rows][dq_width]: sums over spans, if there is one split; one span: one tile */
    real *products; /* [group][2][Nq]: D and tD, if there are several spans and one split */
    void *own;      /* of who runs the maps */
} agi_backward_scratch;

/* What all threads share. */
typedef struct {
    real *dK, *dV;      /* [groups][q_splits][span][D_pad], if there are several splits */
    real *dQ;           /* [groups][group][dq_rows][dq_width], likewise */
    real *products;     /* [groups][group][2][Nq], likewise */
    real *bias_full;    /* a copy of the bias's gradient, where it is a sum and its dtype is narrow */
    double *bias_small; /* [q_splits] times the bias's own sizes */
    double *table;      /* [heads][q_splits][buckets] */
    double *sink;       /* [batch][heads][q_splits] */
    agi_backward_scratch *scratch; /* one per thread */
} agi_backward_layout;

void REAL(agi_backward_lay_out)(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, agi_map map);

/* One call: what its items are given. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    const agi_backward_schedule *schedule;
    agi_backward_layout y;
    int64_t pass;
    bool tangents;
    bool small; /* small heads are run by ops->small_head */
    /* The map's own outputs, under vjp's names. */
    const ag_tensor *dq, *dk, *dv, *dbias, *dtable, *dsink;
    uint32_t acc_dq, acc_dk, acc_dv, acc_dbias, acc_dtable, acc_dsink;
} agi_backward_job;

static inline int64_t agi_heads_per_kv(const ag_problem *p)
{
    return p->heads / p->kv_heads;
}

/* Who runs vjp and vjp_jvp. A pass is begun; a tile of queries has its rows loaded, is begun, given the blocks of keys
 * that it sees, and ended; then its dQ, and at the end of the pass dK and dV are stored. */
typedef struct agi_backward_ops {
    int64_t block_step;  /* blocks of keys are a multiple of so many */
    int64_t key_step;    /* sums of dK and dV are kept for whole multiples of so many keys */
    int64_t query_step;  /* statistics are kept for a multiple of so many queries; 0: of a vector's lanes */
    int64_t dq_row_step; /* the sums of dQ have a multiple of so many queries, */
    int64_t dq_channel_step; /* and of so many channels; 0: of a vector's lanes */

    /* Takes a thread's scratch: s->own, and the features' tiles by agi_lay_out_features. In a dry run nothing may be
     * stored in s->own. */
    void (*lay_out)(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map);

    /* A pass over the keys from span0 on begins. May be NULL. */
    void (*begin_pass)(agi_backward_scratch *s, int64_t span0);

    /* The rows of the tile that row_dots reads. May be NULL. */
    void (*load_rows)(agi_backward_scratch *s, const agi_head *x);

    /* D = rowsum(dO o O) and tD = rowsum(tO o dO + O o tdO) of n rows from number r of the tile on, at most
     * SOME_ROWS. They come as zeros. */
    void (*row_dots)(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                     double *tD);

    /* The tile, whose statistics are there, is about to meet keys from .. to - 1. The tile after it begins with query
     * `next`. */
    void (*begin_tile)(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next);
    void (*block)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, const agi_key_tile *keys);
    void (*end_tile)(agi_backward_scratch *s); /* may be NULL */

    /* The tile's dQ, times the scale, to rows i0 .. i0 + ni - 1 of the caller's. */
    void (*store_dq)(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                     bool accumulate);

    /* Sums of n keys, a row of them `width` numbers, times factor, to rows first .. first + n - 1 of the caller's. */
    void (*store_dkv)(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width);

    /* Both NULL, or: may the call's heads be run whole, if they are small? Runs one, if it is small. */
    bool (*small_call)(const agi_call *call);
    bool (*small_head)(agi_backward_scratch *s, const agi_head *x);
} agi_backward_ops;

ag_status REAL(agi_backward_run)(const agi_call *call, const ag_exec *exec, void *memory);

/* Takes the features' tiles, of so many numbers each, as far as the problem has them. For the ops' lay_out. */
void REAL(agi_lay_out_features)(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map,
                                int64_t numbers);

/* ---- backward_load.c ---- */

/* Loads the tile at i0. kept, where not NULL: D and tD of the head, stored at the first load and read at
 * the others. */
void REAL(agi_load_tile)(agi_backward_scratch *s, const agi_head *x, int64_t i0, real *kept, bool first);

/* ---- feature_gradients.c: the gradients of bias, table and sink ---- */

/* Has the bias an element for each pair of a head? Then its gradient is summed in the caller's array, unless
 * that would round each sum. */
bool REAL(agi_bias_is_full)(const ag_problem *p);
bool REAL(agi_bias_needs_copy)(const ag_problem *p);

void REAL(agi_clear_sums)(const agi_backward_job *w);
void REAL(agi_begin_sums)(const agi_backward_job *w, int64_t split, const agi_head *x, agi_sums *sums);
void REAL(agi_store_sums)(const agi_backward_job *w);

/* ---- patch_stages.c: what all ops do to the scores of a patch ---- */

/* The part of a tile that one panel of queries sees: keys [from, from + nj), as pointers into the tiles. */
typedef struct {
    int64_t q;         /* its number */
    int64_t i0, ni;    /* its queries in the tile */
    int64_t W;         /* lanes */
    int64_t low, high; /* its keys, were the block without end: low .. high - 1 */
    int64_t from, nj;  /* its keys in the block */
    int64_t at, ld;    /* its corner in a score tile, and the numbers from row to row there */
} agi_patch;

/* P from the scores S^T, in their place; the features' tiles are filled on the way. */
void REAL(agi_patch_weights)(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                             const agi_patch *patch, const agi_score_tiles *t);

/* From P and the products dP^T, tdP^T and tQ K^T + Q tK^T of a patch to R and dZ, tR and tdZ, in their places. */
void REAL(agi_vjp_patch)(const agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                         const agi_key_tile *keys, const agi_patch *patch, const agi_score_tiles *t);
void REAL(agi_vjp_jvp_patch)(const agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                             const agi_key_tile *keys, const agi_patch *patch, const agi_score_tiles *t);

#endif
