/* O += R V and tO += (tS - r) R V + R tV for the pending groups of a panel; R: the weights after dropout. V of masked
 * keys may be NaN, and 0 times NaN is NaN: groups with such keys are multiplied one by one, with a copy of V in
 * which these keys are zero. */
#include "cpu/amx/amx_rows.h"

/* C = V^T R^T, or C += V^T R^T, for the n pending groups from `slot` on. V: the tiles of the first of them, with the
 * strides of the operand `strides`. */
static void add_values(const agi_head *x, const uint16_t *V, const amx_operand *strides,
                       const uint16_t *weights, int64_t lanes, int64_t slot, int64_t n, float *C, bool add)
{
    const amx_operand A = {V, strides->stride_mn, strides->stride_k, strides->ld};
    const amx_operand B = {weights + slot * GROUP_KEYS * PANEL, AMX_AB, GROUP_KEYS * PANEL, 0};
    const amx_sums sums = amx_sums_by_columns(C, agi_amx_col_stride(x->Dv));
    agi_amx_table.product(x->Dv_pad / AMX_ROWS, lanes / AMX_LANES, n, &A, &B, &sums, add);
}

/* O += R V and tO += (tS - r) R V, likewise, for weights P and their tangents tP. */
static void add_groups(const agi_head *x, agi_amx_panel *panel, const amx_operand *strides, const uint16_t *V,
                       const uint16_t *P, const uint16_t *tP, int64_t lanes, int64_t slot, int64_t n)
{
    add_values(x, V, strides, P, lanes, slot, n, panel->O, !panel->empty);
    if (x->call->map == AGI_JVP) {
        add_values(x, V, strides, tP, lanes, slot, n, panel->tO, !panel->empty);
    }
    panel->empty = false;
}

/* O += R V and tO += (tS - r) R V + R tV for n groups without masked keys. */
static void add_whole_groups(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                             const agi_amx_row_keys *keys, int64_t lanes,
                             const agi_amx_pending_groups *pending, int64_t slot, int64_t n)
{
    const int64_t offset = (pending->first + slot) * keys->V.stride_k;
    add_groups(x, panel, &keys->V, keys->V.p + offset, s->P, s->tP, lanes, slot, n);
    if (keys->tV.p != NULL) {
        add_values(x, keys->tV.p + offset, &keys->V, s->P, lanes, slot, n, panel->tO, true);
    }
}

/* The same for group g of the block, whose weights are in slot `slot` of P and tP, with masked keys. */
static void add_masked_group(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                             const agi_amx_row_keys *keys, int64_t lanes, int64_t g, const uint8_t *visible,
                             const uint16_t *P, const uint16_t *tP, int64_t slot)
{
    const int64_t tiles = x->Dv_pad / AMX_ROWS, offset = g * keys->V.stride_k;
    agi_amx_table.zero_masked_keys(s->zeroed, keys->V.p + offset, tiles, visible);
    add_groups(x, panel, &keys->V, s->zeroed, P, tP, lanes, slot, 1);
    if (keys->tV.p != NULL) {
        agi_amx_table.zero_masked_keys(s->zeroed, keys->tV.p + offset, tiles, visible);
        add_values(x, s->zeroed, &keys->V, P, lanes, slot, 1, panel->tO, true);
    }
}

void agi_amx_flush_pending(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                           const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_pending_groups *pending)
{
    int64_t whole = 0;
    for (int64_t slot = 0; slot < pending->n && pending->partial != 0; slot++) {
        if (pending->partial >> slot & 1) {
            if (whole < slot) {
                add_whole_groups(s, x, panel, keys, lanes, pending, whole, slot - whole);
            }
            add_masked_group(s, x, panel, keys, lanes, pending->first + slot, s->visible + slot * GROUP_KEYS,
                             s->P, s->tP, slot);
            whole = slot + 1;
        }
    }
    if (whole < pending->n) {
        add_whole_groups(s, x, panel, keys, lanes, pending, whole, pending->n - whole);
    }
}

void agi_amx_add_rest(const agi_amx_row_scratch *s, const agi_head *x, agi_amx_panel *panel,
                      const agi_amx_row_keys *keys, int64_t lanes, const agi_amx_key_group *group)
{
    agi_amx_round_rest(s->P_rest, group->T, lanes, panel->excess);
    if (x->call->map == AGI_JVP) {
        agi_amx_round_rest(s->tP_rest, group->U, lanes, panel->t_excess);
    }
    add_masked_group(s, x, panel, keys, lanes, group->g, s->visible + group->slot * GROUP_KEYS, s->P_rest,
                     s->tP_rest, 0);
}
