/* What the four maps share: the geometry of tiles, the way of rows between the caller's tensors and the
 * tiles, the features of a problem on a tile. Compiled for each real.
 *
 *     block    some keys, a piece of the sequence that the maps walk over: the rows of a score tile
 *     panel    PANEL queries, the lanes of a score tile T[j][i]
 *     band     visible is low <= j - i <= high, with i and j counted from the tile's corner: what
 *              causal and window come to
 */
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

/* Mostly to whole vectors, a power of two: a tiny head has no time for divisions. */
static inline int64_t agi_round_up(int64_t n, int64_t step)
{
    return (step & (step - 1)) == 0 ? (n + step - 1) & -step : (n + step - 1) / step * step;
}

/* Queries of a sequence whose scores have channels in the lanes instead, at most: more of them fill the lanes. */
enum { MAX_SHORT_Q = 4 };

/* One query head of one sequence of a call. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    const agi_kernels *k;
    agi_sequence seq;
    bool short_q; /* queries */
    int64_t h, hk;
    int64_t Dk, Dv;         /* channels */
    int64_t Dk_pad, Dv_pad; /* channels of a row in a tile: whole vectors */
    agi_features has;
    double scale; /* the only one that code below the plan may read: scores, dQ and dK are multiplied by it */
    real score_scale; /* the same, as kernels of scores take it */
    real softcap;
    real c;             /* scores in base 2 are c times the tile: scale log2(e) where plain, else 1 */
    double sink, tsink; /* -infinity and 0 without one */
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

/* Keys that any of the queries i0 .. i0 + ni - 1 sees lie in [*from, *to); the whole sequence's keys. */
void REAL(agi_key_range)(const agi_head *x, int64_t i0, int64_t ni, int64_t *from, int64_t *to);

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

/* ---- Rows ---- */

/* Rows of the problem's own kind in a tile: p[row * ld + channel]. */
typedef struct {
    const real *p;
    int64_t ld;
} agi_rows;

/* Which rows of a tensor: one head's, from row0 on. */
typedef struct {
    const ag_tensor *t;
    ag_dtype dtype;
    int64_t view, head, row0, D;
} agi_slice;

/* The place of a row's first channel, in elements. */
static inline int64_t agi_row_at(agi_slice s, int64_t row)
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

/* Rows first .. first + n - 1 of the slice, converted into scratch[n][D_pad], padded with zeros. skip[row] != 0, where
 * given: the row is zero. */
agi_rows REAL(agi_convert_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                const uint8_t *skip, real *scratch);

/* The same rows where they are, if they are whole vectors of reals; else converted. */
static inline agi_rows agi_load_rows(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                     const uint8_t *skip, real *scratch)
{
    if (s.dtype == REAL_DTYPE && s.t->strides[3] == 1 && agi_round_up(s.D, k->lanes) == s.D && skip == NULL) {
        /* The stride of a single row may be anything. */
        return (agi_rows){(const real *)s.t->data + agi_row_at(s, first), n == 1 ? s.D : s.t->strides[2]};
    }
    return REAL(agi_convert_rows)(k, s, first, n, skip, scratch);
}

/* The same for rows that many queries meet: also copied where they lie apart. */
static inline agi_rows agi_load_dense_rows(const agi_head *x, agi_slice s, int64_t first, int64_t n,
                                           const uint8_t *skip, real *scratch)
{
    const bool near = s.t->strides[2] == s.D || x->seq.n_q < PANEL;
    return near ? agi_load_rows(x->k, s, first, n, skip, scratch)
                : REAL(agi_convert_rows)(x->k, s, first, n, skip, scratch);
}

/* Rows j0 .. j0 + n - 1 of K, V or a tangent of theirs; p is NULL where the tensor is absent. */
static inline agi_rows agi_load_keys(const agi_head *x, const ag_tensor *t, int64_t D, int64_t j0, int64_t n,
                                     real *scratch)
{
    const agi_rows absent = {NULL, 0};
    return t->data == NULL ? absent : agi_load_dense_rows(x, agi_key_slice(x, t, D), j0, n, NULL, scratch);
}

/* T = or += A B^T, transposed: nj rows of keys (K, V, a tangent) times rows of queries (Q, dO, a tangent), D channels.
 * Many queries are taken from their panel, few from their rows; the same way in all maps, so that recomputed scores
 * repeat forward's bits. */
void REAL(agi_score_product)(const agi_head *x, agi_rows keys, int64_t nj, int64_t D, const real *panel,
                             agi_rows queries, int64_t ni, real *T, int64_t ld, bool add);

/* A copy of rows in which those that are unseen are zero: their weight is 0, but 0 times NaN is NaN. */
agi_rows REAL(agi_zero_masked_rows)(agi_rows rows, int64_t n, int64_t width, const uint8_t *masked_keys,
                                    real *zeroed);

/* The same rows transposed: out[D][PANEL], zero behind the n rows up to a whole vector. */
void REAL(agi_load_panel)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n, const uint8_t *skip,
                          real *out);

/* Writes rows, each times its factor[row * step], rounded once; accumulate: added to what is there. rows NULL:
 * zeros. */
void REAL(agi_scale_and_store_rows)(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                    bool accumulate, const double *factor, int64_t step, const real *rows,
                                    int64_t ld);

/* A single row of a tile. */
static inline void agi_scale_row(const agi_kernels *k, real *to, const real *from, int64_t n, double factor,
                                 bool add)
{
    k->put(to, n, from, n, 1, n, &factor, 0, add);
}

static inline void agi_store_rows(const agi_kernels *k, agi_slice s, int64_t first, int64_t n,
                                  bool accumulate, double factor, const real *rows, int64_t ld)
{
    REAL(agi_scale_and_store_rows)(k, s, first, n, accumulate, &factor, 0, rows, ld);
}

/* One float64 of a row of lse, mu and their like; 0 where the tensor is absent. */
static inline double agi_load_stat(const agi_head *x, const ag_tensor *t, int64_t i)
{
    return t->data == NULL ? 0 : ((const double *)t->data)[agi_row_at(agi_query_slice(x, t, AG_F64, 1), i)];
}

static inline void agi_store_stat(const agi_head *x, const ag_tensor *t, bool accumulate, int64_t i,
                                  double value)
{
    if (t->data != NULL) {
        double *to = (double *)t->data + agi_row_at(agi_query_slice(x, t, AG_F64, 1), i);
        *to = accumulate ? *to + value : value;
    }
}

/* log2(e) L in two parts; one that is beyond the reals' range has no second. */
static inline void agi_split_log(double L, real *high, real *low)
{
    const double L2 = L * LOG2_E;
    *high = (real)L2;
    *low = isfinite(*high) ? (real)(L2 - (double)*high) : 0;
}

/* ---- Features of a tile: queries i0 .. i0 + ni - 1, keys j0 .. j0 + nj - 1 ---- */

/* X: what is added to the scores, minus infinity where hidden by mask or bias. tX, where given: its
 * tangent. unseen[j]: no query of the tile may see key j. Returns whether there is such a key. */
bool REAL(agi_additive)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, real *tX,
                        int64_t ld, uint8_t *masked_keys);

/* Is every pair of the tile that the band leaves hidden by mask or bias? The answer costs little next to a tile. */
bool REAL(agi_all_masked)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj);

/* The keys from *j0 to end - 1 without most of those at either side that all of the queries are hidden from: moves
 * *j0, returns how many are left. */
int64_t REAL(agi_trim_masked)(const agi_head *x, int64_t i0, int64_t ni, int64_t *j0, int64_t end);

void REAL(agi_dropout_tile)(const agi_head *x, int64_t i0, int64_t W, int64_t j0, int64_t nj, real *M,
                            int64_t ld);

/* Where the gradient of a bias goes. With both a query and a key axis every pair has its own element,
 * or shares it with other heads and sequences: `full`, in the caller's own array or a copy. Otherwise
 * `small`, dense, in float64, one for each part of the queries. */
typedef struct {
    void *full;
    ag_dtype dtype; /* of full */
    double *small;
    int64_t strides[4]; /* of whichever is there; 0 along an axis of size 1 */
    double *table;      /* [table_buckets], of this head and this part of the queries */
} agi_sums;
void REAL(agi_add_sums)(const agi_head *x, const agi_sums *sums, int64_t i0, int64_t ni, int64_t j0,
                        int64_t nj, const real *dS, int64_t ld);

#endif
