/* A panel of queries on AMX: its operands, and its sums O^T and tO^T from the first key to the last. */
#include "cpu/amx/amx_rows.h"

#include <math.h>
#include <string.h>

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
    to->few_keys = REAL(agi_fewest_keys)(x, panel->i0, panel->ni) <= FEW_KEYS;
    to->empty = true;
    memset(to->excess, 0, PANEL * sizeof *to->excess);
    memset(to->t_excess, 0, tangents * PANEL * sizeof *to->t_excess);
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

/* O and tO are sums over rounded weights, l and a over exact ones. Divided by l, O would be off by one factor for the
 * whole row, which does not average out in the backward. So O is multiplied by l over the sum of the rounded weights,
 * and tO gets what makes (tO - a / l O) / l a mean over the rounded weights too. lse and mu are those of exact ones. */
static void correct_sums(const agi_head *x, const agi_amx_panel *own, const agi_row_panel *panel)
{
    float alpha[PANEL], delta[PANEL];
    for (int64_t i = 0; i < agi_amx_lanes(panel); i++) {
        const float l = panel->l[i], rounded = l + own->excess[i];
        alpha[i] = l > 0 ? l / rounded : 1;
        delta[i] = 0;
        if (x->call->map == AGI_JVP && l > 0) {
            delta[i] = panel->a[i] / l - (panel->a[i] + own->t_excess[i]) / rounded;
        }
    }
    agi_amx_rescale_panel(x, own, agi_amx_lanes(panel), alpha, delta);
}

void agi_amx_end_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel)
{
    const agi_amx_panel *from = &s->panel[panel->index];
    if (from->empty) {
        zero_sums(x, from);
    } else {
        correct_sums(x, from, panel);
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
