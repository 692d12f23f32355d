/* The table of what the maps do on the AMX unit: products of bfloat16 matrices with sums in float32, and the stages
 * that are next to them. A score tile is T[j][i] here too, in float32, PANEL numbers from row to row, in groups
 * of GROUP_KEYS keys.
 *
 * Operands are bfloat16 in tiles of 1 KiB or rows of whole 64 bytes:
 *     rows      A[m][k], k in a row
 *     turned    A^T of what is stored: 32 stored rows by 16 columns become a tile of 16 rows
 *     columns   B = A^T of what is stored: 16 stored rows by 32 columns become a tile of pairs
 *     pairs     B, stored rows two by two
 *
 * Products of key gradients run over queries, and the order in which a sum takes them is free: there, in each 32
 * queries, number r and number r + 16 are neighbours ("far" pairs), because two vectors of a row then become one by
 * a shift and a blend. */
#ifndef AGI_CPU_AMX_KERNELS_H
#define AGI_CPU_AMX_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/amx/kernels/amx.h"

enum { GROUP_KEYS = 32 };

/* What weights are multiplied by before they are cut to bfloat16: 1 + 2^-8 times the mean of 1/p over mantissas p. */
#define AMX_CENTRED 1.002818

/* Where the tiles of an operand are: tile (n, k) at p + n * line + k * step. */
typedef struct {
    const uint16_t *p;
    int64_t line, step;
    int64_t row; /* of A: numbers from row to row of a tile */
} amx_operand;

/* Where the tiles of C are, in float32: tile (m, n) at p + m * line + n * step. Each lies together, so that it comes from
 * the second cache twice as fast as in pieces. */
typedef struct {
    float *p;
    int64_t line, step;
} amx_sums;

/* The tiles follow each other along n, or along m. */
static inline amx_sums amx_sums_by_rows(float *p, int64_t width)
{
    return (amx_sums){p, AMX_ROWS * width, AMX_C};
}

static inline amx_sums amx_sums_by_columns(float *p, int64_t tall)
{
    return (amx_sums){p, AMX_C, AMX_LANES * tall};
}

/* 2 x 2 tiles of scores: 32 rows of keys, `ld` numbers apart, by the columns of 32 queries, `line` numbers from 16 of
 * them to the next; sums are `depth` tiles deep, and zero where that is 0. */
typedef struct {
    const uint16_t *rows, *columns;
    int64_t ld, line, depth;
    float *T;
} amx_square;

enum { MOST_SQUARES = 4 };

/* What is done beside a group's stage: the scores of the next group are computed, and lines of the cache, up to `end`,
 * are asked for. */
typedef struct {
    int64_t n;
    amx_square squares[MOST_SQUARES];
    const char *ask, *end;
} amx_next;

/* As many lines, at most. */
enum { MOST_LINES = GROUP_KEYS / 2 };

typedef struct {
    void (*begin)(amx_config *before);
    void (*end)(const amx_config *before);

    /* C = or += A B, sizes in tiles: M x N of C, K > 0 of the sum. */
    void (*product)(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B,
                    const amx_sums *C, bool add);

    /* What is beside a stage, without one. */
    void (*scores)(const amx_next *next);

    /* One tile of an operand, from rows that lie ld apart: 16 rows by 32 to columns; 32 rows by 16 to far
     * pairs, and to a turned tile. */
    void (*columns)(uint16_t *tile, const uint16_t *rows, int64_t ld);
    void (*far_pairs)(uint16_t *tile, const uint16_t *rows, int64_t ld);
    void (*turned)(uint16_t *tile, const uint16_t *rows, int64_t ld);

    /* Turned tiles without the keys that are not to be kept: zeros there, as 0 times NaN is NaN. */
    void (*clean)(uint16_t *to, const uint16_t *from, int64_t tiles, const uint8_t *keep);

    /* to[n][m] = C[m][n], of sums by columns, `tall` rows of them; m, n multiples of 16. */
    void (*turn)(float *to, int64_t ld, const float *sums, int64_t tall, int64_t m, int64_t n);

    /* The same, times factor[n], rounded to bfloat16, for any m and n. `tall` is no less than the next multiple of
     * 32. */
    void (*put_turned)(uint16_t *to, int64_t ld, const float *sums, int64_t tall, const float *factor,
                       int64_t m, int64_t n);

    /* Rows 0 .. m - 1, at most 16, of sums that lie by rows: n channels times factor, rounded to bfloat16. */
    void (*put_rows)(uint16_t *to, int64_t ld, const float *sums, float factor, int64_t m, int64_t n);

    /* Norms of the 16 columns of n tiles below each other; no less than the norm of any of n rows of whole
     * tiles, and not a number where one of theirs is not. */
    void (*column_norms)(float *norms, const uint16_t *tiles, int64_t n);
    float (*largest_norm)(const uint16_t *rows, int64_t ld, int64_t n, int64_t width);

    /* A group of T, W lanes, W a multiple of 32, rounded: to pairs of keys, tile by tile of 16 lanes; to rows of
     * far pairs, tiles of 16 keys by 32 lanes, those of the second 16 keys `line` behind those of the first. */
    void (*round_pairs)(uint16_t *pairs, const float *T, int64_t W);
    void (*round_rows)(uint16_t *rows, int64_t line, const float *T, int64_t W);

    /* Zeros in such a group of 32 lanes where a query i does not see a key j: seen is low <= j - i <= high. */
    void (*hide_rows)(uint16_t *rows, int64_t line, int64_t low, int64_t high);
    void (*hide_pairs)(uint16_t *pairs, int64_t low, int64_t high);

    /* agi_kernels.softmax on a group whose weights go to pairs of keys; T stays; l is AMX_CENTRED times the sum.
     * norms[lane] * reach: no less than |c T|, where that is known; else one of them is infinite. Where it is known
     * and small, weights come from a table, exact to 0.6 percent. Where norms are finite, m is in 256ths. */
    bool (*softmax)(uint16_t *pairs, const float *T, int64_t W, float c, const float *norms, float reach,
                    float *m, float *l, float *alpha);

    /* The same on PANEL lanes with m as it is, where a query i sees the keys j of the group with
     * low <= j - i <= high alone, low <= high, beside the scores of the next group. What a query does not see has no
     * effect on it. False, and nothing is added to l, where m would have to move. */
    bool (*weights)(uint16_t *pairs, const float *T, float c, const float *norms, float reach, int64_t low,
                    int64_t high, const float *m, float *l, const amx_next *next);

    /* agi_kernels.softmax_tangent on PANEL lanes of plain scores, with tS = scale U, beside the next group's; T and U
     * stay. False, and nothing is added to l and a, where m and r would have to move. */
    bool (*softmax_tangent)(uint16_t *pairs, uint16_t *t_pairs, const float *T, const float *U, float c,
                            float scale, const float *m, float *l, const float *r, float *a,
                            const amx_next *next);

    /* The vjp's stages on 32 lanes of a group without features: P = 2^(c T - L), dS = P (dP - D), rounded to rows,
     * and dS also to pairs. Not beside the next group's scores: it is made of multiply-adds, of which there is one a
     * cycle while the unit works, and two else. */
    void (*gradients)(uint16_t *P, uint16_t *dS, int64_t line, uint16_t *dS_pairs, const float *T,
                      const float *dP, float c, const float *L, const float *D);

    /* The same for vjp_jvp, beside the next group's scores. Of the scores S, dP, U and tdP, with tS = scale U:
     *     R = 2^(c S - L), dS = R (dP - D), tR = R (tS - mu), tdS = R ((tS - mu)(dP - D) + tdP - tD)
     * rows, in this order, and pairs of tdS and of dS. */
    void (*gradient_tangents)(uint16_t *const rows[4], int64_t line, uint16_t *const pairs[2],
                              const float *const scores[4], float c, float scale, const float *L,
                              const float *mu, const float *D, const float *tD, const amx_next *next);

    /* out[r] = sum over channels of A[r] B[r]. */
    void (*dots)(float *out, const uint16_t *A, int64_t lda, const uint16_t *B, int64_t ldb, int64_t n,
                 int64_t width);
} agi_amx_kernels;

#if defined(__x86_64__)
extern const agi_amx_kernels agi_amx_table;
#endif

#endif
