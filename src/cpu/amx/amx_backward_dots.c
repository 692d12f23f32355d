/* D = rowsum(dO o O) and tD = rowsum(tO o dO + O o tdO) of the backward ops on AMX, from rows in bfloat16 or in
 * float32.  In float32, O and tO keep their digits, but dO and tdO are rounded to bfloat16, as in the product dP = dO
 * V^T. D is the mean of dP over the weights of a row: with another dO in it, dP - D would be off by one number for the
 * whole row, which does not average out in dQ. */
#include "cpu/amx/amx_backward.h"

static agi_slice output_slice(const agi_head *x, const ag_tensor *t)
{
    return agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv);
}

/* Rows i .. i + n - 1 of dO, O, tdO, tO or a low half in bfloat16: in place if their channels are adjacent, else copied
 * to the scratch. */
static agi_rows16 narrow_rows(const agi_head *x, const ag_tensor *t, int64_t i, int64_t n, uint16_t *scratch)
{
    const agi_slice slice = output_slice(x, t);
    if (t->strides[3] == 1) {
        return (agi_rows16){(const uint16_t *)t->data + agi_row_offset(slice, i), t->strides[2]};
    }
    return agi_load_rows16(slice, i, n, n, x->Dv, NULL, scratch);
}

static void add_narrow_products(const agi_amx_backward_scratch *own, const agi_head *x, const ag_tensor *dO,
                                const ag_tensor *O, int64_t i, int64_t n, double *sums)
{
    const agi_rows16 a = narrow_rows(x, dO, i, n, own->rows);
    const agi_rows16 b = narrow_rows(x, O, i, n, own->rows + n * x->Dv);
    float products[ROW_CHUNK];
    agi_amx_table.dots(products, a.p, a.ld, b.p, b.ld, n, x->Dv);
    for (int64_t r = 0; r < n; r++) {
        sums[r] += (double)products[r];
    }
}

/* The same in float32. */
static void add_wide_products(const agi_amx_backward_scratch *own, const agi_head *x, const ag_tensor *dO,
                              const ag_tensor *O, int64_t i, int64_t n, double *sums)
{
    const agi_rows16 rounded = agi_load_rows16(output_slice(x, dO), i, n, n, x->Dv, NULL, own->rows);
    const agi_rows b = agi_load_rows(x->k, output_slice(x, O), i, n, NULL, own->wide_rows[1]);
    double products[ROW_CHUNK];
    for (int64_t r = 0; r < n; r++) {
        x->k->load_bf16(own->wide_rows[0] + r * x->Dv_pad, rounded.p + r * rounded.ld, 1, x->Dv);
    }
    x->k->dots(products, own->wide_rows[0], x->Dv_pad, b.p, b.ld, n, x->Dv);
    for (int64_t r = 0; r < n; r++) {
        sums[r] += products[r];
    }
}

/* sums[r] += rowsum(dO o O) of rows i .. i + n - 1; dO may be tdO, and O may be tO or a low half. Nothing if one of
 * them is absent. */
static void add_row_products(const agi_backward_scratch *s, const agi_head *x, const ag_tensor *dO,
                             const ag_tensor *O, int64_t i, int64_t n, double *sums)
{
    if (dO->data == NULL || O->data == NULL) {
        return;
    }
    if (x->call->plan->p.out_dtype == AG_F32) {
        add_wide_products(s->own, x, dO, O, i, n, sums);
    } else {
        add_narrow_products(s->own, x, dO, O, i, n, sums);
    }
}

void agi_amx_row_dots(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                      double *tD)
{
    const ag_args *a = &x->call->a;
    const int64_t i = s->tile.i0 + r;
    add_row_products(s, x, &a->d_o, &a->o, i, n, D);
    add_row_products(s, x, &a->d_o, &a->o_low, i, n, D);
    if (x->call->map == AGI_VJP_JVP) {
        add_row_products(s, x, &a->d_o, &a->to, i, n, tD);
        add_row_products(s, x, &a->d_o, &a->to_low, i, n, tD);
        add_row_products(s, x, &a->td_o, &a->o, i, n, tD);
        add_row_products(s, x, &a->td_o, &a->o_low, i, n, tD);
    }
}
