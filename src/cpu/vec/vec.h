/* The maps on vectors: the row ops and the backward ops over the table of vector kernels, and what their files
 * share. Compiled for each real. */
#ifndef AGI_CPU_VEC_H
#define AGI_CPU_VEC_H

#include "cpu/drivers/backward.h"
#include "cpu/drivers/rows.h"

/* ---- Forward and jvp ---- */

/* A panel's queries: Q and tQ transposed, [Dk][PANEL]; of few queries the rows instead, with QT and tQT as scratch. */
typedef struct {
    real *QT, *tQT;
    agi_rows Q, tQ;
} agi_vec_panel;

/* One thread's scratch. */
typedef struct {
    agi_vec_panel panel[ROW_PANELS];
    real *T, *U;           /* score tiles, [ROW_KEYS][ROW_LD] */
    real *K, *V, *tK, *tV; /* converted rows */
    real *zeroed;          /* V or tV without the keys that nobody sees */
} agi_vec_row_scratch;

/* The rows of a block of keys, as the products want them. */
typedef struct {
    int64_t j0, nj;
    int64_t ahead; /* rows of K from the first on that lie in one array: the block's, or the sequence's */
    agi_rows K, V, tK, tV;
} agi_key_block;

/* One panel against one block of keys. */
void REAL(agi_forward_tile)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                            const agi_key_block *keys);
void REAL(agi_jvp_tile)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                        const agi_key_block *keys);

/* row_product.c: T = S^T = K Q^T for the block's rows from .. from + nj - 1. */
void REAL(agi_row_product)(const agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                           const agi_key_block *keys, int64_t from, int64_t nj);

/* ---- Vjp and vjp_jvp ---- */

/* One thread's scratch. */
typedef struct {
    real *QT, *dOT, *tQT, *tdOT; /* the tile's queries, [TILE_PANELS][D][PANEL] */
    agi_rows Q, dO, tQ, tdO;     /* the same as rows */
    real *rows[4];               /* scratch for them */
    agi_score_tiles scores;      /* [block][TILE_LD] */
    real *K, *V, *tK, *tV;       /* converted rows of a block */
    real *zeroed, *t_zeroed;     /* K and tK without the keys that nobody sees */
    real *O[2];                  /* [SOME_ROWS][Dv_pad]: rows of O and tO */
} agi_vec_backward_scratch;

/* A block of keys, loaded. */
typedef struct {
    agi_rows K, V, tK, tV;
} agi_key_rows;

/* The tile against one block of keys. */
void REAL(agi_vjp_tile)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                        const agi_key_tile *keys, const agi_key_rows *rows);
void REAL(agi_vjp_jvp_tile)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                            const agi_key_tile *keys, const agi_key_rows *rows);

/* ---- vec_patch.c: what vjp and vjp_jvp share ---- */

agi_patch REAL(agi_patch_of)(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys,
                             int64_t q);

/* T = or += A B^T, transposed, in the patch: its keys of K, V or a tangent, its queries of Q, dO or a tangent. */
void REAL(agi_patch_product)(const agi_head *x, const agi_patch *patch, agi_rows keys, int64_t D,
                             const real *panels, agi_rows queries, real *T, bool add);

/* Zero beside the patch, in its own lanes, as far as a strip of a product reaches. */
void REAL(agi_clear_around)(real *T, const agi_patch *patch, int64_t nj);

/* The patch in pieces of a few keys, whose tiles stay in the first cache from one stage to the next:
 * the piece after `before`, the first one for NULL; the last has nj = 0. */
agi_patch REAL(agi_next_chunk)(const agi_patch *patch, const agi_patch *before);

/* After all pieces of a panel: a key is unseen by the tile if it is unseen by every panel. */
void REAL(agi_note_masked_keys)(agi_backward_scratch *s, const agi_patch *patch, int64_t nj);

/* rows [K], or a copy without the keys that no query of the tile sees. */
agi_rows REAL(agi_visible_rows)(const agi_backward_scratch *s, const agi_head *x, agi_rows rows, int64_t nj,
                                real *zeroed);

/* dK += T A (rows are keys: A the queries' rows), and dQ += T^T B (rows are queries: B the keys' rows),
 * without what the band empties. */
void REAL(agi_add_key_gradient)(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys,
                                const real *T, agi_rows A, int64_t width, real *dK);
void REAL(agi_add_query_gradient)(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys,
                                  const real *T, agi_rows B, int64_t width, real *dQ);

/* ---- small.c ---- */

/* Does this call qualify for the small-head path? n_q and n_k are checked per head. Nothing but the scale on the
 * scores, every row whole vectors of reals where it lies, gradients of one head each. */
bool REAL(agi_small_call)(const agi_call *call);

/* Runs the head, if it is small and all its rows are there; else false, and nothing is done. vjp also refuses a head
 * with a query that has no output. */
bool REAL(agi_small_forward)(agi_row_scratch *s, const agi_head *x);
bool REAL(agi_small_vjp)(agi_backward_scratch *s, const agi_head *x);

/* ---- The ops ---- */

extern const agi_row_ops REAL(agi_vec_row_ops);
extern const agi_backward_ops REAL(agi_vec_backward_ops);

#endif
