/* The maps on vectors: implements the row ops and the backward ops with the table of vector kernels. Declares
 * what the files of this folder share. Compiled twice, with real = float and real = double. */
#ifndef AGI_CPU_VEC_H
#define AGI_CPU_VEC_H

#include "cpu/drivers/backward.h"
#include "cpu/drivers/given.h"
#include "cpu/drivers/rows.h"

/* ---- Forward and jvp ---- */

/* The queries of a panel: QT and tQT are Q and tQ transposed, [Dk][PANEL]. With at most MAX_SHORT_Q queries the rows
 * Q and tQ are used untransposed; the memory of QT and tQT then holds their converted copies, if any. */
typedef struct {
    real *QT, *tQT;
    agi_rows Q, tQ;
} agi_vec_panel;

/* One thread's scratch. */
typedef struct {
    agi_vec_panel panel[ROW_PANELS];
    real *T, *U;           /* score tiles, [ROW_KEYS][ROW_LD] */
    real *K, *V, *tK, *tV; /* converted rows */
    real *zeroed;          /* V or tV with the rows of masked keys zero */
} agi_vec_row_scratch;

/* Forward and jvp: a block of keys and its rows. rows_ahead: how many rows may be prefetched from K.p on: to the end of
 * the block if they were copied, else to the end of the sequence. */
typedef struct {
    int64_t j0, nj, rows_ahead;
    agi_rows K, V, tK, tV;
} agi_row_key_block;

/* Run one panel of queries against one block of keys. */
void REAL(agi_forward_panel)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                             const agi_row_key_block *keys);
void REAL(agi_jvp_panel)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                         const agi_row_key_block *keys);

/* panel_scores.c: T = K Q^T for keys from .. from + nj - 1 of the block. */
void REAL(agi_panel_scores)(const agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                            const agi_row_key_block *keys, int64_t from, int64_t nj);

/* ---- Vjp and vjp_jvp ---- */

/* One thread's scratch. */
typedef struct {
    real *QT, *dOT, *tQT, *tdOT; /* the tile's queries, [TILE_PANELS][D][PANEL] */
    agi_rows Q, dO, tQ, tdO;     /* the same as rows */
    real *rows[4];               /* scratch for them */
    agi_score_tiles scores;      /* [block][TILE_LD] */
    real *K, *V, *tK, *tV;       /* converted rows of a block */
    real *zeroed, *t_zeroed;     /* K and tK with the rows of masked keys zero */
    real *O[2], *O_low;          /* [ROW_CHUNK][Dv_pad]: rows of O and tO, and of a low half */
} agi_vec_backward_scratch;

/* vjp and vjp_jvp: the rows of an agi_backward_key_block; p is NULL if the tensor is absent. */
typedef struct {
    agi_rows K, V, tK, tV;
} agi_key_rows;

/* Run the tile of queries against one block of keys. */
void REAL(agi_vjp_tile)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                        const agi_backward_key_block *keys, const agi_key_rows *rows);
void REAL(agi_vjp_jvp_tile)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                            const agi_backward_key_block *keys, const agi_key_rows *rows);

/* ---- vec_patch.c: what vjp and vjp_jvp share ---- */

/* The part of the tile that panel `index` sees. */
agi_patch REAL(agi_patch_of)(const agi_head *x, const agi_query_tile *tile,
                             const agi_backward_key_block *keys, int64_t index);

/* T = A B^T, or T += A B^T, within the patch: A is its rows of K, V, tK or tV, B its rows of Q, dO, tQ or tdO. */
void REAL(agi_patch_product)(const agi_head *x, const agi_patch *patch, agi_rows keys, int64_t D,
                             const real *panels, agi_rows queries, real *T, bool add);

/* Zeroes the rows of T before and after the patch, in the patch's lanes, as far as agi_add_key_gradient reads, which
 * takes rows in strips. */
void REAL(agi_clear_around)(real *T, const agi_patch *patch, int64_t nj);

/* Splits the patch into chunks of a few keys, whose scores stay in the L1 cache from one stage to the next.
 * Returns the chunk after `previous`, or the first one if that is NULL; its nj is 0 if there are no more. */
agi_patch REAL(agi_next_chunk)(const agi_patch *patch, const agi_patch *previous);

/* Called after all chunks of a panel: a key is masked for the tile if it is masked for every panel. */
void REAL(agi_note_masked_keys)(agi_backward_scratch *s, const agi_patch *patch, int64_t nj);

/* Returns the rows of K or tK; if some keys are masked, a copy in which their rows are zero. */
agi_rows REAL(agi_visible_rows)(const agi_backward_scratch *s, const agi_head *x, agi_rows rows, int64_t nj,
                                real *zeroed);

/* dK += T A, where A is rows of queries; dQ += T^T B, where B is rows of keys. Skips parts that are
 * outside the band. */
void REAL(agi_add_key_gradient)(const agi_head *x, const agi_query_tile *tile,
                                const agi_backward_key_block *keys, const real *T, agi_rows A, int64_t width,
                                real *dK);
void REAL(agi_add_query_gradient)(const agi_head *x, const agi_query_tile *tile,
                                  const agi_backward_key_block *keys, const real *T, agi_rows B,
                                  int64_t width, real *dQ);

/* ---- small.c ---- */

/* Does this call qualify for the small-head path (n_q and n_k are checked per head)? Scores with no feature
 * but the scale, no dropout, rows of whole vectors with contiguous channels, all dtypes equal to real, nothing
 * accumulated, and in vjp no query heads that share a kv head. */
bool REAL(agi_small_call)(const agi_call *call);

/* Runs the head if it is small and not padded; else returns false and writes nothing. vjp also returns false if a
 * query sees no key (lse = -infinity). */
bool REAL(agi_small_forward)(agi_row_scratch *s, const agi_head *x);
bool REAL(agi_small_vjp)(agi_backward_scratch *s, const agi_head *x);

/* ---- The ops ---- */

extern const agi_row_ops REAL(agi_vec_row_ops);
extern const agi_backward_ops REAL(agi_vec_backward_ops);
extern const agi_given_ops REAL(agi_vec_given_ops);

#endif
