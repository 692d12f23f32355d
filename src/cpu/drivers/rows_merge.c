/* Splits of the keys, for forward and jvp with too few blocks of queries to keep all threads busy: where the states of
 * the splits are, and how two states become one. */
#include <math.h>

#include "cpu/drivers/rows.h"

/* How many numbers the state of a panel has: O, m, l, r, a, and tO. */
static int64_t panel_state(int64_t Dv_pad, agi_map map)
{
    return PANEL * (Dv_pad + 4 + (map == AGI_JVP ? Dv_pad : 0));
}

static int64_t panels_of(const ag_plan *plan, const agi_row_schedule *schedule)
{
    return agi_min(schedule->rows, agi_round_up(plan->p.q_len, PANEL)) / PANEL;
}

int64_t REAL(agi_row_states)(const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const agi_row_schedule *x = &cpu->rows;
    return x->kv_splits == 1
               ? 0
               : agi_saturated(x->items, x->kv_splits, panels_of(plan, x), panel_state(cpu->Dv_pad, map));
}

agi_row_panel REAL(agi_row_panel_of)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                                     int64_t i0, int64_t q, int64_t number)
{
    agi_row_panel panel = s->panel[q];
    panel.index = q;
    panel.i0 = i0 + q * PANEL;
    panel.ni = agi_min(PANEL, x->seq.n_q - panel.i0);
    panel.W = agi_round_up(panel.ni, x->k->lanes);
    if (w->cpu->rows.kv_splits > 1) {
        const int64_t panels = panels_of(x->call->plan, &w->cpu->rows);
        panel.O = w->states + (number * panels + q) * panel_state(x->Dv_pad, x->call->map);
        panel.m = panel.O + PANEL * x->Dv_pad;
        panel.l = panel.m + PANEL;
        panel.r = panel.l + PANEL;
        panel.a = panel.r + PANEL;
        panel.tO = panel.a + PANEL;
    }
    return panel;
}

/* ---- Merging ---- */

/* Rescales row i to another maximum m and another shift r: with r' its own shift, a += (r' - r) l and T' += (r' - r)
 * O'; then all sums are multiplied by 2^(its own maximum - m). */
static void scale_row(const agi_head *x, const agi_row_panel *panel, int64_t i, double m, double r)
{
    const double before = (double)panel->m[i], delta = (double)panel->r[i] - r;
    const double alpha = before == -INFINITY ? 0 : exp2(before - m);
    real *O = panel->O + i * x->Dv_pad;
    if (x->call->map == AGI_JVP) {
        real *tO = panel->tO + i * x->Dv_pad;
        agi_scale_row(x->k, tO, O, x->Dv, delta, true);
        agi_scale_row(x->k, tO, tO, x->Dv, alpha, false);
        panel->a[i] = (real)(alpha * ((double)panel->a[i] + delta * (double)panel->l[i]));
    }
    agi_scale_row(x->k, O, O, x->Dv, alpha, false);
    panel->l[i] = (real)(alpha * (double)panel->l[i]);
}

void REAL(agi_row_merge_row)(const agi_head *x, agi_row_panel *panel, const agi_row_panel *other, int64_t i)
{
    const bool higher = !(other->m[i] <= panel->m[i]); /* or NaN, which must stay NaN */
    const real m = higher ? other->m[i] : panel->m[i], r = higher ? other->r[i] : panel->r[i];
    scale_row(x, panel, i, (double)m, (double)r);
    scale_row(x, other, i, (double)m, (double)r);
    agi_scale_row(x->k, panel->O + i * x->Dv_pad, other->O + i * x->Dv_pad, x->Dv, 1, true);
    if (x->call->map == AGI_JVP) {
        agi_scale_row(x->k, panel->tO + i * x->Dv_pad, other->tO + i * x->Dv_pad, x->Dv, 1, true);
        panel->a[i] += other->a[i];
    }
    panel->l[i] += other->l[i];
    panel->m[i] = m;
    panel->r[i] = r;
}
