/* Geometry and rows: see tile.h. */
#include "cpu/drivers/tile.h"

#include <math.h>
#include <string.h>

#include "core/number.h"

/* ---- The head ---- */

static double sink_of(const agi_call *call, const ag_tensor *t, int64_t h)
{
    return agi_load(call->plan->p.aux_dtype, t->data, call->plan->p.heads == 1 ? 0 : h * t->strides[1]);
}

void REAL(agi_head_begin)(agi_head *x, const agi_call *call, int64_t b, int64_t h)
{
    const ag_problem *p = &call->plan->p;
    const bool sink = agi_has(p, AG_SINK);
    const bool second = call->map == AGI_JVP_JVP;
    const bool tangents = call->map == AGI_JVP || call->map == AGI_VJP_JVP || second;
    x->call = call;
    x->cpu = agi_cpu_plan_of(call->plan);
    x->k = x->cpu->k;
    agi_sequence_of(&x->seq, call, b);
    x->short_q = x->seq.n_q <= MAX_SHORT_Q;
    x->h = h;
    x->hk = h / (p->heads / p->kv_heads);
    x->Dk = p->dim_qk;
    x->Dv = p->dim_v;
    x->Dk_pad = x->cpu->Dk_pad;
    x->Dv_pad = x->cpu->Dv_pad;
    x->has = x->cpu->features;
    x->scale = p->scale;
    x->score_scale = agi_to_real(x->scale);
    /* A softcap so small that 2 / softcap overflows still caps everything to 0. */
    x->softcap = x->has.softcap ? (real)fmax(p->softcap, 16 * (double)REAL_MIN) : 0;
    x->c = x->has.plain ? (real)(x->scale * LOG2_E) : 1;
    x->sink = sink ? sink_of(call, &call->a.sink, h) : -INFINITY;
    x->tsink = sink && tangents && call->a.tsink.data != NULL ? sink_of(call, &call->a.tsink, h) : 0;
    x->ssink = sink && second && call->a.ssink.data != NULL ? sink_of(call, &call->a.ssink, h) : 0;
}

/* ---- Geometry ---- */

agi_band REAL(agi_band_at)(const agi_head *x, int64_t i0, int64_t j0)
{
    const ag_problem *p = &x->call->plan->p;
    /* g_j - p_i = (j - i) + offset */
    const int64_t offset = (j0 + x->seq.k_shift) - (i0 + x->seq.shift);
    int64_t low = INT64_MIN / 4, high = INT64_MAX / 4;
    if (p->window_left >= 0) {
        low = -p->window_left - offset;
    }
    if (p->window_right >= 0) {
        high = p->window_right - offset;
    }
    if (agi_has(p, AG_CAUSAL)) {
        high = agi_min(high, -offset);
    }
    return (agi_band){low, high};
}

void REAL(agi_key_range)(const agi_head *x, int64_t i0, int64_t ni, int64_t *from, int64_t *to)
{
    agi_keys_of(REAL(agi_band_at)(x, i0, 0), 0, ni, x->seq.n_k, from, to);
}

int64_t REAL(agi_fewest_keys)(const agi_head *x, int64_t i0, int64_t ni)
{
    /* From query to query the number grows, then stays, then falls: the fewest are at one of the ends. */
    int64_t from[2], to[2];
    REAL(agi_key_range)(x, i0, 1, &from[0], &to[0]);
    REAL(agi_key_range)(x, i0 + ni - 1, 1, &from[1], &to[1]);
    return agi_max(0, agi_min(to[0] - from[0], to[1] - from[1]));
}

/* ---- Rows in ---- */

/* Channels c0 .. c0 + n - 1 of one row. */
static void load_row(const agi_kernels *k, agi_slice s, int64_t row, int64_t c0, int64_t n, real *to)
{
    const int64_t stride = s.t->strides[3], at = agi_row_offset(s, row) + c0 * stride;
    if (s.dtype == AG_BF16) {
        k->load_bf16(to, (const uint16_t *)s.t->data + at, stride, n);
    } else if (s.dtype == AG_F16) {
        k->load_f16(to, (const uint16_t *)s.t->data + at, stride, n);
    } else if (stride == 1) {
        memcpy(to, (const real *)s.t->data + at, (size_t)n * sizeof(real));
    } else {
        for (int64_t c = 0; c < n; c++) {
            to[c] = ((const real *)s.t->data)[at + c * stride];
        }
    }
}

agi_rows REAL(agi_convert_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                const uint8_t *skip, real *scratch)
{
    const int64_t D_pad = agi_round_up(s.D, k->lanes);
    for (int64_t r = 0; r < n; r++) {
        real *to = scratch + r * D_pad;
        memset(to + s.D, 0, (size_t)(D_pad - s.D) * sizeof(real));
        if (skip != NULL && skip[r]) {
            memset(to, 0, (size_t)s.D * sizeof(real));
        } else {
            load_row(k, s, first + r, 0, s.D, to);
        }
    }
    return (agi_rows){scratch, D_pad};
}

agi_rows REAL(agi_zero_masked_rows)(agi_rows rows, int64_t n, int64_t width, const uint8_t *masked_keys,
                                    real *zeroed)
{
    for (int64_t j = 0; j < n; j++) {
        if (masked_keys[j]) {
            memset(zeroed + j * width, 0, (size_t)width * sizeof(real));
        } else {
            memcpy(zeroed + j * width, rows.p + j * rows.ld, (size_t)width * sizeof(real));
        }
    }
    return (agi_rows){zeroed, width};
}

void REAL(agi_load_panel)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n, const uint8_t *skip,
                          real *out)
{
    enum { ROWS = 16, CHANNELS = 64 }; /* of the buffer that rows are converted in */
    real buffer[ROWS * CHANNELS];
    const bool all_rows = skip == NULL || memchr(skip, 1, (size_t)n) == NULL;
    if (s.dtype == REAL_DTYPE && s.t->strides[3] == 1 && all_rows) {
        k->transpose(out, (const real *)s.t->data + agi_row_offset(s, first), s.t->strides[2], n, s.D);
        return;
    }
    for (int64_t i = 0; i < n; i += ROWS) {
        const int64_t rows = agi_min(ROWS, n - i);
        for (int64_t c = 0; c < s.D; c += CHANNELS) {
            const int64_t width = agi_min(CHANNELS, s.D - c);
            for (int64_t r = 0; r < rows; r++) {
                if (skip != NULL && skip[i + r]) {
                    memset(buffer + r * CHANNELS, 0, (size_t)width * sizeof(real));
                } else {
                    load_row(k, s, first + i + r, c, width, buffer + r * CHANNELS);
                }
            }
            k->transpose(out + c * PANEL + i, buffer, CHANNELS, rows, width);
        }
    }
}

agi_rows REAL(agi_load_output_rows)(const agi_head *x, const ag_tensor *t, const ag_tensor *low, int64_t i,
                                    int64_t n, real *scratch, real *low_scratch)
{
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    const double factor = 1 / agi_low_scale(dtype);
    const agi_rows rows = agi_load_rows(x->k, agi_query_slice(x, t, dtype, x->Dv), i, n, NULL, scratch);
    if (low->data == NULL) {
        return rows;
    }
    /* A low half means 16 bits: both halves are converted, so the rows are in the scratch. */
    REAL(agi_convert_rows)(x->k, agi_query_slice(x, low, dtype, x->Dv), i, n, NULL, low_scratch);
    x->k->store_rows(scratch, rows.ld, low_scratch, rows.ld, n, x->Dv, &factor, 0, true);
    return rows;
}

/* ---- Scores ---- */

/* Dot products over more channels are summed in chunks of at most this many, to bound the float32 error. */
enum { SUM_CHANNELS = 64 };

void REAL(agi_score_product)(const agi_head *x, agi_rows keys, int64_t nj, int64_t D, const real *panel,
                             agi_rows queries, int64_t ni, real *T, int64_t ld, bool add)
{
    const agi_kernels *k = x->k;
    const int64_t W = agi_round_up(ni, k->lanes);
    if (x->short_q) {
        k->scores_by_dot(T, ld, nj, W, keys.p, keys.ld, queries.p, queries.ld, ni, agi_round_up(D, k->lanes),
                         add);
        return;
    }
    const int64_t sums = (D + SUM_CHANNELS - 1) / SUM_CHANNELS;
    for (int64_t n = 0; n < sums; n++) {
        const int64_t c = D * n / sums, end = D * (n + 1) / sums;
        k->product(nj, W, end - c, keys.p + c, keys.ld, 1, panel + c * PANEL, PANEL, T, ld, add || n > 0);
    }
}

/* ---- Rows out ---- */

/* One row, element by element: any dtype, any stride. */
static void store_row(agi_slice s, int64_t row, bool accumulate, double factor, const real *from)
{
    const int64_t at = agi_row_offset(s, row);
    for (int64_t c = 0; c < s.D; c++) {
        const int64_t place = at + c * s.t->strides[3];
        const double value = from == NULL ? 0 : factor * (double)from[c];
        agi_store(s.dtype, s.t->data, place,
                  accumulate ? agi_load(s.dtype, s.t->data, place) + value : value);
    }
}

typedef void (*round_row)(uint16_t *to, const real *from, int64_t n, double factor);

/* One row of a 16-bit dtype, any stride. The kernel `put` rounds in either case: store_row could differ in the last
 * bit for products that are nearly halfway between two values, and the bits must not depend on the stride. */
static void store_row16(round_row put, agi_slice s, int64_t row, double factor, const real *from)
{
    uint16_t *const to = (uint16_t *)s.t->data + agi_row_offset(s, row), buffer[64];
    const int64_t stride = s.t->strides[3], size = (int64_t)(sizeof buffer / sizeof buffer[0]);
    if (stride == 1) {
        put(to, from, s.D, factor);
        return;
    }
    for (int64_t c = 0; c < s.D; c++) {
        if (c % size == 0) {
            put(buffer, from + c, agi_min(size, s.D - c), factor);
        }
        to[c * stride] = buffer[c % size];
    }
}

void REAL(agi_scale_and_store_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                    bool accumulate, const double *factor, int64_t factor_stride,
                                    const real *rows, int64_t ld)
{
    const bool dense = s.t->strides[3] == 1 && rows != NULL;
    const bool narrow = rows != NULL && !accumulate && (s.dtype == AG_BF16 || s.dtype == AG_F16);
    const round_row put = s.dtype == AG_BF16 ? k->store_bf16 : k->store_f16;
    if (dense && factor_stride == 0 && n > 0 && ld == s.D &&
        s.t->strides[2] == s.D) { /* dense rows with one factor are one long row */
        s.D *= n;
        n = 1;
    }
    if (dense && s.dtype == REAL_DTYPE && s.t->data != NULL) {
        k->store_rows((real *)s.t->data + agi_row_offset(s, first), s.t->strides[2], rows, ld, n, s.D, factor,
                      factor_stride, accumulate);
        return;
    }
    for (int64_t r = 0; r < n && s.t->data != NULL; r++) {
        if (narrow) {
            store_row16(put, s, first + r, factor[r * factor_stride], rows + r * ld);
        } else {
            store_row(s, first + r, accumulate, factor[r * factor_stride],
                      rows == NULL ? NULL : rows + r * ld);
        }
    }
}

void REAL(agi_store_low_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                              const double *factor, const real *rows, int64_t ld)
{
    const round_row put = s.dtype == AG_BF16 ? k->store_low_bf16 : k->store_low_f16;
    for (int64_t r = 0; r < n && s.t->data != NULL; r++) {
        store_row16(put, s, first + r, factor[r], rows + r * ld);
    }
}
