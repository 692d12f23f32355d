/* O' += R V, T' += (tS - r) R V + R tV for the pending groups of a panel. V of masked keys may be NaN, and 0
 * times NaN is NaN: groups with such keys are multiplied one by one, with a copy of V where they
 * are zero. */
#include "cpu/amx/amx_rows.h"

/* C = V^T P^T, or C += V^T P^T, for n pending groups, starting with number `at`. V: the operand of the first
 * of them. */
static void add_values(const agi_head *x, const uint16_t *V, const amx_operand *like, const uint16_t *weights,
                       int64_t lanes, int64_t at, int64_t n, float *C, bool add)
{
    const amx_operand A = {V, like->stride_mn, like->stride_k, like->ld};
    const amx_operand B = {weights + at * GROUP_KEYS * PANEL, AMX_AB, GROUP_KEYS * PANEL, 0};
    const amx_sums sums = amx_sums_by_columns(C, agi_amx_col_stride(x->Dv));
    agi_amx_table.product(x->Dv_pad / AMX_ROWS, lanes / AMX_LANES, n, &A, &B, &sums, add);
}

/* O' += R V, T' += (tS - r) R V for n pending groups. V: the operand of the first of them. */
static void add_groups(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                       const amx_operand *like, const uint16_t *V, int64_t lanes, int64_t at, int64_t n)
{
    add_values(x, V, like, s->P, lanes, at, n, panel->O, !panel->empty);
    if (x->call->map == AGI_JVP) {
        add_values(x, V, like, s->tP, lanes, at, n, panel->tO, !panel->empty);
    }
    panel->empty = false;
}

/* O' += R V, T' += (tS - r) R V + R tV for n groups without masked keys. */
static void add_whole_groups(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                             const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_pending_groups *w,
                             int64_t at, int64_t n)
{
    const int64_t offset = (w->first + at) * keys->V.stride_k;
    add_groups(s, x, panel, &keys->V, keys->V.p + offset, lanes, at, n);
    if (keys->tV.p != NULL) {
        add_values(x, keys->tV.p + offset, &keys->V, s->P, lanes, at, n, panel->tO, true);
    }
}

/* The same for one group with masked keys. */
static void add_masked_group(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                             const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_pending_groups *w,
                             int64_t at)
{
    const int64_t tiles = x->Dv_pad / AMX_ROWS, offset = (w->first + at) * keys->V.stride_k;
    const uint8_t *const visible = s->visible + at * GROUP_KEYS;
    agi_amx_table.zero_masked_keys(s->zeroed, keys->V.p + offset, tiles, visible);
    add_groups(s, x, panel, &keys->V, s->zeroed, lanes, at, 1);
    if (keys->tV.p != NULL) {
        agi_amx_table.zero_masked_keys(s->zeroed, keys->tV.p + offset, tiles, visible);
        add_values(x, s->zeroed, &keys->V, s->P, lanes, at, 1, panel->tO, true);
    }
}

void agi_amx_flush_pending(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                           const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_pending_groups *w)
{
    int64_t whole = 0;
    for (int64_t at = 0; at < w->n && w->partial != 0; at++) {
        if (w->partial >> at & 1) {
            if (whole < at) {
                add_whole_groups(s, x, panel, keys, lanes, w, whole, at - whole);
            }
            add_masked_group(s, x, panel, keys, lanes, w, at);
            whole = at + 1;
        }
    }
    if (whole < w->n) {
        add_whole_groups(s, x, panel, keys, lanes, w, whole, w->n - whole);
    }
}
