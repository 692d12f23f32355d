/* Part of amx_kernels.c: the stages of vjp and vjp_jvp, from scores to gradients in bfloat16. */
#include "cpu/amx/kernels/amx_bf16.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/kernels.h"

/* Two keys by 32 lanes. */
INLINE void gradients_two_keys(uint16_t *P, uint16_t *dS, uint16_t *dS_vnni, const float *T, const float *dP,
                               vec c, const vec *L, const vec *D)
{
    vec p[2][ROW_VECTORS], ds[2][ROW_VECTORS];
    UNROLL for (int j = 0; j < 2; j++)
    {
        UNROLL for (int v = 0; v < ROW_VECTORS; v++)
        {
            const int64_t at = j * PANEL + v * LANES;
            p[j][v] = exp2_for_bf16(v_fms(v_load(T + at), c, L[v]));
            ds[j][v] = v_mul(p[j][v], v_sub(v_load(dP + at), D[v]));
        }
        store_rounded_pair(P + j * AMX_DEPTH, p[j][0], p[j][1]);
        store_rounded_pair(dS + j * AMX_DEPTH, ds[j][0], ds[j][1]);
    }
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        store_rounded_pair(dS_vnni + v * AMX_AB, ds[0][v], ds[1][v]);
    }
}

static void gradients(uint16_t *P, uint16_t *dS, int64_t tile_stride, uint16_t *dS_vnni, const float *T,
                      const float *dP, float c, const float *L, const float *D)
{
    const vec l[ROW_VECTORS] = {v_load(L), v_load(L + LANES)},
              d[ROW_VECTORS] = {v_load(D), v_load(D + LANES)};
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        const int64_t to = row_offset(j, tile_stride), at = j * PANEL;
        gradients_two_keys(P + to, dS + to, dS_vnni + j * LANES, T + at, dP + at, v_set1(c), l, d);
    }
}

/* The four results of vjp_jvp for one key and one vector of lanes. */
typedef struct {
    vec r, ds, tr, tds;
} tangent_results;

INLINE tangent_results tangents_at(const float *const scores[4], int64_t at, vec c, vec scale, vec L, vec mu,
                                   vec D, vec tD)
{
    tangent_results x;
    const vec e = v_sub(v_load(scores[1] + at), D), w = v_fms(v_load(scores[2] + at), scale, mu);
    x.r = exp2_for_bf16(v_fms(v_load(scores[0] + at), c, L));
    x.ds = v_mul(x.r, e);
    x.tr = v_mul(x.r, w);
    x.tds = v_mul(x.r, v_fma(w, e, v_sub(v_load(scores[3] + at), tD)));
    return x;
}

typedef struct {
    uint16_t *rows[4], *vnni[2];
    const float *scores[4];
    vec c, scale, L[ROW_VECTORS], mu[ROW_VECTORS], D[ROW_VECTORS], tD[ROW_VECTORS];
    int64_t tile_stride;
    int j;
} tangent_gradient_stage;

INLINE void two_keys_of_tangents(void *stage)
{
    tangent_gradient_stage *const s = stage;
    tangent_results x[2][ROW_VECTORS];
    UNROLL for (int r = 0; r < 2; r++)
    {
        const int64_t to = row_offset(s->j + r, s->tile_stride);
        UNROLL for (int v = 0; v < ROW_VECTORS; v++)
        {
            x[r][v] = tangents_at(s->scores, (s->j + r) * PANEL + v * LANES, s->c, s->scale, s->L[v],
                                  s->mu[v], s->D[v], s->tD[v]);
        }
        store_rounded_pair(s->rows[0] + to, x[r][0].r, x[r][1].r);
        store_rounded_pair(s->rows[1] + to, x[r][0].ds, x[r][1].ds);
        store_rounded_pair(s->rows[2] + to, x[r][0].tr, x[r][1].tr);
        store_rounded_pair(s->rows[3] + to, x[r][0].tds, x[r][1].tds);
    }
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        const int64_t to = v * AMX_AB + s->j * LANES;
        store_rounded_pair(s->vnni[0] + to, x[0][v].tds, x[1][v].tds);
        store_rounded_pair(s->vnni[1] + to, x[0][v].ds, x[1][v].ds);
    }
    s->j += 2;
}

static void gradient_tangents(uint16_t *const rows[4], int64_t tile_stride, uint16_t *const vnni[2],
                              const float *const scores[4], float c, float scale, const float *L,
                              const float *mu, const float *D, const float *tD, const amx_queue *next)
{
    tangent_gradient_stage s = {.vnni = {vnni[0], vnni[1]},
                                .c = v_set1(c),
                                .scale = v_set1(scale),
                                .tile_stride = tile_stride,
                                .j = 0};
    UNROLL for (int n = 0; n < 4; n++)
    {
        s.rows[n] = rows[n];
        s.scores[n] = scores[n];
    }
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        s.L[v] = v_load(L + v * LANES);
        s.mu[v] = v_load(mu + v * LANES);
        s.D[v] = v_load(D + v * LANES);
        s.tD[v] = v_load(tD + v * LANES);
    }
    interleave(next, two_keys_of_tangents, &s);
}
