/* The products of weights with V, tV and sV, transposed: one product over all keys and tensors. Rows of masked keys may
 * be NaN, and 0 times NaN is NaN: groups with such keys are multiplied one by one, with a copy in which these keys are
 * zero. */
#include "cpu/amx/amx_given.h"

/* C = or += the weights of n groups times their values. */
static void add_groups(const agi_amx_given_scratch *s, const agi_head *x, agi_amx_given_stripe *stripe,
                       const uint16_t *V, const uint16_t *weights, int64_t n)
{
    const amx_operand A = {V, AMX_AB, x->Dv_pad * GROUP_KEYS, GROUP_KEYS},
                      B = {weights, AMX_AB, WEIGHT_SIZE, 0};
    const amx_sums C = amx_sums_by_columns(stripe->C, agi_amx_col_stride(x->Dv));
    agi_amx_table.product(x->Dv_pad / AMX_ROWS, STRIPE / AMX_LANES, n * s->form.n_values, &A, &B, &C,
                          !stripe->empty);
    stripe->empty = false;
}

/* The values of group g. */
static const uint16_t *values_of(const agi_amx_given_scratch *s, const agi_head *x, int64_t g)
{
    return s->V + g * s->form.n_values * x->Dv_pad * GROUP_KEYS;
}

static void add_masked_group(const agi_amx_given_scratch *s, const agi_head *x, agi_amx_given_stripe *stripe,
                             int64_t g, const uint8_t *visible, const uint16_t *weights)
{
    agi_amx_table.zero_masked_keys(s->zeroed, values_of(s, x, g), s->form.n_values * x->Dv_pad / AMX_ROWS,
                                   visible);
    add_groups(s, x, stripe, s->zeroed, weights, 1);
}

void agi_amx_given_flush(const agi_amx_given_scratch *s, const agi_head *x, agi_amx_given_stripe *stripe,
                         const agi_amx_given_pending *pending)
{
    const int64_t size = s->form.n_values * WEIGHT_SIZE;
    int64_t whole = 0;
    for (int64_t slot = 0; slot <= pending->n; slot++) {
        const bool partial = slot < pending->n && pending->partial >> slot & 1;
        if ((partial || slot == pending->n) && whole < slot) {
            add_groups(s, x, stripe, values_of(s, x, pending->first + whole), s->weights + whole * size,
                       slot - whole);
        }
        if (partial) {
            add_masked_group(s, x, stripe, pending->first + slot, s->visible + slot * GROUP_KEYS,
                             s->weights + slot * size);
            whole = slot + 1;
        }
    }
}

void agi_amx_given_add_rest(const agi_amx_given_scratch *s, const agi_head *x, agi_amx_given_stripe *stripe,
                            const agi_amx_given_group *group)
{
    add_masked_group(s, x, stripe, group->g, s->visible + group->slot * GROUP_KEYS, s->rest);
}
