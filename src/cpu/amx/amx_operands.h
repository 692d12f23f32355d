/* Operands of the AMX unit from the caller's bfloat16 rows. All are filled up with zeros to whole tiles; rows are
 * read where they lie if they are whole themselves. For float32's instance of the maps alone. */
#ifndef AGI_CPU_AMX_ROWS_H
#define AGI_CPU_AMX_ROWS_H

#include "core/prefetch.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/drivers/tile.h"

typedef struct {
    const uint16_t *p;
    int64_t ld;
} agi_rows16;

/* Rows first .. first + n - 1 of the slice as `rows` rows of `width` numbers; skip[row] != 0, where given: the row
 * is zero. scratch: rows * width. */
agi_rows16 agi_load_rows16(agi_slice s, int64_t first, int64_t n, int64_t rows, int64_t width,
                           const uint8_t *skip, uint16_t *scratch);

/* Adds rows first .. first + n - 1 of the slice to those to prefetch; not if the tensor is absent or its channels are
 * not contiguous. */
void agi_amx_prefetch_rows(agi_prefetch_rows *to, agi_slice s, int64_t first, int64_t n);

/* One step of the prefetches; the next stage interleaves its first lines. */
static inline void agi_amx_prefetch_step(agi_prefetch_rows *rows, amx_next *next)
{
    const agi_range lines = agi_prefetch_rows_step(rows, MOST_LINES * AGI_CACHE_LINE);
    next->ask = (const char *)lines.at;
    next->end = (const char *)lines.end;
}

/* T = A B^T transposed, for 32 keys and 32 queries from the given ones on. */
static inline void agi_amx_add_square(amx_next *to, const amx_operand *keys, int64_t key,
                                      const amx_operand *queries, int64_t query, int64_t depth, float *T)
{
    to->squares[to->n++] = (amx_square){keys->p + key * keys->row,
                                        queries->p + query / AMX_LANES * queries->line,
                                        keys->row,
                                        queries->line,
                                        depth,
                                        T};
}

/* Rows of keys, filled up to whole groups, with the tangent's channels behind the tensor's own, where there is one. */
void agi_amx_copy_keys(const agi_head *x, const ag_tensor *t, const ag_tensor *tangent, int64_t D, int64_t j0,
                       int64_t n, uint16_t *to);

/* A, by rows: keys by channels, with the tangent's channels behind the tensor's own, where there is one. */
amx_operand agi_amx_key_rows_and_tangents(const agi_head *x, const ag_tensor *t, const ag_tensor *tangent,
                                          int64_t D, int64_t j0, int64_t n, uint16_t *scratch);

/* A, turned: channels by keys, the tiles of 32 keys together. The scratch has 32 rows. */
amx_operand agi_amx_key_columns(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                                uint16_t *out, uint16_t *scratch);

/* Rows of sums that lie by columns, for D channels. */
static inline int64_t agi_amx_tall(int64_t D)
{
    return agi_round_up(D, AMX_DEPTH);
}

/* Rows first .. first + n - 1 of a bfloat16 output from such sums, row r times factor[r * step]. The scratch has PANEL
 * rows. */
void agi_amx_store_transposed(agi_slice to, int64_t first, int64_t n, const float *sums, const double *factor,
                              int64_t step, uint16_t *scratch);

/* The same from sums that lie by rows, whole tiles of AMX_LANES channels, times one factor. The scratch has AMX_ROWS
 * rows. */
void agi_amx_store_rows(agi_slice to, int64_t first, int64_t n, const float *sums, double factor,
                        uint16_t *scratch);

/* B: channels by queries. W lanes, the scratch has as many rows; line: numbers from 16 queries to the next in out. */
amx_operand agi_amx_query_columns(agi_slice s, int64_t first, int64_t n, int64_t W, const uint8_t *skip,
                                  uint16_t *out, int64_t line, uint16_t *scratch);

/* The operands of A tB^T + tA B^T, as one sum over channels: rows [A | tA], columns [tB | B]. */
typedef struct {
    amx_operand rows, columns;
    int64_t depth; /* in tiles; 0: both tangents are absent */
} agi_amx_sum;

/* rows: of A, with tA's behind where that is there; columns: of tB, B's `width` channels behind. */
agi_amx_sum agi_amx_tangent_sum(amx_operand rows, bool row_tangents, amx_operand columns,
                                bool column_tangents, int64_t D);

/* B: queries, in far pairs, by channels. `rows` is a multiple of 32, the scratch has as many. */
amx_operand agi_amx_query_rows(agi_slice s, int64_t first, int64_t n, int64_t rows, const uint8_t *skip,
                               uint16_t *out, uint16_t *scratch);

static inline uint16_t *agi_take16(agi_arena *arena, int64_t n)
{
    return agi_take(arena, n, sizeof(uint16_t));
}

#endif
