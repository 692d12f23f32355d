/* Part of amx_kernels.c: the stages of jvp_jvp, and of jvp that is given lse, from scores to weights in VNNI. */
#include "cpu/amx/kernels/amx_bf16.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/kernels.h"

/* sum += the exact sums, excess += the rounded sums minus these. */
INLINE void add_stripe_sums(const weight_sums *part, float *sum, float *excess)
{
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        const int64_t at = v * LANES;
        v_store(sum + at, v_add(v_load(sum + at), part[v].exact));
        v_store(excess + at, v_add(v_load(excess + at), v_sub(part[v].rounded, part[v].exact)));
    }
}

/* ---- jvp ---- */

typedef struct {
    const float *T, *U;
    uint16_t *vnni, *t_vnni;
    weight_sums sum[ROW_VECTORS], tangent[ROW_VECTORS];
    vec c, scale, L[ROW_VECTORS], r[ROW_VECTORS];
} given_stage;

INLINE void two_keys_given(void *stage)
{
    given_stage *const s = stage;
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        const int64_t at = v * LANES, to = v * AMX_AB;
        weight_tangents(s->vnni + to, s->t_vnni + to, s->T + at, s->U + at, s->c, s->scale, s->L[v], s->r[v],
                        &s->sum[v], &s->tangent[v]);
    }
    s->T += 2 * PANEL;
    s->U += 2 * PANEL;
    s->vnni += 2 * LANES;
    s->t_vnni += 2 * LANES;
}

static void given_tangents(uint16_t *const vnni[2], const float *const scores[2], float c, float scale,
                           const float *L, const float *r, float *const sums[2], float *const excess[2],
                           const amx_queue *next)
{
    given_stage s = {.T = scores[0],
                     .U = scores[1],
                     .vnni = vnni[1],
                     .t_vnni = vnni[0],
                     .c = v_set1(c),
                     .scale = v_set1(scale)};
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        s.L[v] = v_load(L + v * LANES);
        s.r[v] = v_load(r + v * LANES);
        s.sum[v] = s.tangent[v] = (weight_sums){v_set1(0), v_set1(0)};
    }
    interleave(next, two_keys_given, &s);
    add_stripe_sums(s.tangent, sums[0], excess[0]);
    add_stripe_sums(s.sum, sums[1], excess[1]);
}

/* ---- jvp_jvp ---- */

typedef struct {
    const float *T, *U, *Y, *Z;
    uint16_t *w_vnni, *s_vnni, *t_vnni;
    weight_sums sum[ROW_VECTORS];
    vec c, scale, z_scale, L[ROW_VECTORS], mu[ROW_VECTORS], smu[ROW_VECTORS];
} second_stage;

/* Two keys of one vector of lanes. one_direction: tP + sP instead of both. */
INLINE void second_weights(second_stage *s, int v, const bool one_direction)
{
    const int64_t to = v * AMX_AB;
    vec w[2], tp[2], sp[2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        const int64_t at = j * PANEL + v * LANES;
        const vec p = exp2_for_bf16(v_fms(v_load(s->T + at), s->c, s->L[v]));
        const vec u = v_fms(v_load(s->U + at), s->scale, s->mu[v]),
                  y = v_fms(v_load(s->Y + at), s->scale, s->smu[v]);
        tp[j] = v_mul(p, u);
        sp[j] = v_mul(p, y);
        w[j] = v_mul(p, v_fma(u, y, v_mul(v_load(s->Z + at), s->z_scale)));
    }
    add_weights(s->w_vnni + to, rounded_pair(w[0], w[1]), w[0], w[1], &s->sum[v]);
    if (one_direction) {
        store_rounded_pair(s->s_vnni + to, v_add(tp[0], sp[0]), v_add(tp[1], sp[1]));
    } else {
        store_rounded_pair(s->s_vnni + to, sp[0], sp[1]);
        store_rounded_pair(s->t_vnni + to, tp[0], tp[1]);
    }
}

INLINE void next_two_keys_second(second_stage *s)
{
    s->T += 2 * PANEL;
    s->U += 2 * PANEL;
    s->Y += 2 * PANEL;
    s->Z += 2 * PANEL;
    s->w_vnni += 2 * LANES;
    s->s_vnni += 2 * LANES;
}

INLINE void two_keys_second(void *stage)
{
    second_stage *const s = stage;
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        second_weights(s, v, false);
    }
    next_two_keys_second(s);
    s->t_vnni += 2 * LANES;
}

INLINE void two_keys_one_direction(void *stage)
{
    second_stage *const s = stage;
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        second_weights(s, v, true);
    }
    next_two_keys_second(s);
}

static void second_tangents(uint16_t *const vnni[3], const float *const scores[4], float c, float scale,
                            float z_scale, const float *L, const float *mu, const float *smu, float *sum,
                            float *excess, const amx_queue *next)
{
    second_stage s = {.T = scores[0],
                      .U = scores[1],
                      .Y = scores[2],
                      .Z = scores[3],
                      .w_vnni = vnni[0],
                      .s_vnni = vnni[1],
                      .t_vnni = vnni[2],
                      .c = v_set1(c),
                      .scale = v_set1(scale),
                      .z_scale = v_set1(z_scale)};
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        s.L[v] = v_load(L + v * LANES);
        s.mu[v] = v_load(mu + v * LANES);
        s.smu[v] = v_load(smu + v * LANES);
        s.sum[v] = (weight_sums){v_set1(0), v_set1(0)};
    }
    if (vnni[2] == NULL) {
        interleave(next, two_keys_one_direction, &s);
    } else {
        interleave(next, two_keys_second, &s);
    }
    add_stripe_sums(s.sum, sum, excess);
}
