/* What the maps share: the geometry of tiles, loading rows from the caller's tensors and storing them, and the
 * features of a problem on a tile. Compiled twice, with real = float and real = double.
 *
 *     block    consecutive keys: the rows of a score tile
 *     panel    PANEL consecutive queries: the lanes of a score tile T[j][i]
 *     band     low <= j - i <= high, with i and j counted from the tile's corner: the pairs that causal and window
 *              leave visible */
#ifndef AGI_CPU_TILE_H
#define AGI_CPU_TILE_H

#include <math.h>

#include "core/arena.h"
#include "core/call.h"
#include "core/prefetch.h"
#include "cpu/plan.h"

static inline int64_t agi_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t agi_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The step is usually a power of two: then no division, which would slow down tiny heads. */
static inline int64_t agi_round_up(int64_t n, int64_t step)
{
    return (step & (step - 1)) == 0 ? (n + step - 1) & -step : (n + step - 1) / step * step;
}

/* With at most this many queries, scores are computed with channels in the lanes instead of queries. */
enum { MAX_SHORT_Q = 4 };

/* One query head of one sequence of a call. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    const agi_kernels *k;
    agi_sequence seq;
    bool short_q;           /* at most MAX_SHORT_Q queries */
    int64_t h, hk;          /* query head, kv head */
    int64_t Dk, Dv;         /* channels */
    int64_t Dk_pad, Dv_pad; /* channels of a row in a tile: whole vectors */
    agi_features has;
    double scale;     /* of the scores, dQ and dK; not to be read from the problem */
    real score_scale; /* the same as a real, for kernels */
    real softcap;
    real c;                    /* factor of the score tile in the softmax: scale log2(e) if plain, else 1 */
    double sink, tsink, ssink; /* -infinity, 0 and 0 if there is no sink */
} agi_head;

void REAL(agi_head_begin)(agi_head *x, const agi_call *call, int64_t b, int64_t h);

/* Rounded, but never to an infinity. */
static inline real agi_to_real(double x)
{
    return (real)fmax(-(double)REAL_MAX, fmin((double)REAL_MAX, x));
}

/* Memory for n reals. */
static inline real *agi_take_reals(agi_arena *arena, int64_t n)
{
    return agi_take(arena, n, sizeof(real));
}

/* ---- Geometry ---- */

typedef struct {
    int64_t low, high;
} agi_band;

/* The band of the tile whose corner is query i0, key j0. */
agi_band REAL(agi_band_at)(const agi_head *x, int64_t i0, int64_t j0);

/* All keys of the sequence that any of queries i0 .. i0 + ni - 1 sees are in [*from, *to). */
void REAL(agi_key_range)(const agi_head *x, int64_t i0, int64_t ni, int64_t *from, int64_t *to);

/* The fewest keys that one of queries i0 .. i0 + ni - 1 sees, by band and lengths. */
int64_t REAL(agi_fewest_keys)(const agi_head *x, int64_t i0, int64_t ni);

/* Of a tile with this band: the keys seen by queries [i0, i1), clipped to [0, nj); and the queries that
 * see keys [j0, j1), clipped to [0, ni). Empty ranges have *to <= *from. */
static inline void agi_keys_of(agi_band band, int64_t i0, int64_t i1, int64_t nj, int64_t *from, int64_t *to)
{
    *from = agi_max(0, i0 + band.low);
    *to = agi_min(nj, i1 + band.high);
}

static inline void agi_queries_of(agi_band band, int64_t j0, int64_t j1, int64_t ni, int64_t *from,
                                  int64_t *to)
{
    *from = agi_max(0, j0 - band.high);
    *to = agi_min(ni, j1 - band.low);
}

/* Does a tile of ni queries and nj keys lie wholly inside the band? */
static inline bool agi_inside(agi_band band, int64_t ni, int64_t nj)
{
    return band.low <= 1 - ni && band.high >= nj - 1;
}

/* Does query i, whose log-sum-exp is L, see no key? L is then -infinity or the sink's logit. */
bool REAL(agi_sees_no_key)(const agi_head *x, int64_t i, double L);

/* ---- Rows ---- */

/* Rows of reals: element (row, channel) is p[row * ld + channel]. */
typedef struct {
    const real *p;
    int64_t ld;
} agi_rows;

/* The rows of one head of a tensor, from row0 on. */
typedef struct {
    const ag_tensor *t;
    ag_dtype dtype;
    int64_t view; /* index on the batch axis */
    int64_t head, row0, D;
} agi_slice;

/* Offset of a row's first channel, in elements. */
static inline int64_t agi_row_offset(agi_slice s, int64_t row)
{
    return s.view * s.t->strides[0] + s.head * s.t->strides[1] + (s.row0 + row) * s.t->strides[2];
}

static inline agi_slice agi_query_slice(const agi_head *x, const ag_tensor *t, ag_dtype dtype, int64_t D)
{
    return (agi_slice){t, dtype, x->seq.view, x->h, x->seq.q0, D};
}

static inline agi_slice agi_key_slice(const agi_head *x, const ag_tensor *t, int64_t D)
{
    return (agi_slice){t, x->call->plan->p.dtype, x->seq.view, x->hk, x->seq.k0, D};
}

/* Converts rows first .. first + n - 1 of the slice into scratch[n][D_pad], padded with zeros. Rows with skip[row] !=
 * 0 become zero; skip may be NULL. */
agi_rows REAL(agi_convert_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                const uint8_t *skip, real *scratch);

/* The same rows without a copy, if they consist of whole vectors of reals; else converted. */
static inline agi_rows agi_load_rows(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                     const uint8_t *skip, real *scratch)
{
    if (s.dtype == REAL_DTYPE && s.t->strides[3] == 1 && agi_round_up(s.D, k->lanes) == s.D && skip == NULL) {
        /* The stride of a single row may be anything. */
        return (agi_rows){(const real *)s.t->data + agi_row_offset(s, first), n == 1 ? s.D : s.t->strides[2]};
    }
    return REAL(agi_convert_rows)(k, s, first, n, skip, scratch);
}

/* The same for rows that many queries use: rows that are not adjacent are copied too. */
static inline agi_rows agi_load_dense_rows(const agi_head *x, agi_slice s, int64_t first, int64_t n,
                                           const uint8_t *skip, real *scratch)
{
    const bool in_place = s.t->strides[2] == s.D || x->seq.n_q < PANEL;
    return in_place ? agi_load_rows(x->k, s, first, n, skip, scratch)
                    : REAL(agi_convert_rows)(x->k, s, first, n, skip, scratch);
}

/* Rows j0 .. j0 + n - 1 of K, V, tK or tV; p is NULL if the tensor is absent. */
static inline agi_rows agi_load_keys(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                                     real *scratch)
{
    const agi_rows absent = {NULL, 0};
    return t->data == NULL ? absent : agi_load_dense_rows(x, agi_key_slice(x, t, D), j0, n, NULL, scratch);
}

/* Rows i .. i + n - 1 of O or tO: the sum of both halves, if the low one is given. */
agi_rows REAL(agi_load_output_rows)(const agi_head *x, const ag_tensor *t, const ag_tensor *low, int64_t i,
                                    int64_t n, real *scratch, real *low_scratch);

/* T = A B^T, or T += A B^T: nj rows of keys (K, V, tK, tV) times rows of queries (Q, dO, tQ, tdO), D channels. Reads
 * the queries from their panel or, if there are few, from their rows; in the same way in all maps, so that recomputed
 * scores have forward's bits. */
void REAL(agi_score_product)(const agi_head *x, agi_rows keys, int64_t nj, int64_t D, const real *panel,
                             agi_rows queries, int64_t ni, real *T, int64_t ld, bool add);

/* Copies rows, with those of masked keys zero: their weight is 0, but 0 times NaN is NaN. */
agi_rows REAL(agi_zero_masked_rows)(agi_rows rows, int64_t n, int64_t width, const uint8_t *masked_keys,
                                    real *zeroed);

/* Rows first .. first + n - 1 of the slice, transposed: out[D][PANEL], padded with zeros to whole vectors of
 * queries. */
void REAL(agi_load_panel)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n, const uint8_t *skip,
                          real *out);

/* Stores rows, row r times factor[r * factor_stride], rounded once; accumulate: adds them to what the caller's array
 * holds. rows NULL: zeros. */
void REAL(agi_scale_and_store_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                    bool accumulate, const double *factor, int64_t factor_stride,
                                    const real *rows, int64_t ld);

/* Stores the low halves of such rows: what rounding to the slice's 16-bit dtype takes from them. Nothing if the
 * tensor is absent. */
void REAL(agi_store_low_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                              const double *factor, const real *rows, int64_t ld);

/* One row of n reals: row *= factor. */
static inline void agi_scale_row(const agi_kernels *k, real *row, int64_t n, double factor)
{
    k->store_rows(row, n, row, n, 1, n, &factor, 0, false);
}

/* to += factor * from. */
static inline void agi_add_scaled_row(const agi_kernels *k, real *to, const real *from, int64_t n,
                                      double factor)
{
    k->store_rows(to, n, from, n, 1, n, &factor, 0, true);
}

static inline void agi_store_rows(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                  bool accumulate, double factor, const real *rows, int64_t ld)
{
    REAL(agi_scale_and_store_rows)(k, s, first, n, accumulate, &factor, 0, rows, ld);
}

/* Row i of lse, mu, d_lse or td_lse; 0 if the tensor is absent. */
static inline double agi_load_stat(const agi_head *x, const ag_tensor *t, int64_t i)
{
    return t->data == NULL ? 0
                           : ((const double *)t->data)[agi_row_offset(agi_query_slice(x, t, AG_F64, 1), i)];
}

static inline void agi_store_stat(const agi_head *x, const ag_tensor *t, bool accumulate, int64_t i,
                                  double value)
{
    if (t->data != NULL) {
        double *to = (double *)t->data + agi_row_offset(agi_query_slice(x, t, AG_F64, 1), i);
        *to = accumulate ? *to + value : value;
    }
}

/* log2(e) L = high + low, so that weights keep their digits at large scores. low is 0 if high is infinite. */
static inline void agi_split_log(double L, real *high, real *low)
{
    const double L2 = L * LOG2_E;
    *high = (real)L2;
    *low = isfinite(*high) ? (real)(L2 - (double)*high) : 0;
}

/* ---- Features of a tile: queries i0 .. i0 + ni - 1, keys j0 .. j0 + nj - 1 ---- */

/* X: what is added to the scores, -infinity for masked pairs. tX, if not NULL: its tangent.
 * masked_keys[j]: no query of the tile sees key j. Returns whether there is such a key. */
bool REAL(agi_additive)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, real *tX,
                        int64_t ld, uint8_t *masked_keys);

/* tX: what the tangents of bias and table, which may be absent, add to tS. */
void REAL(agi_additive_tangent)(const agi_head *x, const ag_tensor *bias, const ag_tensor *table, int64_t i0,
                                int64_t ni, int64_t j0, int64_t nj, real *tX, int64_t ld);

/* Are all pairs of the tile that are inside the band masked by mask or bias? Takes much less time than a product. */
bool REAL(agi_all_masked)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj);

/* Of keys *j0 .. end - 1, drops most of those at either end that are masked for all the queries: moves *j0, returns
 * how many keys are left. */
int64_t REAL(agi_trim_masked)(const agi_head *x, int64_t i0, int64_t ni, int64_t *j0, int64_t end);

void REAL(agi_dropout_tile)(const agi_head *x, int64_t i0, int64_t W, int64_t j0, int64_t nj, real *M,
                            int64_t ld);

/* Where the gradients of bias and table are summed. If the bias has both a query and a key axis, `full`: the caller's
 * own array or a copy of it. Otherwise `broadcast`: a dense array in float64, one per part of a pass. */
typedef struct {
    void *full;
    ag_dtype dtype; /* of full */
    double *broadcast;
    int64_t strides[4]; /* of full or broadcast; 0 along an axis of size 1 */
    double *table;      /* [table_buckets], of this head and this part of a pass */
} agi_sums;
void REAL(agi_add_sums)(const agi_head *x, const agi_sums *sums, int64_t i0, int64_t ni, int64_t j0,
                        int64_t nj, const real *dS, int64_t ld);

#endif
