/* The table of AMX kernels: products of bfloat16 matrices with sums in float32, and the stages of softmax and of its
 * gradients that run between them. This comment explains the formats, for all AMX code.
 *
 * A tile is 16 rows of 64 bytes; one instruction computes C[16][16] += A[16][32] B[32][16]:
 *
 *     C    float32    C[m][n]
 *     A    bfloat16   A[m][k], by rows
 *     B    bfloat16   VNNI: rows 2 r and 2 r + 1 of B are interleaved in row r of the tile:
 *
 *          row 0     B[0][0]  B[1][0]    B[0][1]  B[1][1]    ...   B[0][15]  B[1][15]
 *          row 1     B[2][0]  B[3][0]    B[2][1]  B[3][1]    ...   B[2][15]  B[3][15]
 *          ...
 *          row 15    B[30][0] B[31][0]   B[30][1] B[31][1]   ...   B[30][15] B[31][15]
 *
 * All tiles are whole: matrices are padded with zeros in memory. From a stored matrix X, a tile is made in one of
 * these ways:
 *
 *     by rows           A = X      16 rows by 32 columns of X, loaded from X itself
 *     transposed        A = X^T    32 rows by 16 columns of X
 *     VNNI transposed   B = X^T    16 rows by 32 columns of X: a transpose of 16 x 16 dwords, because B[2 r][n] and
 *                                  B[2 r + 1][n], one dword of the tile, are neighbours in X
 *     VNNI              B = X      32 rows by 16 columns of X, rows interleaved in pairs
 *
 * A tile of scores is transposed: T[j][i] with key j and query i, float32, GROUP_KEYS rows, PANEL elements from row to
 * row. Rounded to bfloat16 it is an operand of two kinds of products:
 *
 *     sums over keys       O^T = V^T P^T, dQ^T = K^T dS^T    T is B, in VNNI: keys 2 r and 2 r + 1 in row r
 *     sums over queries    dV = P^T dO,   dK = dS^T Q        T is A, by rows
 *
 * A sum may take its terms in any order, if both operands have the same one. In sums over queries, the 32 queries of a
 * tile are in the order 0, 16, 1, 17, ... 15, 31 ("split16"): a row of T is two vectors of 16 lanes, which one shift
 * and one blend merge into a row of A.
 *
 *     lanes 0 .. 15     | q0    | q1    | q2    |  ...     the upper halves of the floats, shifted to the lower 16 bits
 *     lanes 16 .. 31    | q16   | q17   | q18   |  ...     the upper halves, where they are
 *     row of A          |q0 q16 |q1 q17 |q2 q18 |  ...
 *
 * The other operand, dO or Q, is then VNNI with rows r and r + 16 of X, not 2 r and 2 r + 1, in row r of the tile. */
#ifndef AGI_CPU_AMX_KERNELS_H
#define AGI_CPU_AMX_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/amx/kernels/amx.h"

enum { GROUP_KEYS = 32 };

/* The tiles of an operand; strides are in elements. */
typedef struct {
    const uint16_t *p; /* the first tile */
    int64_t stride_mn; /* from a tile to the next one along the rows of A, or the columns of B */
    int64_t stride_k;  /* from a tile to the next one along k */
    int64_t ld;        /* A only: from row to row inside a tile */
} amx_operand;

/* The tiles of C, in float32. Each is contiguous: it is loaded from the L2 cache twice as fast as 16 separate rows. */
typedef struct {
    float *p;
    int64_t stride_m; /* from a tile to the next one along m */
    int64_t stride_n; /* from a tile to the next one along n */
} amx_sums;

/* Row-major order of the tiles of C, which has `width` columns. */
static inline amx_sums amx_sums_by_rows(float *p, int64_t width)
{
    return (amx_sums){p, AMX_ROWS * width, AMX_C};
}

/* Column-major order of the tiles; col_stride: the rows of C, and so elements per column. */
static inline amx_sums amx_sums_by_columns(float *p, int64_t col_stride)
{
    return (amx_sums){p, AMX_C, AMX_LANES * col_stride};
}

/* One product for 2 x 2 tiles of scores: T of 32 keys by 32 queries. */
typedef struct {
    const uint16_t *keys;    /* A: 32 rows of keys, by rows */
    const uint16_t *queries; /* B: 32 queries, VNNI transposed */
    int64_t ld;              /* from key to key */
    int64_t query_stride;    /* from 16 queries to the next 16 */
    int64_t depth;           /* tiles along k; 0: T becomes zero */
    float *T;
} amx_block2x2;

enum { MAX_BLOCKS = 4, MAX_PREFETCH_LINES = GROUP_KEYS / 2 };

/* What a stage interleaves with its own vector instructions: the scores that the next stage needs, and prefetches. */
typedef struct {
    int64_t n;
    amx_block2x2 blocks[MAX_BLOCKS];
    /* The bytes to prefetch: none if prefetch == prefetch_end, at most MAX_PREFETCH_LINES cache lines. */
    const char *prefetch, *prefetch_end;
} amx_queue;

typedef struct {
    /* begin saves the caller's tile configuration and loads ours, end restores it. */
    void (*begin)(amx_config *saved);
    void (*end)(const amx_config *saved);

    /* ---- Products ---- */

    /* C = A B, or C += A B if add. Sizes in tiles: C is M x N, the sum is over K > 0. */
    void (*product)(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B,
                    const amx_sums *C, bool add);

    /* The queued scores and prefetches alone, without a stage. */
    void (*score_blocks)(const amx_queue *next);

    /* ---- Operands from rows, ld elements from row to row ---- */

    /* n elements, rounded to bfloat16. */
    void (*round_row)(uint16_t *to, const float *from, int64_t n);

    /* One tile: VNNI transposed from 16 rows by 32 columns; VNNI of rows r and r + 16 from 32 rows by 16 columns;
     * transposed from 32 rows by 16 columns. */
    void (*transpose_to_vnni)(uint16_t *tile, const uint16_t *rows, int64_t ld);
    void (*vnni_pairs_split16)(uint16_t *tile, const uint16_t *rows, int64_t ld);
    void (*transpose_tile)(uint16_t *tile, const uint16_t *rows, int64_t ld);

    /* A copy of transposed tiles, whose columns are 32 keys, with zeros in the columns j with keep[j] == 0: masked
     * keys may be NaN, and 0 times NaN is NaN. */
    void (*zero_masked_keys)(uint16_t *to, const uint16_t *from, int64_t tiles, const uint8_t *keep);

    /* ---- Rows from sums ---- */

    /* to[n][m] = C[m][n], of column-major tiles with `col_stride` elements per column; m, n multiples of 16. */
    void (*transpose_sums)(float *to, int64_t ld, const float *sums, int64_t col_stride, int64_t m,
                           int64_t n);

    /* to[n][m] = factor[n] C[m][n], rounded to bfloat16, for any m and n. `col_stride` is at least m rounded up to a
     * multiple of 32. */
    void (*store_transposed)(uint16_t *to, int64_t ld, const float *sums, int64_t col_stride,
                             const float *factor, int64_t m, int64_t n);

    /* The low halves of the same: what that rounding took, itself rounded; 0 if it is not finite. */
    void (*store_transposed_low)(uint16_t *to, int64_t ld, const float *sums, int64_t col_stride,
                                 const float *factor, int64_t m, int64_t n);

    /* to[m][n] = factor C[m][n], rounded to bfloat16, for at most 16 rows of row-major tiles and any n. */
    void (*store_rows)(uint16_t *to, int64_t ld, const float *sums, float factor, int64_t m, int64_t n);

    /* ---- Dot products of rows ---- */

    /* out[r] = sum over channels of A[r] B[r], for n rows. */
    void (*dots)(float *out, const uint16_t *A, int64_t lda, const uint16_t *B, int64_t ldb, int64_t n,
                 int64_t width);

    /* ---- Score tiles to operands ---- */

    /* T, W lanes, W a multiple of 32, rounded to bfloat16: to VNNI, tile by tile of 16 lanes; to rows in split16 order,
     * tiles of 16 keys by 32 lanes, with tile_stride elements from the tiles of the first 16 keys to those of the
     * last 16. */
    void (*round_to_vnni)(uint16_t *vnni, const float *T, int64_t W);
    void (*round_to_rows)(uint16_t *rows, int64_t tile_stride, const float *T, int64_t W);

    /* T minus what those make of it: what rounding took; 0 if it is not finite. */
    void (*keep_rest)(float *T, int64_t W);

    /* Zero what is outside the band in 32 lanes of such a result: query i sees key j if low <= j - i <= high. */
    void (*mask_band_rows)(uint16_t *rows, int64_t tile_stride, int64_t low, int64_t high);
    void (*mask_band_vnni)(uint16_t *vnni, int64_t low, int64_t high);

    /* ---- Stages: from score tiles to weights and gradients. Those that take `next` interleave it ---- */

    /* round_to_vnni of weights; the sum of the rounded ones minus that of the exact ones is added to excess. */
    void (*round_weights)(uint16_t *vnni, const float *T, int64_t W, float *excess);

    /* One step of the online softmax as agi_kernels.softmax does it, but the weights 2^(c T - m) go to VNNI, rounded,
     * and T is unchanged. l is the sum of the exact weights, l + excess that of the rounded ones. */
    bool (*softmax)(uint16_t *vnni, const float *T, int64_t W, float c, float *m, float *l, float *excess,
                    float *alpha);

    /* The same for PANEL lanes, without a change of m, in the band low <= j - i <= high, low <= high: scores of other
     * pairs of key j and query i have no effect. False, and nothing is added to the sums, if m has to change. */
    bool (*weights)(uint16_t *vnni, const float *T, float c, int64_t low, int64_t high, const float *m,
                    float *l, float *excess, const amx_queue *next);

    /* agi_kernels.softmax_tangent on PANEL lanes of scores without features, with tS = scale U; weights and their
     * tangents go to VNNI, T and U are unchanged. False, and nothing is added to the sums, if m and r have to
     * change. */
    bool (*softmax_tangent)(uint16_t *vnni, uint16_t *t_vnni, const float *T, const float *U, float c,
                            float scale, const float *m, float *l, float *excess, const float *r, float *a,
                            float *t_excess, const amx_queue *next);

    /* The vjp on 32 lanes without features: P = 2^(c T - L) and dS = P (dP - D) to rows in split16 order, dS also to
     * VNNI. Nothing is interleaved: it consists of multiply-adds, which run two per cycle alone, but one per cycle
     * together with AMX products. */
    void (*gradients)(uint16_t *P, uint16_t *dS, int64_t tile_stride, uint16_t *dS_vnni, const float *T,
                      const float *dP, float c, const float *L, const float *D);

    /* The same for vjp_jvp. Of the scores S, dP, U and tdP, with tS = scale U:
     *     R = 2^(c S - L), dS = R (dP - D), tR = R (tS - mu), tdS = R ((tS - mu)(dP - D) + tdP - tD)
     * go to rows, in this order, and tdS and dS also to VNNI. */
    void (*gradient_tangents)(uint16_t *const rows[4], int64_t tile_stride, uint16_t *const vnni[2],
                              const float *const scores[4], float c, float scale, const float *L,
                              const float *mu, const float *D, const float *tD, const amx_queue *next);

    /* jvp that is given lse, on 32 lanes without features. Of the scores S and U, with tS = scale U:
     *     P (tS - r), P = 2^(c S - L)
     * go to VNNI, rounded, in this order. sums[n]: what the exact ones add up to is added to it; excess[n]: the rounded
     * ones minus these. */
    void (*given_tangents)(uint16_t *const vnni[2], const float *const scores[2], float c, float scale,
                           const float *L, const float *r, float *const sums[2], float *const excess[2],
                           const amx_queue *next);

    /* jvp_jvp, likewise. Of the scores S, U, Y and Z, with tS = scale U, sS = scale Y, stS = z_scale Z:
     *     P ((tS - mu) (sS - smu) + stS), P (sS - smu), P (tS - mu)
     * go to VNNI. If vnni[2] is NULL, the sum of the last two goes to vnni[1]. sum, excess: of the first. */
    void (*second_tangents)(uint16_t *const vnni[3], const float *const scores[4], float c, float scale,
                            float z_scale, const float *L, const float *mu, const float *smu, float *sum,
                            float *excess, const amx_queue *next);
} agi_amx_kernels;

#if defined(__x86_64__)
extern const agi_amx_kernels agi_amx_table;
#endif

#endif
