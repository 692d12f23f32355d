/* The operands of the backward ops on AMX: the keys of a span, loaded when a tile first needs them, and the
 * queries of a tile. */
#include "cpu/amx/amx_backward.h"

#include <string.h>

/* ---- The keys of a span ---- */

/* tK or tV; an absent tensor in vjp. */
static const ag_tensor *key_tangent(const agi_head *x, int t)
{
    static const ag_tensor none = {NULL, {0}};
    const ag_args *a = &x->call->a;
    return x->call->map != AGI_VJP_JVP ? &none : t == K_ ? &a->tk : &a->tv;
}

/* Does dQ need K (t = 0) or tK (t = 1) transposed? */
static bool needs_transposed(const agi_head *x, int t)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    return (tangents ? a->tdq : a->dq).data != NULL && (t == 0 || key_tangent(x, K_)->data != NULL);
}

/* Makes the operands of keys first .. end - 1 of the span, whole groups. */
static void load_keys(const agi_amx_backward_scratch *s, const agi_head *x, int64_t first, int64_t end)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const by_rows[2] = {&a->k, &a->v}, *const transposed[2] = {&a->k, &a->tk};
    const int64_t j0 = s->span0 + first, n = agi_max(0, agi_min(s->span0 + end, x->seq.n_k) - j0);
    for (int t = 0; t < 2 && first < end; t++) {
        const int64_t D = t == K_ ? x->Dk : x->Dv;
        const int64_t width = agi_round_up(D, AMX_DEPTH) * (key_tangent(x, t)->data == NULL ? 1 : 2);
        agi_amx_copy_keys(x, by_rows[t], key_tangent(x, t), D, j0, n, s->key_rows[t] + first * width);
        if (needs_transposed(x, t)) {
            agi_amx_key_columns(x, transposed[t], x->Dk, j0, n, s->transposed[t] + first * x->Dk_pad,
                                s->rows);
        }
    }
}

void agi_amx_require_keys(agi_amx_backward_scratch *s, const agi_head *x, int64_t from, int64_t to)
{
    const int64_t first = (from - s->span0) / GROUP_KEYS * GROUP_KEYS,
                  end = agi_round_up(to - s->span0, GROUP_KEYS);
    if (s->loaded_from == s->loaded_to) {
        s->loaded_from = s->loaded_to = first;
    }
    load_keys(s, x, first, s->loaded_from);
    load_keys(s, x, s->loaded_to, end);
    s->loaded_from = agi_min(first, s->loaded_from);
    s->loaded_to = agi_max(end, s->loaded_to);
}

agi_amx_backward_keys agi_amx_keys_of_block(const agi_amx_backward_scratch *s, const agi_head *x, int64_t j0)
{
    const int64_t first = j0 - s->span0;
    agi_amx_backward_keys keys = {.rows = {{0}}};
    for (int t = 0; t < 2; t++) {
        const int64_t D = t == K_ ? x->Dk : x->Dv;
        const int64_t width = agi_round_up(D, AMX_DEPTH) * (key_tangent(x, t)->data == NULL ? 1 : 2);
        keys.rows[t] = (amx_operand){s->key_rows[t] + first * width, AMX_ROWS * width, AMX_DEPTH, width};
        if (needs_transposed(x, t)) {
            keys.transposed[t] = (amx_operand){s->transposed[t] + first * x->Dk_pad, AMX_AB,
                                               x->Dk_pad * GROUP_KEYS, GROUP_KEYS};
        }
    }
    return keys;
}

/* ---- The queries of a tile ---- */

/* Makes both B operands of Q, dO, tQ or tdO. In vjp_jvp the VNNI tiles of 16 queries of tQ are followed by those of
 * the same queries of Q, so that [tQ | Q] is one operand; likewise tdO and dO. */
static void load_queries(agi_amx_backward_scratch *s, const agi_head *x, const agi_query_tile *t, int which,
                         const ag_tensor *from, ag_dtype dtype, int64_t D)
{
    const int64_t rows = agi_round_up(t->ni, AMX_DEPTH), size16 = AMX_LANES * agi_round_up(D, AMX_DEPTH);
    const bool tangents = x->call->map == AGI_VJP_JVP, tangent = which >= TQ_;
    const int64_t query_stride = tangents ? 2 * size16 : size16, offset = tangents && !tangent ? size16 : 0;
    const uint8_t *const skip = memchr(t->sees_no_key, 1, (size_t)t->ni) == NULL ? NULL : t->sees_no_key;
    const agi_slice slice = agi_query_slice(x, from, dtype, D);
    s->queries_vnni[which] = (amx_operand){s->vnni_tiles[which % 2], query_stride, AMX_AB, 0};
    if (from->data != NULL) {
        s->queries_vnni[which] = agi_amx_query_columns(
            slice, t->i0, t->ni, rows, skip, s->vnni_tiles[which % 2] + offset, query_stride, s->rows);
        s->queries_split16[which] =
            agi_amx_query_rows(slice, t->i0, t->ni, rows, skip, s->split16_tiles[which], s->rows);
    }
}

void agi_amx_load_queries(agi_backward_scratch *s, const agi_head *x)
{
    agi_amx_backward_scratch *const own = s->own;
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    load_queries(own, x, &s->tile, Q_, &a->q, p->dtype, x->Dk);
    load_queries(own, x, &s->tile, DO_, &a->d_o, p->out_dtype, x->Dv);
    if (x->call->map == AGI_VJP_JVP) {
        load_queries(own, x, &s->tile, TQ_, &a->tq, p->dtype, x->Dk);
        load_queries(own, x, &s->tile, TDO_, &a->td_o, p->out_dtype, x->Dv);
    }
}
