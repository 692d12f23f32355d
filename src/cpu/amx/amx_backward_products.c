/* The products of a block: R, dZ and their tangents times the operands of the queries and keys are the
 * gradients dV, dK and dQ. Groups of keys and stripes of queries that the band masks as a whole are left out. */
#include "cpu/amx/amx_backward.h"

#include <string.h>

/* ---- dK and dV ---- */

/* Rows j .. j + n - 1 of dK += T B, or dV, over queries from .. to - 1, widened to whole tiles; T[key][query] is R^T
 * or dZ^T. Nothing is added to the rows after the last key: their T is zero. */
static void add_key_rows(const uint16_t *T, amx_operand B, int64_t j, int64_t n, int64_t from, int64_t to,
                         int64_t width, float *dK)
{
    const int64_t first = from / AMX_DEPTH, depth = (to + AMX_DEPTH - 1) / AMX_DEPTH - first;
    const amx_operand A = {T + j / AMX_ROWS * ROUNDED_STRIDE + first * AMX_AB, ROUNDED_STRIDE, AMX_AB,
                           AMX_DEPTH};
    B.p += first * B.stride_k;
    const amx_sums C = amx_sums_by_rows(dK + j * width, width);
    agi_amx_table.product((n + AMX_ROWS - 1) / AMX_ROWS, width / AMX_LANES, depth, &A, &B, &C, true);
}

/* If the band crosses the tile, group by group, without the queries that see nothing of a group. */
static void add_key_gradient(const agi_backward_scratch *s, const agi_head *x,
                             const agi_backward_key_block *keys, const uint16_t *T, amx_operand B,
                             int64_t width, float *dK)
{
    const agi_band band = REAL(agi_band_at)(x, s->tile.i0, keys->j0);
    const int64_t step = agi_inside(band, s->tile.ni, keys->nj) ? keys->nj : GROUP_KEYS;
    for (int64_t j = 0; j < keys->nj; j += step) {
        const int64_t n = agi_min(step, keys->nj - j);
        int64_t from, to;
        agi_queries_of(band, j, j + n, s->tile.ni, &from, &to);
        if (from < to) {
            add_key_rows(T, B, j, n, from, to, width, dK);
        }
    }
}

/* dV = R^T dO, dK = dZ^T Q; tdV = tR^T dO + R^T tdO, tdK = tdZ^T Q + dZ^T tQ */
void agi_amx_add_key_gradients(const agi_backward_scratch *s, const agi_head *x,
                               const agi_backward_key_block *keys)
{
    agi_amx_backward_scratch *const own = s->own;
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    if ((tangents ? a->tdv : a->dv).data != NULL) {
        add_key_gradient(s, x, keys, own->rounded[tangents ? TR_ : R_], own->queries_split16[DO_], x->Dv_pad,
                         keys->dV);
        if (tangents && a->td_o.data != NULL) {
            add_key_gradient(s, x, keys, own->rounded[R_], own->queries_split16[TDO_], x->Dv_pad, keys->dV);
        }
    }
    if ((tangents ? a->tdk : a->dk).data != NULL) {
        add_key_gradient(s, x, keys, own->rounded[tangents ? TDZ_ : DZ_], own->queries_split16[Q_], x->Dk_pad,
                         keys->dK);
        if (tangents && a->tq.data != NULL) {
            add_key_gradient(s, x, keys, own->rounded[DZ_], own->queries_split16[TQ_], x->Dk_pad, keys->dK);
        }
    }
}

/* ---- dQ ---- */

/* K transposed, or a copy with the keys that no query of the tile sees zero: their dZ is 0, but 0 times NaN
 * is NaN. */
static amx_operand visible_keys(const agi_backward_scratch *s, const agi_head *x, amx_operand K,
                                const agi_backward_key_block *keys)
{
    agi_amx_backward_scratch *const own = s->own;
    int64_t from, to;
    REAL(agi_key_range)(x, s->tile.i0, s->tile.ni, &from, &to);
    const int64_t n = agi_round_up(keys->nj, GROUP_KEYS);
    const int64_t end = keys->j0 + keys->nj; /* rows after the last key of the sequence are zeros already */
    const bool inside = keys->j0 >= from && end <= to && (keys->nj == n || end == x->seq.n_k);
    if (inside && (!x->has.pair_mask || memchr(s->masked_keys, 1, (size_t)keys->nj) == NULL)) {
        return K;
    }
    for (int64_t j = 0; j < n; j += GROUP_KEYS) {
        uint8_t visible[GROUP_KEYS];
        for (int64_t r = 0; r < GROUP_KEYS; r++) {
            const int64_t key = keys->j0 + j + r;
            visible[r] =
                key >= from && key < to && j + r < keys->nj && !(x->has.pair_mask && s->masked_keys[j + r]);
        }
        agi_amx_table.zero_masked_keys(own->zeroed + j * x->Dk_pad, K.p + j * x->Dk_pad, x->Dk_pad / AMX_ROWS,
                                       visible);
    }
    K.p = own->zeroed;
    return K;
}

/* If the band crosses the tile, stripe by stripe, without the keys that a stripe does not see. */
static void add_query_gradient(const agi_backward_scratch *s, const agi_head *x,
                               const agi_backward_key_block *keys, const uint16_t *T, amx_operand A)
{
    const agi_band band = REAL(agi_band_at)(x, s->tile.i0, keys->j0);
    const int64_t ni = s->tile.ni, step = agi_inside(band, ni, keys->nj) ? ni : STRIPE;
    const int64_t col_stride = agi_amx_col_stride(x->Dk);
    for (int64_t i = 0; i < ni; i += step) {
        const int64_t n = agi_min(step, ni - i);
        int64_t from, to;
        agi_keys_of(band, i, i + n, keys->nj, &from, &to);
        if (from < to) {
            const int64_t first = from / GROUP_KEYS, depth = (to + GROUP_KEYS - 1) / GROUP_KEYS - first;
            const int64_t group_size = TILE_ROWS * GROUP_KEYS;
            const amx_operand B = {T + first * group_size + i * GROUP_KEYS, AMX_AB, group_size, 0};
            const amx_operand K = {A.p + first * A.stride_k, A.stride_mn, A.stride_k, A.ld};
            const amx_sums C = amx_sums_by_columns(s->tile.dQ + i * col_stride, col_stride);
            agi_amx_table.product(x->Dk_pad / AMX_ROWS, (n + AMX_LANES - 1) / AMX_LANES, depth, &K, &B, &C,
                                  true);
        }
    }
}

/* dQ = dZ K; tdQ = tdZ K + dZ tK */
void agi_amx_add_query_gradients(const agi_backward_scratch *s, const agi_head *x,
                                 const agi_amx_backward_keys *operands, const agi_backward_key_block *keys)
{
    agi_amx_backward_scratch *const own = s->own;
    for (int t = 0; t < 2; t++) {
        if (operands->transposed[t].p != NULL) {
            const amx_operand K = visible_keys(s, x, operands->transposed[t], keys);
            add_query_gradient(s, x, keys, own->dz_vnni[t], K);
        }
    }
}
