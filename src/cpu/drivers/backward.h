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

#include "cpu/amx/amx_operands.h"

/* Queries of a tile: in float64 fewer, as its score tiles take twice the cache. */
enum { TILE_ROWS_F32 = 192, TILE_ROWS_F64 = 128 };

enum {
    TILE_ROWS = sizeof(real) == sizeof(double) ? TILE_ROWS_F64 : TILE_ROWS_F32,
    TILE_PANELS = TILE_ROWS / PANEL,
    TILE_PAD = AGI_CACHE_LINE / (int)sizeof(real),
    TILE_LD = TILE_ROWS + TILE_PAD, /* an odd number of cache lines, so that columns spread over the cache */
    SOME_ROWS = 16,                 /* rows of O that are converted at once */
    MAX_PARTS = 8
};

/* What the shape decides. */
typedef struct {
    int64_t rows;            /* TILE_ROWS of the dtype */
    int64_t block;           /* keys of a tile */
    int64_t span;            /* keys of a pass: whole blocks */
    int64_t n_spans;         /* of the longest sequence */
    int64_t join_b, join_hk; /* sequences and kv heads of a chain */
    int64_t chains, passes;  /* passes of a chain */
    int64_t parts;           /* G */
} agi_schedule;

agi_schedule agi_schedule_of(const ag_plan *plan, agi_map map);

/* A tile of queries, loaded. */
typedef struct {
    int64_t i0, ni;
    real *QT, *dOT, *tQT, *tdOT;    /* [TILE_PANELS][D][PANEL] */
    agi_rows Q, dO, tQ, tdO;        /* as rows */
    real *rows[4];                  /* scratch for them */
    real *high, *low, *D, *mu, *tD; /* [TILE_ROWS]: log2(e) L in two parts, and the statistics */
    double *Ps;                     /* [TILE_ROWS]: the sink's share */
    uint8_t *dead;                  /* [TILE_ROWS]: the query has no output */
    real *dQ; /* its place in the sums: [TILE_ROWS][Dk_pad], on the AMX unit in tiles, by columns */
} agi_query_tile;

/* A block of keys, loaded; dK and dV are its place in the span's sums. */
typedef struct {
    int64_t j0, nj;
    agi_rows K, V, tK, tV;
    real *dK, *dV; /* [nj][Dk_pad], [nj][Dv_pad], on the AMX unit in tiles, by rows */
} agi_key_tile;

/* What a thread has beside that on the AMX unit. By fours: of Q, dO, tQ, tdO, or of K, V, tK, tV. */
typedef struct {
    amx_operand columns[4], pairs[4];          /* the tile's queries */
    uint16_t *column_tiles[2], *pair_tiles[4]; /* columns of tQ and Q, tdO and dO */
    uint16_t *key_rows[2], *turned[2];         /* the span's keys: K and tK, V and tV by rows; K, tK turned */
    int64_t span0, from, to;    /* the span's first key, and the keys that are there, from it on */
    uint16_t *clean;            /* K or tK of a block, turned, without the keys that the tile does not see */
    uint16_t *rounded[4];       /* R, dZ, tR, tdZ of the block, in tiles of rows */
    uint16_t *pairs_of_keys[2]; /* dZ of vjp, tdZ and dZ of vjp_jvp, [block / 32][TILE_ROWS / 16] tiles */
    agi_amx_ahead ahead;        /* rows of the next tile */
    real *T[2][2];              /* score tiles of two patches: S beside dP, tS beside tdP */
    real *dQ;                   /* [TILE_ROWS][Dk_pad]: a tile of it by rows */
    real *some_keys;            /* 16 rows of dK or dV by rows */
    uint16_t *rows;
} agi_amx_backward_scratch;

/* One thread's scratch. */
typedef struct {
    agi_query_tile tile;
    real *P, *U, *dS, *tdS;   /* [block][TILE_LD] */
    real *X, *tX, *F, *G, *M; /* features of the tile, likewise */
    real *K, *V, *tK, *tV;    /* converted rows of a block */
    real *clean, *tclean;     /* K and tK without the keys that nobody sees */
    uint8_t *unseen, *unseen_panel;
    real *dK, *dV;  /* the span's sums, where there is one part; on the AMX unit these and dQ are in tiles */
    real *dQ;       /* [group][Nq][Dk_pad]: sums over spans, where there is one part; one span: one tile */
    real *products; /* [group][2][Nq]: D and tD, where there are several spans and one part */
    real *row[2];   /* [SOME_ROWS][Dv_pad]: rows of O and tO */
    agi_amx_backward_scratch amx;
} agi_backward_scratch;

/* What all threads share. */
typedef struct {
    real *dK, *dV;      /* [chains][parts][span][D_pad], where there are parts; likewise in tiles there */
    real *dQ;           /* [chains][group][Nq][Dk_pad], likewise */
    real *products;     /* [chains][group][2][Nq], likewise */
    real *bias_full;    /* a copy of the bias's gradient, where it is a sum and its dtype is narrow */
    double *bias_small; /* [parts] times the bias's own sizes */
    double *table;      /* [heads][parts][buckets] */
    double *sink;       /* [batch][heads][parts] */
    agi_backward_scratch *scratch; /* one a thread */
} agi_backward_layout;

void agi_backward_lay_out(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, const agi_kernels *k,
                          agi_map map);
/* One call: what its items are given. */
typedef struct {
    const agi_call *call;
    const agi_kernels *k;
    agi_schedule schedule;
    agi_backward_layout y;
    int64_t pass;
    bool tangents;
    bool small; /* short heads are for small.c */
    /* The map's own outputs, under vjp's names. */
    const ag_tensor *dq, *dk, *dv, *dbias, *dtable, *dsink;
    uint32_t acc_dq, acc_dk, acc_dv, acc_dbias, acc_dtable, acc_dsink;
} agi_backward_job;

static inline int64_t agi_group_of(const ag_problem *p)
{
    return p->heads / p->kv_heads;
}

ag_status agi_backward_run(const agi_call *call, const agi_kernels *k, const ag_exec *exec, void *memory);

/* One tile of each map. */
void agi_vjp_tile(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, agi_query_tile *tile,
                  const agi_key_tile *keys);
void agi_vjp_jvp_tile(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, agi_query_tile *tile,
                      const agi_key_tile *keys);

/* ---- backward_load.c ---- */

/* Loads the tile at i0. kept, where not NULL: D and tD of the head, stored at the first load and read at
 * the others. */
void agi_load_tile(agi_backward_scratch *s, const agi_head *x, int64_t i0, real *kept, bool first);

/* ---- backward_sums.c: the gradients of bias, table and sink ---- */

/* Has the bias an element for each pair of a head? Then its gradient is summed in the caller's array, unless
 * that would round each sum. */
bool agi_bias_is_full(const ag_problem *p);
bool agi_bias_needs_copy(const ag_problem *p);

void agi_clear_sums(const agi_backward_job *w);
void agi_begin_sums(const agi_backward_job *w, int64_t part, const agi_head *x, agi_sums *sums);
void agi_put_sums(const agi_backward_job *w);

/* ---- backward_tile.c: what the tiles of both maps do ---- */

/* The part of a tile that one panel of queries sees: keys [from, from + nj), as pointers into the tiles. */
typedef struct {
    int64_t q;         /* its number */
    int64_t i0, ni;    /* its queries in the tile */
    int64_t W;         /* lanes */
    int64_t low, high; /* its keys, were the block without end: low .. high - 1 */
    int64_t from, nj;  /* its keys in the block */
    int64_t at, ld;    /* its corner in a score tile, and the numbers from row to row there */
} agi_patch;

agi_patch agi_patch_of(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys, int64_t q);

/* T = or += A B^T, transposed, in the patch: its keys of K, V or a tangent, its queries of Q, dO or a tangent. */
void agi_patch_product(const agi_head *x, const agi_patch *patch, agi_rows keys, int64_t D,
                       const real *panels, agi_rows queries, real *T, bool add);

/* Zero beside the patch, in its own lanes, as far as a strip of a product reaches. */
void agi_clear_around(real *T, const agi_patch *patch, int64_t nj);

/* The patch in pieces of a few keys, whose tiles stay in the first cache from one stage to the next:
 * the piece behind `before`, the first one for NULL; the last has nj = 0. */
agi_patch agi_next_chunk(const agi_patch *patch, const agi_patch *before);

/* After all pieces of a panel: a key is unseen by the tile where it is unseen by every panel. */
void agi_note_unseen(agi_backward_scratch *s, const agi_patch *patch, int64_t nj);

/* P from the scores S^T, in their place; the features' tiles are filled on the way. */
void agi_patch_weights(agi_backward_scratch *s, const agi_head *x, const agi_query_tile *tile,
                       const agi_key_tile *keys, const agi_patch *patch);

/* From P and the products dP^T, tdP^T and tQ K^T + Q tK^T of a patch to R and dZ, tR and tdZ, in their places. */
void agi_vjp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                   const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *patch);
void agi_vjp_jvp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                       const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *patch);

/* rows [K], or a copy without the keys that no query of the tile sees. */
agi_rows agi_seen_rows(const agi_backward_scratch *s, const agi_head *x, agi_rows rows, int64_t nj,
                       real *clean);

/* dK += T A (rows are keys: A the queries' rows), and dQ += T^T B (rows are queries: B the keys' rows),
 * without what the band empties. */
void agi_add_key_gradient(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys,
                          const real *T, agi_rows A, int64_t width, real *dK);
void agi_add_query_gradient(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys,
                            const real *T, agi_rows B, int64_t width, real *dQ);

#endif
