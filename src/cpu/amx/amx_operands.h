/* AMX operands from the caller's rows, bfloat16 or rounded to it, padded with zeros to whole tiles. amx_kernels.h
 * explains the formats. A is the left operand (keys), B the right one (queries). */
#ifndef AGI_CPU_AMX_OPERANDS_H
#define AGI_CPU_AMX_OPERANDS_H

#include "core/prefetch.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/drivers/tile.h"

/* Queries that see so few keys have their weights and gradients of scores multiplied in two parts: rounded to bfloat16,
 * and what that took. The errors of many rounded weights average out; those of a few do not, and the first rows of a
 * causal head, whose gradients are the largest, would carry them. */
enum { FEW_KEYS = 64 };

/* Queries of a stripe: two vectors, so that all score tiles of a group of keys stay in the L1 cache. Two score tiles
 * share PANEL lanes, side by side. */
enum { STRIPE = AMX_DEPTH };

/* Rows of bfloat16: element (row, channel) is p[row * ld + channel]. */
typedef struct {
    const uint16_t *p;
    int64_t ld;
} agi_rows16;

/* Rows first .. first + n - 1 of the slice, padded to `rows` rows of `width` elements: in place if they need no
 * rounding and no padding and are aligned, else copied to scratch[rows][width]. Rows with skip[row] != 0 become zero;
 * skip may be NULL. */
agi_rows16 agi_load_rows16(agi_slice s, int64_t first, int64_t n, int64_t rows, int64_t width,
                           const uint8_t *skip, uint16_t *scratch);

/* Adds rows first .. first + n - 1 of the slice to the list of rows to prefetch, unless the tensor is absent or
 * its channels are not contiguous. */
void agi_amx_prefetch_rows(agi_prefetch_rows *to, agi_slice s, int64_t first, int64_t n);

/* Prefetches the rows of one step. The first lines are left to the stage that runs the queue `next`: it prefetches
 * them among its instructions. */
static inline void agi_amx_prefetch_step(agi_prefetch_rows *rows, amx_queue *next)
{
    const agi_range lines = agi_prefetch_rows_step(rows, MAX_PREFETCH_LINES * AGI_CACHE_LINE);
    next->prefetch = (const char *)lines.at;
    next->prefetch_end = (const char *)lines.end;
}

/* Queues T = A B for the 32 keys from `key` on and the 32 queries from `query` on. */
static inline void agi_amx_queue_block(amx_queue *to, const amx_operand *keys, int64_t key,
                                       const amx_operand *queries, int64_t query, int64_t depth, float *T)
{
    to->blocks[to->n++] = (amx_block2x2){keys->p + key * keys->ld,
                                         queries->p + query / AMX_LANES * queries->stride_mn,
                                         keys->ld,
                                         queries->stride_mn,
                                         depth,
                                         T};
}

/* T: weights of a group, or their tangents, whose rounded form is added up already. Rounds what that took to VNNI;
 * excess becomes that of both parts together. */
void agi_amx_round_rest(uint16_t *vnni, float *T, int64_t lanes, float *excess);

/* Copies rows of keys, padded to whole groups of keys and whole tiles, ld elements from row to row. */
void agi_amx_copy_key_rows(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                           uint16_t *to, int64_t ld);

/* Copies the rows [K | tK] of keys, padded to whole groups of keys; without the second half if the tangent is
 * absent. */
void agi_amx_copy_keys(const agi_head *x, const ag_tensor *t, const ag_tensor *tangent, int64_t D, int64_t j0,
                       int64_t n, uint16_t *to);

/* A, keys by channels: rows [K | tK], without the second half if the tangent is absent. Used in place if
 * possible. */
amx_operand agi_amx_key_rows_and_tangents(const agi_head *x, const ag_tensor *t, const ag_tensor *tangent,
                                          int64_t D, int64_t j0, int64_t n, uint16_t *scratch);

/* A transposed, channels by keys: all tiles of the first 32 keys, then those of the next 32, and so on. The scratch
 * has 32 rows. */
amx_operand agi_amx_key_columns(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                                uint16_t *out, uint16_t *scratch);

/* The col_stride (see amx_sums_by_columns) of sums of D channels, one row of C per channel. */
static inline int64_t agi_amx_col_stride(int64_t D)
{
    return agi_round_up(D, AMX_DEPTH);
}

/* Stores such sums, transposed, in rows first .. first + n - 1 of a bfloat16 output, row r times
 * factor[r * factor_stride]; the second stores their low halves. The scratch has PANEL rows. */
void agi_amx_store_transposed(agi_slice to, int64_t first, int64_t n, const float *sums, const double *factor,
                              int64_t factor_stride, uint16_t *scratch);
void agi_amx_store_transposed_low(agi_slice to, int64_t first, int64_t n, const float *sums,
                                  const double *factor, int64_t factor_stride, uint16_t *scratch);

/* Stores sums whose tiles are in row-major order, times one factor. The scratch has AMX_ROWS rows. */
void agi_amx_store_rows(agi_slice to, int64_t first, int64_t n, const float *sums, double factor,
                        uint16_t *scratch);

/* B, channels by queries, in VNNI pairs of channels. W: queries including padding; the scratch has W rows.
 * query_stride: elements from 16 queries to the next 16 in out. */
amx_operand agi_amx_query_columns(agi_slice s, int64_t first, int64_t n, int64_t W, const uint8_t *skip,
                                  uint16_t *out, int64_t query_stride, uint16_t *scratch);

/* A tB^T + tA B^T as one product over twice as many channels: [A | tA] times [tB | B]. */
typedef struct {
    amx_operand rows, columns;
    int64_t depth; /* tiles along k; 0: both tangents are absent */
} agi_amx_tangent_product;

/* rows: [A | tA], or A if row_tangents is false. columns: [tB | B]; if column_tangents is false, tB is not
 * read. */
agi_amx_tangent_product agi_amx_make_tangent_product(amx_operand rows, bool row_tangents, amx_operand columns,
                                                     bool column_tangents, int64_t D);

/* B, queries by channels, in split16 VNNI pairs of queries. rows: n, rounded up to a multiple of 32; the
 * scratch has as many. */
amx_operand agi_amx_query_rows(agi_slice s, int64_t first, int64_t n, int64_t rows, const uint8_t *skip,
                               uint16_t *out, uint16_t *scratch);

/* Memory for n elements of bfloat16. */
static inline uint16_t *agi_take16(agi_arena *arena, int64_t n)
{
    return agi_take(arena, n, sizeof(uint16_t));
}

#endif
