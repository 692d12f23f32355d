/* Splits of the keys, for forward and jvp with too few blocks of queries to keep all threads busy: where the states of
 * the splits are, and how two states become one. */
#include <math.h>

#include "cpu/drivers/rows.h"

/* How many reals the state of a panel has: O, m, l, r, a, and tO. */
static int64_t panel_state_size(int64_t Dv_pad, agi_map map)
{
    return PANEL * (Dv_pad + 4 + (map == AGI_JVP ? Dv_pad : 0));
}

int64_t REAL(agi_row_state_size)(const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    return agi_saturating_product(REAL(agi_split_panels)(plan, &cpu->rows),
                                  panel_state_size(cpu->Dv_pad, map), 1, 1);
}

agi_row_panel REAL(agi_row_panel_of)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                                     int64_t i0, int64_t index, int64_t item)
{
    agi_row_panel panel = s->panel[index];
    panel.index = index;
    panel.i0 = i0 + index * PANEL;
    panel.ni = agi_min(PANEL, x->seq.n_q - panel.i0);
    panel.W = agi_round_up(panel.ni, x->k->lanes);
    if (REAL(agi_key_splits_of)(x, &w->cpu->rows).n > 1) {
        const int64_t state = REAL(agi_split_panel)(x->call->plan, &w->cpu->rows, item, index);
        panel.O = w->states + state * panel_state_size(x->Dv_pad, x->call->map);
        panel.m = panel.O + PANEL * x->Dv_pad;
        panel.l = panel.m + PANEL;
        panel.r = panel.l + PANEL;
        panel.a = panel.r + PANEL;
        panel.tO = panel.a + PANEL;
    }
    return panel;
}

/* ---- Merging ---- */

/* Rescales row i to another maximum m and another shift r: a += (r_old - r) l and tO += (r_old - r) O; then all sums
 * are multiplied by 2^(m_old - m). */
static void rescale_row(const agi_head *x, const agi_row_panel *panel, int64_t i, double m, double r)
{
    const double m_old = (double)panel->m[i], delta = (double)panel->r[i] - r;
    const double alpha = m_old == -INFINITY ? 0 : exp2(m_old - m);
    real *O = panel->O + i * x->Dv_pad;
    if (x->call->map == AGI_JVP) {
        real *tO = panel->tO + i * x->Dv_pad;
        agi_add_scaled_row(x->k, tO, O, x->Dv, delta);
        agi_scale_row(x->k, tO, x->Dv, alpha);
        panel->a[i] = (real)(alpha * ((double)panel->a[i] + delta * (double)panel->l[i]));
    }
    agi_scale_row(x->k, O, x->Dv, alpha);
    panel->l[i] = (real)(alpha * (double)panel->l[i]);
}

void REAL(agi_row_merge_row)(const agi_head *x, agi_row_panel *panel, const agi_row_panel *other, int64_t i)
{
    const bool higher = !(other->m[i] <= panel->m[i]); /* or NaN, which must stay NaN */
    const real m = higher ? other->m[i] : panel->m[i], r = higher ? other->r[i] : panel->r[i];
    rescale_row(x, panel, i, (double)m, (double)r);
    rescale_row(x, other, i, (double)m, (double)r);
    agi_add_scaled_row(x->k, panel->O + i * x->Dv_pad, other->O + i * x->Dv_pad, x->Dv, 1);
    if (x->call->map == AGI_JVP) {
        agi_add_scaled_row(x->k, panel->tO + i * x->Dv_pad, other->tO + i * x->Dv_pad, x->Dv, 1);
        panel->a[i] += other->a[i];
    }
    panel->l[i] += other->l[i];
    panel->m[i] = m;
    panel->r[i] = r;
}
