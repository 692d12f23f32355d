/* From rows to operands: see amx_operands.h. */
#include "cpu/amx/amx_operands.h"

#include <string.h>

static const uint16_t *row_of(agi_slice s, int64_t row)
{
    return (const uint16_t *)s.t->data + agi_row_offset(s, row);
}

/* One row of float32, dO or tdO of a problem with such outputs, rounded to bfloat16. */
static void round_row(uint16_t *to, agi_slice s, int64_t row)
{
    enum { CHUNK = 64 };
    const int64_t stride = s.t->strides[3];
    const float *const from = (const float *)s.t->data + agi_row_offset(s, row);
    float chunk[CHUNK];
    if (stride == 1) {
        agi_amx_table.round_row(to, from, s.D);
        return;
    }
    for (int64_t c = 0; c < s.D; c += CHUNK) {
        const int64_t n = agi_min(CHUNK, s.D - c);
        for (int64_t e = 0; e < n; e++) {
            chunk[e] = from[(c + e) * stride];
        }
        agi_amx_table.round_row(to + c, chunk, n);
    }
}

static void copy_row(uint16_t *to, agi_slice s, int64_t row)
{
    if (s.dtype == AG_F32) {
        round_row(to, s, row);
        return;
    }
    const int64_t stride = s.t->strides[3];
    const uint16_t *const from = row_of(s, row);
    if (stride == 1) {
        memcpy(to, from, (size_t)s.D * sizeof *to);
        return;
    }
    for (int64_t c = 0; c < s.D; c++) {
        to[c] = from[c * stride];
    }
}

/* As agi_load_rows16, but always copies: the result is to[rows][width], ld elements from row to row. */
static void copy_rows(agi_slice s, int64_t first, int64_t n, int64_t rows, int64_t width, const uint8_t *skip,
                      uint16_t *to, int64_t ld)
{
    for (int64_t r = 0; r < rows; r++, to += ld) {
        const bool present = r < n && (skip == NULL || !skip[r]);
        const int64_t used = present ? s.D : 0;
        if (present) {
            copy_row(to, s, first + r);
        }
        memset(to + used, 0, (size_t)(width - used) * sizeof *to);
    }
}

agi_rows16 agi_load_rows16(agi_slice s, int64_t first, int64_t n, int64_t rows, int64_t width,
                           const uint8_t *skip, uint16_t *scratch)
{
    const bool complete =
        s.dtype == AG_BF16 && s.t->strides[3] == 1 && s.D == width && n == rows && skip == NULL;
    /* Loading a tile row that crosses a cache line takes twice as long: a copy is cheaper. */
    const bool aligned =
        (uintptr_t)row_of(s, first) % AGI_CACHE_LINE == 0 && s.t->strides[2] % AMX_DEPTH == 0;
    if (complete && aligned) {
        return (agi_rows16){row_of(s, first), s.t->strides[2]};
    }
    copy_rows(s, first, n, rows, width, skip, scratch, width);
    return (agi_rows16){scratch, width};
}

void agi_amx_prefetch_rows(agi_prefetch_rows *to, agi_slice s, int64_t first, int64_t n)
{
    const int64_t size = (int64_t)ag_dtype_size(s.dtype);
    if (n > 0 && s.t->data != NULL && s.t->strides[3] == 1) {
        const int64_t next = n > 1 ? s.t->strides[2] * size : 0; /* the stride of one row may be anything */
        agi_prefetch_rows_add(to, (const char *)s.t->data + agi_row_offset(s, first) * size, next, s.D * size,
                              n);
    }
}

static amx_operand operand_of_rows(agi_rows16 rows)
{
    return (amx_operand){rows.p, AMX_ROWS * rows.ld, AMX_DEPTH, rows.ld};
}

/* Rows that are not adjacent are copied: many queries read them, and rows a large stride apart compete for few
 * sets of the caches. */
static amx_operand key_rows(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                            uint16_t *scratch)
{
    const int64_t width = agi_round_up(D, AMX_DEPTH), rows = agi_round_up(n, GROUP_KEYS);
    const agi_slice slice = agi_key_slice(x, t, D);
    if (t->strides[2] == width) {
        return operand_of_rows(agi_load_rows16(slice, j0, n, rows, width, NULL, scratch));
    }
    copy_rows(slice, j0, n, rows, width, NULL, scratch, width);
    return operand_of_rows((agi_rows16){scratch, width});
}

void agi_amx_round_rest(uint16_t *vnni, float *T, int64_t lanes, float *excess)
{
    agi_amx_table.keep_rest(T, lanes);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < lanes; i++) {
            excess[i] += T[j * PANEL + i];
        }
    }
    agi_amx_table.round_weights(vnni, T, lanes, excess);
}

void agi_amx_copy_key_rows(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                           uint16_t *to, int64_t ld)
{
    copy_rows(agi_key_slice(x, t, D), j0, n, agi_round_up(n, GROUP_KEYS), agi_round_up(D, AMX_DEPTH), NULL,
              to, ld);
}

void agi_amx_copy_keys(const agi_head *x, const ag_tensor *t, const ag_tensor *tangent, int64_t D, int64_t j0,
                       int64_t n, uint16_t *to)
{
    const int64_t width = agi_round_up(D, AMX_DEPTH), ld = tangent->data == NULL ? width : 2 * width;
    agi_amx_copy_key_rows(x, t, D, j0, n, to, ld);
    if (tangent->data != NULL) {
        agi_amx_copy_key_rows(x, tangent, D, j0, n, to + width, ld);
    }
}

amx_operand agi_amx_key_rows_and_tangents(const agi_head *x, const ag_tensor *t, const ag_tensor *tangent,
                                          int64_t D, int64_t j0, int64_t n, uint16_t *scratch)
{
    const int64_t ld = 2 * agi_round_up(D, AMX_DEPTH);
    if (tangent->data == NULL) {
        return key_rows(x, t, D, j0, n, scratch);
    }
    agi_amx_copy_keys(x, t, tangent, D, j0, n, scratch);
    return operand_of_rows((agi_rows16){scratch, ld});
}

agi_amx_tangent_product agi_amx_make_tangent_product(amx_operand rows, bool row_tangents, amx_operand columns,
                                                     bool column_tangents, int64_t D)
{
    const int64_t width = agi_round_up(D, AMX_DEPTH), tiles = width / AMX_DEPTH;
    if (!column_tangents) { /* tA B^T alone: skip A and tB */
        rows.p += width;
        columns.p += AMX_LANES * width;
    }
    return (agi_amx_tangent_product){rows, columns, (row_tangents + column_tangents) * tiles};
}

amx_operand agi_amx_key_columns(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                                uint16_t *out, uint16_t *scratch)
{
    const int64_t width = agi_round_up(D, AMX_ROWS), group_size = width * GROUP_KEYS;
    for (int64_t j = 0; j < n; j += GROUP_KEYS) {
        const agi_rows16 rows = agi_load_rows16(agi_key_slice(x, t, D), j0 + j, agi_min(GROUP_KEYS, n - j),
                                                GROUP_KEYS, width, NULL, scratch);
        for (int64_t c = 0; c < width; c += AMX_ROWS) {
            agi_amx_table.transpose_tile(out + j / GROUP_KEYS * group_size + c * GROUP_KEYS, rows.p + c,
                                         rows.ld);
        }
    }
    return (amx_operand){out, AMX_AB, group_size, GROUP_KEYS};
}

/* Copies n dense rows from the scratch to an output whose channels are not adjacent. */
static void scatter_rows(agi_slice to, int64_t first, int64_t n, const uint16_t *scratch)
{
    uint16_t *const dst = (uint16_t *)to.t->data + agi_row_offset(to, first);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < to.D; c++) {
            dst[r * to.t->strides[2] + c * to.t->strides[3]] = scratch[r * to.D + c];
        }
    }
}

typedef void (*store_sums)(uint16_t *to, int64_t ld, const float *sums, int64_t col_stride,
                           const float *factor, int64_t m, int64_t n);

/* At most PANEL rows. */
static void store_transposed_panel(store_sums put, agi_slice to, int64_t first, int64_t n, const float *sums,
                                   const double *factor, int64_t factor_stride, uint16_t *scratch)
{
    const int64_t col_stride = agi_amx_col_stride(to.D);
    uint16_t *const dst = (uint16_t *)to.t->data + agi_row_offset(to, first);
    float factors[PANEL];
    for (int64_t r = 0; r < n; r++) {
        factors[r] = (float)factor[r * factor_stride];
    }
    if (to.t->strides[3] == 1) {
        put(dst, to.t->strides[2], sums, col_stride, factors, to.D, n);
        return;
    }
    put(scratch, to.D, sums, col_stride, factors, to.D, n);
    scatter_rows(to, first, n, scratch);
}

void agi_amx_store_rows(agi_slice to, int64_t first, int64_t n, const float *sums, double factor,
                        uint16_t *scratch)
{
    const int64_t width = agi_round_up(to.D, AMX_LANES);
    const bool dense = to.t->strides[3] == 1;
    for (int64_t r = 0; r < n; r += AMX_ROWS) {
        const int64_t n_rows = agi_min(AMX_ROWS, n - r);
        uint16_t *const dst = (uint16_t *)to.t->data + agi_row_offset(to, first + r);
        agi_amx_table.store_rows(dense ? dst : scratch, dense ? to.t->strides[2] : to.D, sums + r * width,
                                 (float)factor, n_rows, to.D);
        if (!dense) {
            scatter_rows(to, first + r, n_rows, scratch);
        }
    }
}

static void store_transposed(store_sums put, agi_slice to, int64_t first, int64_t n, const float *sums,
                             const double *factor, int64_t factor_stride, uint16_t *scratch)
{
    for (int64_t r = 0; r < n; r += PANEL) {
        store_transposed_panel(put, to, first + r, agi_min(PANEL, n - r), sums + r * agi_amx_col_stride(to.D),
                               factor + r * factor_stride, factor_stride, scratch);
    }
}

void agi_amx_store_transposed(agi_slice to, int64_t first, int64_t n, const float *sums, const double *factor,
                              int64_t factor_stride, uint16_t *scratch)
{
    store_transposed(agi_amx_table.store_transposed, to, first, n, sums, factor, factor_stride, scratch);
}

void agi_amx_store_transposed_low(agi_slice to, int64_t first, int64_t n, const float *sums,
                                  const double *factor, int64_t factor_stride, uint16_t *scratch)
{
    store_transposed(agi_amx_table.store_transposed_low, to, first, n, sums, factor, factor_stride, scratch);
}

amx_operand agi_amx_query_columns(agi_slice s, int64_t first, int64_t n, int64_t W, const uint8_t *skip,
                                  uint16_t *out, int64_t query_stride, uint16_t *scratch)
{
    const int64_t width = agi_round_up(s.D, AMX_DEPTH);
    const agi_rows16 rows = agi_load_rows16(s, first, n, W, width, skip, scratch);
    for (int64_t i = 0; i < W; i += AMX_LANES) {
        for (int64_t c = 0; c < width; c += AMX_DEPTH) {
            agi_amx_table.transpose_to_vnni(out + i / AMX_LANES * query_stride + c * AMX_LANES,
                                            rows.p + i * rows.ld + c, rows.ld);
        }
    }
    return (amx_operand){out, query_stride, AMX_AB, AMX_DEPTH};
}

amx_operand agi_amx_query_rows(agi_slice s, int64_t first, int64_t n, int64_t rows, const uint8_t *skip,
                               uint16_t *out, uint16_t *scratch)
{
    const int64_t width = agi_round_up(s.D, AMX_LANES);
    const agi_rows16 from = agi_load_rows16(s, first, n, rows, width, skip, scratch);
    for (int64_t c = 0; c < width; c += AMX_LANES) {
        for (int64_t i = 0; i < rows; i += AMX_DEPTH) {
            agi_amx_table.vnni_pairs_split16(out + c * rows + i * AMX_LANES, from.p + i * from.ld + c,
                                             from.ld);
        }
    }
    return (amx_operand){out, AMX_LANES * rows, AMX_AB, AMX_DEPTH};
}
