/* The row ops on vectors: loads panels of queries and blocks of keys, and runs each panel against each block. */
#include <string.h>

#include "cpu/vec/vec.h"

static void lay_out(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const int64_t tangents = map == AGI_JVP, Dk = plan->p.dim_qk, panels = cpu->rows.rows / PANEL;
    agi_vec_row_scratch v = {.K = NULL};
    for (int64_t n = 0; n < panels; n++) {
        v.panel[n].QT = agi_take_reals(arena, Dk * PANEL);
        v.panel[n].tQT = agi_take_reals(arena, tangents * Dk * PANEL);
    }
    v.T = agi_take_reals(arena, ROW_KEYS * ROW_LD);
    v.U = agi_take_reals(arena, tangents * ROW_KEYS * ROW_LD);
    v.K = agi_take_reals(arena, ROW_KEYS * cpu->Dk_pad);
    v.V = agi_take_reals(arena, ROW_KEYS * cpu->Dv_pad);
    v.tK = agi_take_reals(arena, tangents * ROW_KEYS * cpu->Dk_pad);
    v.tV = agi_take_reals(arena, tangents * ROW_KEYS * cpu->Dv_pad);
    v.zeroed = agi_take_reals(arena, ROW_KEYS * cpu->Dv_pad);
    s->own = agi_take_copy(arena, &v, sizeof v);
}

/* Loads Q or tQ: its rows if there are few queries, else the transposed panel. */
static agi_rows load_queries(const agi_row_panel *panel, const agi_head *x, const ag_tensor *t, real *QT)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.dtype, x->Dk);
    if (x->short_q) {
        return agi_load_rows(x->k, slice, panel->i0, panel->ni, NULL, QT);
    }
    REAL(agi_load_panel)(x->k, slice, panel->i0, panel->ni, NULL, QT);
    return (agi_rows){NULL, 0};
}

static void begin(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, const agi_row_panel *panels,
                  int64_t n_panels, int64_t item)
{
    const ag_args *a = &x->call->a;
    agi_vec_row_scratch *v = s->own;
    (void)w, (void)item;
    for (int64_t n = 0; n < n_panels; n++) {
        const agi_row_panel *panel = &panels[n];
        const size_t size = (size_t)(panel->ni * x->Dv_pad) * sizeof(real);
        v->panel[n].Q = load_queries(panel, x, &a->q, v->panel[n].QT);
        memset(panel->O, 0, size);
        if (x->call->map == AGI_JVP) {
            memset(panel->tO, 0, size);
            if (a->tq.data != NULL) {
                v->panel[n].tQ = load_queries(panel, x, &a->tq, v->panel[n].tQT);
            }
        }
    }
}

static agi_row_key_block load_keys(agi_vec_row_scratch *v, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    agi_row_key_block keys = {.j0 = j0, .nj = nj};
    keys.K = agi_load_keys(x, &a->k, x->Dk, j0, nj, v->K);
    keys.rows_ahead = keys.K.p == v->K ? nj : x->seq.n_k - j0;
    keys.V = agi_load_keys(x, &a->v, x->Dv, j0, nj, v->V);
    if (x->call->map == AGI_JVP) {
        keys.tK = agi_load_keys(x, &a->tk, x->Dk, j0, nj, v->tK);
        keys.tV = agi_load_keys(x, &a->tv, x->Dv, j0, nj, v->tV);
    }
    return keys;
}

static void block(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels, int64_t j0,
                  int64_t nj, int64_t end)
{
    const agi_row_key_block keys = load_keys(s->own, x, j0, nj);
    (void)end;
    for (int64_t n = 0; n < n_panels; n++) {
        if (x->call->map == AGI_JVP) {
            REAL(agi_jvp_panel)(s, x, &panels[n], &keys);
        } else {
            REAL(agi_forward_panel)(s, x, &panels[n], &keys);
        }
    }
}

const agi_row_ops REAL(agi_vec_row_ops) = {
    .max_queries = ROW_BLOCK,
    .min_blocks = 32,
    .block_keys = ROW_KEYS,
    .key_step = 1,
    .lay_out = lay_out,
    .begin = begin,
    .block = block,
    .store = REAL(agi_row_store_panel),
    .small_call = REAL(agi_small_call),
    .small_head = REAL(agi_small_forward),
};
