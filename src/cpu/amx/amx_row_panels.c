/* A panel of queries on AMX: its operands, and its sums O^T and tO^T from the first key to the last. */
#include "cpu/amx/amx_rows.h"

#include <math.h>
#include <string.h>

/* Min keys of a query for weights from the exp2 table: the errors of single weights average out. */
enum { MIN_LUT_KEYS = 512 };

/* If weights may come from the exp2 table: computes the norms of the queries and rounds m to a multiple of 1/256.
 * Else the norms are infinite, which tells the kernels not to use the table. */
static void begin_norms(const agi_amx_panel *to, const agi_head *x, const agi_row_panel *panel)
{
    int64_t first, end;
    REAL(agi_key_range)(x, panel->i0, 1, &first, &end);
    if (!agi_amx_may_use_exp2_lut(x) || end - first < MIN_LUT_KEYS) {
        for (int64_t i = 0; i < PANEL; i++) {
            to->norms[i] = INFINITY;
        }
        return;
    }
    const amx_operand *q = &to->queries;
    for (int64_t i = 0; i < agi_amx_lanes(panel); i += AMX_LANES) {
        agi_amx_table.column_norms(to->norms + i, q->p + i / AMX_LANES * q->stride_mn,
                                   agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH);
    }
    /* m is the sink's logit, or -infinity; floats from 2^15 on are multiples of 1/256 already and stay. */
    for (int64_t i = 0; i < PANEL; i++) {
        panel->m[i] = fabsf(panel->m[i]) < 0x1p15f ? roundf(256 * panel->m[i]) / 256 : panel->m[i];
    }
}

void agi_amx_begin_panel(agi_amx_row_scratch *s, const agi_head *x, const agi_row_panel *panel)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.dtype;
    const int64_t W = agi_amx_lanes(panel);
    const int64_t size16 = AMX_LANES * agi_round_up(x->Dk, AMX_DEPTH); /* elements of 16 queries */
    const bool tangents = x->call->map == AGI_JVP;
    const int64_t query_stride = tangents ? 2 * size16 : size16, offset = tangents ? size16 : 0;
    agi_amx_panel *to = &s->panel[panel->index];
    to->queries = agi_amx_query_columns(agi_query_slice(x, &a->q, dtype, x->Dk), panel->i0, panel->ni, W,
                                        NULL, to->Q + offset, query_stride, s->rows);
    to->empty = true;
    begin_norms(to, x, panel);
    if (tangents) {
        to->t_queries = (amx_operand){to->Q, query_stride, AMX_AB, 0};
    }
    if (tangents && a->tq.data != NULL) {
        agi_amx_query_columns(agi_query_slice(x, &a->tq, dtype, x->Dk), panel->i0, panel->ni, W, NULL, to->Q,
                              query_stride, s->rows);
    }
}

/* Zeroes the sums of a panel that saw no key. */
static void zero_sums(const agi_head *x, const agi_amx_panel *panel)
{
    const size_t size = (size_t)(PANEL * agi_amx_col_stride(x->Dv)) * sizeof(float);
    memset(panel->O, 0, size);
    if (x->call->map == AGI_JVP) {
        memset(panel->tO, 0, size);
    }
}

void agi_amx_end_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel)
{
    const agi_amx_panel *from = &s->panel[panel->index];
    const bool l_too_large = x->call->map == AGI_FORWARD && !x->has.dropout; /* see agi_amx_kernels.softmax */
    for (int64_t i = 0; i < PANEL && l_too_large; i++) {
        panel->l[i] *= (float)(1 / AMX_TRUNCATION_SCALE);
    }
    if (from->empty) {
        zero_sums(x, from);
    }
}

void agi_amx_transpose_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel)
{
    const agi_amx_panel *from = &s->panel[panel->index];
    const int64_t W = agi_amx_lanes(panel);
    agi_amx_table.transpose_sums(panel->O, x->Dv_pad, from->O, agi_amx_col_stride(x->Dv), x->Dv_pad, W);
    if (x->call->map == AGI_JVP) {
        agi_amx_table.transpose_sums(panel->tO, x->Dv_pad, from->tO, agi_amx_col_stride(x->Dv), x->Dv_pad, W);
    }
}

void agi_amx_rescale_panel(const agi_head *x, const agi_amx_panel *panel, int64_t lanes, const float *alpha,
                           const float *delta)
{
    const bool tangents = x->call->map == AGI_JVP;
    for (int64_t q = 0; q < lanes && !panel->empty; q += AMX_LANES) {
        for (int64_t c = 0; c < x->Dv_pad; c++) {
            float *O = panel->O + q * agi_amx_col_stride(x->Dv) + c * AMX_LANES,
                  *tO = panel->tO + (O - panel->O);
            for (int64_t i = 0; i < AMX_LANES && tangents; i++) {
                tO[i] = alpha[q + i] * (tO[i] + delta[q + i] * O[i]);
            }
            for (int64_t i = 0; i < AMX_LANES; i++) {
                O[i] *= alpha[q + i];
            }
        }
    }
}
