/* What rounding to bfloat16 took from R and dZ of a patch, and their tangents, times the operands of queries and keys:
 * the second part of the products of amx_backward_products.c, for queries that see few keys. */
#include "cpu/amx/amx_backward.h"

bool agi_amx_sees_few_keys(const agi_backward_scratch *s, const agi_head *x, const agi_patch *patch)
{
    return REAL(agi_fewest_keys)(x, s->tile.i0 + patch->i0, patch->ni) <= FEW_KEYS;
}

/* A patch, and where its products go. */
typedef struct {
    const agi_backward_scratch *s;
    const agi_head *x;
    const agi_backward_key_block *keys;
    const agi_patch *patch;
    int64_t key; /* the first key of its group, counted from the block's */
} rest_of_patch;

/* dK += T B, or dV: T[key][query] is the rest of R^T or dZ^T, B is an operand of the tile's queries. */
static void add_to_keys(const rest_of_patch *p, const float *T, amx_operand B, int64_t width, float *dK)
{
    const agi_amx_backward_scratch *const own = p->s->own;
    const int64_t n = agi_min(GROUP_KEYS, p->keys->nj - p->key);
    const amx_operand A = {own->rest_rows, AMX_AB, AMX_AB, AMX_DEPTH};
    const amx_sums C = amx_sums_by_rows(dK + p->key * width, width);
    agi_amx_table.round_to_rows(own->rest_rows, AMX_AB, T, STRIPE);
    B.p += p->patch->i0 / AMX_DEPTH * B.stride_k;
    agi_amx_table.product((n + AMX_ROWS - 1) / AMX_ROWS, width / AMX_LANES, 1, &A, &B, &C, true);
}

/* Which keys of the group the patch sees. The others may be NaN: 0 times NaN is NaN. */
static void find_visible_keys(const rest_of_patch *p, uint8_t *visible)
{
    for (int64_t r = 0; r < GROUP_KEYS; r++) {
        const int64_t j = p->key + r;
        visible[r] = j >= p->patch->from && j < p->patch->from + p->patch->nj &&
                     !(p->x->has.pair_mask && p->s->panel_masked_keys[j]);
    }
}

/* dQ^T += K^T T; T is the rest of dZ^T. Nothing if K is absent. */
static void add_to_queries(const rest_of_patch *p, const float *T, amx_operand K)
{
    const agi_amx_backward_scratch *const own = p->s->own;
    const int64_t col_stride = agi_amx_col_stride(p->x->Dk), tiles = p->x->Dk_pad / AMX_ROWS;
    uint8_t visible[GROUP_KEYS];
    if (K.p == NULL) {
        return;
    }
    find_visible_keys(p, visible);
    agi_amx_table.zero_masked_keys(own->zeroed, K.p + p->key / GROUP_KEYS * K.stride_k, tiles, visible);
    agi_amx_table.round_to_vnni(own->rest_vnni, T, STRIPE);
    const amx_operand A = {own->zeroed, K.stride_mn, K.stride_k, K.ld};
    const amx_operand B = {own->rest_vnni, AMX_AB, AMX_AB, 0};
    const amx_sums C = amx_sums_by_columns(p->s->tile.dQ + p->patch->i0 * col_stride, col_stride);
    agi_amx_table.product(tiles, (p->patch->ni + AMX_LANES - 1) / AMX_LANES, 1, &A, &B, &C, true);
}

/* dV += R^T dO, dK += dZ^T Q, dQ += dZ K */
static void add_vjp(const rest_of_patch *p, const agi_amx_backward_keys *operands, const agi_score_tiles *t)
{
    const agi_amx_backward_scratch *const own = p->s->own;
    const ag_args *a = &p->x->call->a;
    if (a->dv.data != NULL) {
        add_to_keys(p, t->P, own->queries_split16[DO_], p->x->Dv_pad, p->keys->dV);
    }
    if (a->dk.data != NULL) {
        add_to_keys(p, t->dS, own->queries_split16[Q_], p->x->Dk_pad, p->keys->dK);
    }
    add_to_queries(p, t->dS, operands->transposed[0]);
}

/* tdV += tR^T dO + R^T tdO, tdK += tdZ^T Q + dZ^T tQ, tdQ += tdZ K + dZ tK */
static void add_vjp_jvp(const rest_of_patch *p, const agi_amx_backward_keys *operands,
                        const agi_score_tiles *t)
{
    const agi_amx_backward_scratch *const own = p->s->own;
    const ag_args *a = &p->x->call->a;
    if (a->tdv.data != NULL) {
        add_to_keys(p, t->U, own->queries_split16[DO_], p->x->Dv_pad, p->keys->dV);
    }
    if (a->tdv.data != NULL && a->td_o.data != NULL) {
        add_to_keys(p, t->P, own->queries_split16[TDO_], p->x->Dv_pad, p->keys->dV);
    }
    if (a->tdk.data != NULL) {
        add_to_keys(p, t->tdS, own->queries_split16[Q_], p->x->Dk_pad, p->keys->dK);
    }
    if (a->tdk.data != NULL && a->tq.data != NULL) {
        add_to_keys(p, t->dS, own->queries_split16[TQ_], p->x->Dk_pad, p->keys->dK);
    }
    add_to_queries(p, t->tdS, operands->transposed[0]);
    add_to_queries(p, t->dS, operands->transposed[1]);
}

void agi_amx_add_rest_of_patch(agi_backward_scratch *s, const agi_head *x, const agi_backward_key_block *keys,
                               const agi_amx_backward_keys *operands, const agi_patch *patch,
                               const agi_score_tiles *t)
{
    const rest_of_patch p = {s, x, keys, patch, patch->from / GROUP_KEYS * GROUP_KEYS};
    const bool tangents = x->call->map == AGI_VJP_JVP;
    float *const tiles[4] = {t->P, t->dS, t->U, t->tdS};
    for (int n = 0; n < (tangents ? 4 : 2); n++) {
        agi_amx_table.keep_rest(tiles[n], STRIPE);
    }
    if (tangents) {
        add_vjp_jvp(&p, operands, t);
    } else {
        add_vjp(&p, operands, t);
    }
}
