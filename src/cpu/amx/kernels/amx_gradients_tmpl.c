/* The stages of vjp and vjp_jvp: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_GRADIENTS_H
#define AGI_CPU_AMX_GRADIENTS_H

#include "cpu/amx/kernels/amx_interleave_tmpl.c"
#include "cpu/amx/kernels/amx_scores_tmpl.c"

/* Two keys by two vectors of lanes. */
INLINE void gradients_square(uint16_t *P, uint16_t *dS, uint16_t *dS_pairs, const float *T, const float *dP,
                             vec c, const vec *L, const vec *D)
{
    vec p[2][PAIR], ds[2][PAIR];
    UNROLL for (int j = 0; j < 2; j++)
    {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const int64_t at = j * PANEL + v * LANES;
            p[j][v] = exp2_centred(v_fms(v_load(T + at), c, L[v]));
            ds[j][v] = v_mul(p[j][v], v_sub(v_load(dP + at), D[v]));
        }
        store_cut_pair(P + j * AMX_DEPTH, p[j][0], p[j][1]);
        store_cut_pair(dS + j * AMX_DEPTH, ds[j][0], ds[j][1]);
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        store_cut_pair(dS_pairs + v * AMX_AB, ds[0][v], ds[1][v]);
    }
}

static void gradients(uint16_t *P, uint16_t *dS, int64_t line, uint16_t *dS_pairs, const float *T,
                      const float *dP, float c, const float *L, const float *D)
{
    const vec l[PAIR] = {v_load(L), v_load(L + LANES)}, d[PAIR] = {v_load(D), v_load(D + LANES)};
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        const int64_t to = row_place(j, line), at = j * PANEL;
        gradients_square(P + to, dS + to, dS_pairs + j * LANES, T + at, dP + at, v_set1(c), l, d);
    }
}

/* What vjp_jvp makes of one vector of scores. */
typedef struct {
    vec r, ds, tr, tds;
} tangent_stage;

INLINE tangent_stage tangents_at(const float *const scores[4], int64_t at, vec c, vec scale, vec L, vec mu,
                                 vec D, vec tD)
{
    tangent_stage x;
    const vec e = v_sub(v_load(scores[1] + at), D), w = v_fms(v_load(scores[2] + at), scale, mu);
    x.r = exp2_centred(v_fms(v_load(scores[0] + at), c, L));
    x.ds = v_mul(x.r, e);
    x.tr = v_mul(x.r, w);
    x.tds = v_mul(x.r, v_fma(w, e, v_sub(v_load(scores[3] + at), tD)));
    return x;
}

typedef struct {
    uint16_t *rows[4], *pairs[2];
    const float *scores[4];
    vec c, scale, L[PAIR], mu[PAIR], D[PAIR], tD[PAIR];
    int64_t line;
    int j;
} tangent_gradient_stage;

INLINE void two_gradient_tangents(void *stage)
{
    tangent_gradient_stage *const s = stage;
    tangent_stage x[2][PAIR];
    UNROLL for (int r = 0; r < 2; r++)
    {
        const int64_t to = row_place(s->j + r, s->line);
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            x[r][v] = tangents_at(s->scores, (s->j + r) * PANEL + v * LANES, s->c, s->scale, s->L[v],
                                  s->mu[v], s->D[v], s->tD[v]);
        }
        store_cut_pair(s->rows[0] + to, x[r][0].r, x[r][1].r);
        store_cut_pair(s->rows[1] + to, x[r][0].ds, x[r][1].ds);
        store_cut_pair(s->rows[2] + to, x[r][0].tr, x[r][1].tr);
        store_cut_pair(s->rows[3] + to, x[r][0].tds, x[r][1].tds);
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        const int64_t to = v * AMX_AB + s->j * LANES;
        store_cut_pair(s->pairs[0] + to, x[0][v].tds, x[1][v].tds);
        store_cut_pair(s->pairs[1] + to, x[0][v].ds, x[1][v].ds);
    }
    s->j += 2;
}

static void gradient_tangents(uint16_t *const rows[4], int64_t line, uint16_t *const pairs[2],
                              const float *const scores[4], float c, float scale, const float *L,
                              const float *mu, const float *D, const float *tD, const amx_next *next)
{
    tangent_gradient_stage s = {
        .pairs = {pairs[0], pairs[1]}, .c = v_set1(c), .scale = v_set1(scale), .line = line, .j = 0};
    UNROLL for (int n = 0; n < 4; n++)
    {
        s.rows[n] = rows[n];
        s.scores[n] = scores[n];
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        s.L[v] = v_load(L + v * LANES);
        s.mu[v] = v_load(mu + v * LANES);
        s.D[v] = v_load(D + v * LANES);
        s.tD[v] = v_load(tD + v * LANES);
    }
    beside(next, two_gradient_tangents, &s);
}

#endif
