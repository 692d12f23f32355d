/* Shared by the files of the backward ops (vjp and vjp_jvp) on AMX: the scratch, and the functions for each step of a
 * block. amx_backward.c calls them in order. */
#ifndef AGI_CPU_AMX_BACKWARD_H
#define AGI_CPU_AMX_BACKWARD_H

#include "cpu/amx/amx_operands.h"
#include "cpu/drivers/backward.h"

/* Indices into the arrays of the scratch. */
enum { Q_, DO_, TQ_, TDO_ };
enum { K_, V_ };
enum { R_, DZ_, TR_, TDZ_ };

/* The tiles of `rounded` are ordered [key / 16][query / 32]: elements from 16 keys to the next 16. */
enum { ROUNDED_STRIDE = TILE_ROWS / AMX_DEPTH * AMX_AB };

/* One thread's scratch. */
typedef struct {
    amx_operand queries_vnni[4], queries_split16[4]; /* B operands of Q, dO, tQ, tdO of the tile */
    uint16_t *vnni_tiles[2], *split16_tiles[4];      /* their memory; vnni_tiles: [tQ | Q], [tdO | dO] */
    /* A operands of the span's keys: [K | tK], [V | tV] by rows; K, tK transposed */
    uint16_t *key_rows[2], *transposed[2];
    int64_t span0;                  /* the span's first key */
    int64_t loaded_from, loaded_to; /* the loaded keys, counted from span0 */
    uint16_t *zeroed;               /* K or tK of a block, transposed, with masked keys zero */
    uint16_t *rounded[4];           /* A operands R, dZ, tR, tdZ of the block */
    /* B operands of [block / 32][TILE_ROWS / 16] tiles: dZ in vjp, tdZ and dZ in vjp_jvp */
    uint16_t *dz_vnni[2];
    uint16_t *rest_rows, *rest_vnni; /* what rounding took from one patch: A operand, B operand */
    agi_prefetch_rows prefetch;      /* rows of the next tile of queries */
    real *T[2][2];           /* score tiles of two patches: each [0] S and dP side by side, [1] tS and tdP */
    real *dQ;                /* [TILE_ROWS][Dk_pad]: dQ of a tile, by rows */
    real *key_rows_chunk;    /* [AMX_ROWS][D]: rows of dK or dV */
    uint16_t *rows;          /* copied rows of queries or keys */
    real *wide_rows[2];      /* [ROW_CHUNK][Dv_pad]: rows of dO and O, if these are float32 */
    amx_config saved_config; /* the caller's tile configuration, restored at the end of a tile */
} agi_amx_backward_scratch;

/* The operands of a block of keys. */
typedef struct {
    amx_operand rows[2];       /* [K | tK], [V | tV]: without the tangent, if it is absent */
    amx_operand transposed[2]; /* K, tK; p is NULL if dQ does not need it */
} agi_amx_backward_keys;

/* amx_backward_operands.c. Loads keys from .. to - 1, unless they are loaded already. The loaded keys are always
 * one range: keys between it and the new ones are loaded, too. */
void agi_amx_require_keys(agi_amx_backward_scratch *s, const agi_head *x, int64_t from, int64_t to);

/* The operands of the block of keys that starts at j0. */
agi_amx_backward_keys agi_amx_keys_of_block(const agi_amx_backward_scratch *s, const agi_head *x, int64_t j0);

/* Makes the operands of the tile's queries: Q and dO, and in vjp_jvp tQ and tdO. */
void agi_amx_load_queries(agi_backward_scratch *s, const agi_head *x);

/* amx_backward_dots.c: see agi_backward_ops. */
void agi_amx_row_dots(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                      double *tD);

/* amx_backward_patches.c: R, dZ, and in vjp_jvp their tangents, of the tile's queries and a block of keys. */
void agi_amx_run_patches(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                         const agi_amx_backward_keys *operands, const agi_backward_key_block *keys);

/* amx_backward_products.c. Adds to the block's dK and dV, in vjp_jvp to tdK and tdV. */
void agi_amx_add_key_gradients(const agi_backward_scratch *s, const agi_head *x,
                               const agi_backward_key_block *keys);

/* Adds to the tile's dQ, in vjp_jvp to tdQ. */
void agi_amx_add_query_gradients(const agi_backward_scratch *s, const agi_head *x,
                                 const agi_amx_backward_keys *operands, const agi_backward_key_block *keys);

/* amx_backward_rest.c. For stripes whose queries see FEW_KEYS or fewer (see there): adds what rounding took from R
 * and dZ of a patch, and their tangents, to the gradients. The score tiles still hold them in float32 and are
 * overwritten. */
bool agi_amx_sees_few_keys(const agi_backward_scratch *s, const agi_head *x, const agi_patch *patch);
void agi_amx_add_rest_of_patch(agi_backward_scratch *s, const agi_head *x, const agi_backward_key_block *keys,
                               const agi_amx_backward_keys *operands, const agi_patch *patch,
                               const agi_score_tiles *t);

#endif
