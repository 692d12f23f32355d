/* The table of kernels, one per instruction set: all that the maps do to whole tiles.
 *
 * A score tile is transposed: T[j][i], keys in rows, queries in lanes, with row stride `ld`:
 *
 *              query 0   query 1   ...   query W - 1
 *     key 0     T[0][0]   T[0][1]
 *     key 1     T[1][0]   T[1][1]
 *     ...
 *     key nj - 1
 *
 * So the statistics of a query (maximum, sum) are one lane, a maximum over keys is a maximum of whole vectors, and no
 * product needs another transpose: A is read element by element with two free strides, B by rows.
 *
 * Kernels of tiles take nj rows (keys) and W lanes, a multiple of the vector length. */
#ifndef AGI_CPU_KERNELS_H
#define AGI_CPU_KERNELS_H

#include "core/prefetch.h"
#include "core/real.h"

#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453

/* Lanes of a panel: the queries that are worked on at once, 256 bytes of each row of a score tile. */
#define PANEL (256 / (int)sizeof(real))

typedef struct {
    const char *name;
    int64_t lanes; /* of a vector */

    /* C = A B, or C += A B. A[M][K] with element (r, k) at A[r*ars + k*aks], B[K][N], C[M][N]; N a
     * multiple of lanes. Each element is one sum over k in order, which C is added to at the end: the same bits for
     * any M and N. */
    void (*product)(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B,
                    int64_t ldb, real *C, int64_t ldc, bool add);

    /* The same product, which also prefetches from the list what is read later; NULL: nothing. */
    void (*product_prefetch)(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks,
                             const real *B, int64_t ldb, real *C, int64_t ldc, bool add,
                             agi_prefetch_list *list);

    /* T = or += K Q^T for few queries, by dot products along the channels: K[nj][D], Q[ni][D], D a multiple of lanes.
     * The same bits for any nj and ni. Without `add`, lanes ni .. W - 1 become zero. */
    void (*scores_by_dot)(real *T, int64_t ld, int64_t nj, int64_t W, const real *K, int64_t ldk,
                          const real *Q, int64_t ldq, int64_t ni, int64_t D, bool add);

    /* T = log2(e) (phi(scale T) + X), X the additive features or NULL. phi(z) = softcap tanh(z / softcap) if
     * softcap > 0, else z; then F, if not NULL, becomes phi', and G, if not NULL, phi''. */
    void (*scores)(real *T, const real *X, real *F, real *G, int64_t ld, int64_t nj, int64_t W, real scale,
                   real softcap);

    /* T = -infinity outside the band low <= j - i <= high. */
    void (*mask_band)(real *T, int64_t ld, int64_t nj, int64_t W, int64_t low, int64_t high);

    /* One step of the online softmax in base 2: T becomes 2^(c T - m), with per lane the running maximum m of c T and
     * the sum l of these weights. alpha is the factor by which l was rescaled, 1 if m did not move. Returns whether a
     * lane that had seen a key was rescaled. */
    bool (*softmax)(real *T, int64_t ld, int64_t nj, int64_t W, real c, real *m, real *l, real *alpha);

    /* The same with tangents: U is tS and becomes 2^(c T - m) (tS - r), with per lane the shift r of tS and the sum a
     * of these. delta is the change of r, old minus new. */
    bool (*softmax_tangent)(real *T, real *U, int64_t ld, int64_t nj, int64_t W, real c, real *m, real *l,
                            real *r, real *a, real *alpha, real *delta);

    /* T = 2^(c T - high - low): the weights, from the query's log-sum-exp in base 2, in two parts. */
    void (*weights)(real *T, int64_t ld, int64_t nj, int64_t W, real c, const real *high, const real *low);

    /* U = scale F U + X: tS from tQ K^T + Q tK^T; F and X may be NULL. G, if not NULL, becomes G scale U: phi'' tZ. */
    void (*score_tangents)(real *U, const real *F, real *G, const real *X, int64_t ld, int64_t nj, int64_t W,
                           real scale);

    /* jvp that is given lse: U is tS and becomes P (tS - r), whose sum over keys is added to sum. */
    void (*tangent_weights)(const real *P, real *U, int64_t ld, int64_t nj, int64_t W, const real *r,
                            real *sum);

    /* jvp_jvp: Z = scale (factor F Z + G Y): stS from tQ sK^T + sQ tK^T in Z and sQ K^T + Q sK^T in Y; G is phi'' tZ.
     * F and G are NULL without softcap. */
    void (*second_score_tangents)(real *Z, const real *F, const real *G, const real *Y, int64_t ld,
                                  int64_t nj, int64_t W, real scale, real factor);

    /* jvp_jvp: U, Y and Z are tS, sS and stS and become tP = P (tS - mu), sP = P (sS - smu) and
     * P ((tS - mu)(sS - smu) + stS), whose sum over keys is added to sum. */
    void (*second_weights)(const real *P, real *U, real *Y, real *Z, int64_t ld, int64_t nj, int64_t W,
                           const real *mu, const real *smu, real *sum);

    /* dP is dO V^T and becomes dS = P (dP M - D); M may be NULL. */
    void (*score_gradients)(real *dP, const real *P, const real *M, int64_t ld, int64_t nj, int64_t W,
                            const real *D);

    /* For vjp_jvp: dP becomes dS, tdP becomes tdS = P ((tS - mu)(dP M - D) + tdP M - tD), U is tS and becomes tR = P
     * (tS - mu) M, P becomes R = P M. */
    void (*score_gradient_tangents)(real *P, real *U, real *dP, real *tdP, const real *M, int64_t ld,
                                    int64_t nj, int64_t W, const real *mu, const real *D, const real *tD);

    /* dS becomes dZ = F dS; tdS, if not NULL, becomes tdZ = F tdS + G dS. */
    void (*softcap_gradients)(real *dS, real *tdS, const real *F, const real *G, int64_t ld, int64_t nj,
                              int64_t W);

    /* T *= M. */
    void (*multiply)(real *T, const real *M, int64_t ld, int64_t nj, int64_t W);

    /* Rows of n elements: to = or += factor * from, computed in float64 and rounded once. The factor of row r is
     * factor[r * factor_stride]. `to` and `from` may be the same. */
    void (*store_rows)(real *to, int64_t ldt, const real *from, int64_t ldf, int64_t rows, int64_t n,
                       const double *factor, int64_t factor_stride, bool add);

    /* Prefetches rows of n elements, with row stride ld, for writing. */
    void (*prefetch_write)(const real *first, int64_t ld, int64_t rows, int64_t n);

    /* Converts n elements of a 16-bit format, `stride` apart, to reals. */
    void (*load_bf16)(real *to, const uint16_t *from, int64_t stride, int64_t n);
    void (*load_f16)(real *to, const uint16_t *from, int64_t stride, int64_t n);

    /* to = factor * from in a 16-bit format, rounded once, to nearest even. */
    void (*store_bf16)(uint16_t *to, const real *from, int64_t n, double factor);
    void (*store_f16)(uint16_t *to, const real *from, int64_t n, double factor);

    /* to = the low half of factor * from: what that rounding took, itself rounded; 0 if it is not finite. For float16
     * times 2^11. */
    void (*store_low_bf16)(uint16_t *to, const real *from, int64_t n, double factor);
    void (*store_low_f16)(uint16_t *to, const real *from, int64_t n, double factor);

    /* out[r]: the dot product of row r of A and row r of B, n elements each, in float64. */
    void (*dots)(double *out, const real *A, int64_t lda, const real *B, int64_t ldb, int64_t rows,
                 int64_t n);

    /* out[i] = log2 x[i] for n normal positive x[i]; infinity and NaN stay. The result for 0 is meaningless. */
    void (*log2_array)(double *out, const double *x, int64_t n);

    /* out[D][PANEL] = the transpose of n rows of D elements with row stride ld; zero after column n - 1, up to a whole
     * vector. */
    void (*transpose)(real *out, const real *rows, int64_t ld, int64_t n, int64_t D);

    /* M: 0 if dropped, else keep_factor. The random word of key position g = g0 + j and query position p = p0 + i is
     * word g % 4 of Philox at counter (g / 4, p, head, sequence); a pair is dropped if it is below threshold. */
    void (*dropout)(real *M, int64_t ld, int64_t nj, int64_t W, int64_t g0, int64_t p0, uint32_t head,
                    uint32_t sequence, uint64_t seed, uint32_t threshold, real keep_factor);
} agi_kernels;

/* The tables that are built in. */
extern const agi_kernels REAL(agi_kernels_scalar);
#if defined(__x86_64__)
extern const agi_kernels REAL(agi_kernels_avx2);
extern const agi_kernels REAL(agi_kernels_avx512);
#elif defined(__aarch64__)
extern const agi_kernels REAL(agi_kernels_neon);
#endif

#endif
