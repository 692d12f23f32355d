/* Part of kernels.c: the products of tiles. */
#include "cpu/vec/kernels/kernels.h"
#include "cpu/vec/kernels/vec.h"

/* ---- The product ---- */

/* Bytes to prefetch per step of k: half a cache line, as lines do not arrive faster from the caches of other
 * cores. */
enum { PREFETCH_STEP = 32 };

/* The micro-kernel: a strip C[mr][nv vectors], which stays in registers while k runs. mr, nv and add are constants
 * wherever this is inlined. prefetch: the address of the K * PREFETCH_STEP bytes to prefetch, 0 for none. */
INLINE void micro(const int mr, const int nv, const bool add, int64_t K, const real *A, int64_t ars,
                  int64_t aks, const real *B, int64_t ldb, real *C, int64_t ldc, uintptr_t prefetch)
{
    vec c[12][MAX_NV]; /* MAX_MR is at most 12 */
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int v = 0; v < nv; v++)
        {
            c[r][v] = v_set1(0);
        }
    }
    for (int64_t k = 0; k < K; k++) {
        vec b[MAX_NV];
        UNROLL for (int v = 0; v < nv; v++)
        {
            b[v] = v_load(B + v * LANES);
        }
        UNROLL for (int r = 0; r < mr; r++)
        {
            const vec a = v_set1(A[r * ars]);
            UNROLL for (int v = 0; v < nv; v++)
            {
                c[r][v] = v_fma(a, b[v], c[r][v]);
            }
        }
        if (prefetch != 0) {
            agi_prefetch_l2(prefetch);
            prefetch += PREFETCH_STEP;
        }
        A += aks;
        B += ldb;
    }
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int v = 0; v < nv; v++)
        {
            real *const to = C + r * ldc + v * LANES;
            v_store(to, add ? v_add(v_load(to), c[r][v]) : c[r][v]);
        }
    }
}

/* The instances of micro: mr rows of nv vectors, C = or C +=. Cases above MAX_MR(nv) do not occur; they name
 * another instance, so that no code is made for them. */
INLINE void instances(const int nv, const bool add, int64_t mr, int64_t K, const real *A, int64_t ars,
                      int64_t aks, const real *B, int64_t ldb, real *C, int64_t ldc, uintptr_t prefetch)
{
    switch (mr) {
    case 1: micro(1, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 2: micro(2, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 3: micro(3, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 4: micro(4, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 5: micro(5, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 6: micro(6, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 7: micro(MAX_MR(nv) < 7 ? 1 : 7, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 8: micro(MAX_MR(nv) < 8 ? 1 : 8, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 9: micro(MAX_MR(nv) < 9 ? 1 : 9, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 10: micro(MAX_MR(nv) < 10 ? 1 : 10, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    case 11: micro(MAX_MR(nv) < 11 ? 1 : 11, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    default: micro(MAX_MR(nv) < 12 ? 1 : 12, nv, add, K, A, ars, aks, B, ldb, C, ldc, prefetch); break;
    }
}

/* The instances as functions. The arguments are not in a struct, as short products are faster if they are
 * passed in registers. */
static void set_1(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(1, false, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
static void add_1(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(1, true, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
static void set_2(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(2, false, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
static void add_2(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(2, true, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
#if MAX_NV == 4
static void set_3(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(3, false, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
static void add_3(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(3, true, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
static void set_4(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(4, false, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
static void add_4(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb,
                  real *C, int64_t ldc)
{
    instances(4, true, mr, K, A, ars, aks, B, ldb, C, ldc, 0);
}
#endif

/* Indexed by the number of vectors and by `add`. */
static void (*const micros[][2])(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks,
                                 const real *B, int64_t ldb, real *C, int64_t ldc) = {
    {NULL},         {set_1, add_1}, {set_2, add_2},
#if MAX_NV == 4
    {set_3, add_3}, {set_4, add_4},
#endif
};

static void set_prefetch(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B,
                         int64_t ldb, real *C, int64_t ldc, uintptr_t prefetch)
{
    instances(MAX_NV, false, mr, K, A, ars, aks, B, ldb, C, ldc, prefetch);
}
static void add_prefetch(int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B,
                         int64_t ldb, real *C, int64_t ldc, uintptr_t prefetch)
{
    instances(MAX_NV, true, mr, K, A, ars, aks, B, ldb, C, ldc, prefetch);
}

/* Splits M rows into strips of at most max_rows, as equal as possible: 32 are 6, 6, 5, 5, 5, 5, not five
 * times 6 and 2. */
typedef struct {
    int64_t rows, longer; /* rows of a strip; the first `longer` strips have one more */
} strips;

INLINE strips strips_of(int64_t M, int64_t max_rows)
{
    const int64_t n = M <= max_rows ? 1 : (M + max_rows - 1) / max_rows, rows = n == 1 ? M : M / n;
    return (strips){rows, M - n * rows};
}

/* Rows of the strip that begins at row r. */
INLINE int64_t strip_rows(strips s, int64_t r)
{
    return s.rows + (r < s.longer * (s.rows + 1));
}

static void product(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B,
                    int64_t ldb, real *C, int64_t ldc, bool add)
{
    const int64_t vectors = N / LANES, groups = (vectors + MAX_NV - 1) / MAX_NV;
    for (int64_t g = 0; g < groups; g++) {
        /* Groups of vectors are as equal as possible too: 5 vectors are 3 and 2, not 4 and 1. */
        const int64_t first = groups == 1 ? 0 : vectors * g / groups;
        const int64_t nv = groups == 1 ? vectors : vectors * (g + 1) / groups - first;
        const strips cut = strips_of(M, MAX_MR(nv));
        for (int64_t r = 0, mr; r < M; r += mr) {
            mr = strip_rows(cut, r);
            micros[nv][add](mr, K, A + r * ars, ars, aks, B + first * LANES, ldb, C + r * ldc + first * LANES,
                            ldc);
        }
    }
}

static void product_prefetch(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks,
                             const real *B, int64_t ldb, real *C, int64_t ldc, bool add,
                             agi_prefetch_list *list)
{
    const strips cut = strips_of(M, MAX_MR(MAX_NV));
    const int64_t width = MAX_NV * LANES;
    int64_t i = 0;
    for (; list != NULL && i + width <= N; i += width) {
        for (int64_t r = 0, mr; r < M; r += mr) {
            mr = strip_rows(cut, r);
            const uintptr_t at = agi_prefetch_step(list, PREFETCH_STEP * K);
            if (at == 0) { /* the list is empty: the remaining rows without prefetching */
                product(M - r, width, K, A + r * ars, ars, aks, B + i, ldb, C + r * ldc + i, ldc, add);
                break;
            }
            (add ? add_prefetch : set_prefetch)(mr, K, A + r * ars, ars, aks, B + i, ldb, C + r * ldc + i,
                                                ldc, at);
        }
    }
    if (i < N) {
        product(M, N - i, K, A, ars, aks, B + i, ldb, C + i, ldc, add);
    }
}

/* ---- Scores of few queries, by dot products ---- */

/* Lane r of the result is the sum of the lanes of s[r]. Each step makes one vector of two: interleaves them
 * and adds the halves. */
INLINE vec v_sums(vec *s)
{
    for (int n = LANES / 2; n > 0; n /= 2) {
        UNROLL_STAGE for (int r = 0; r < LANES / 2; r++)
        {
            if (r < n) {
                vec low, high;
                v_zip(s[r], s[r + n], &low, &high);
                s[r] = v_add(low, high);
            }
        }
    }
    return s[0];
}

/* Lane r of the result is row r of K times q, for n <= LANES rows. */
INLINE vec row_dots(const int64_t n, const real *K, int64_t ldk, const real *q, int64_t D)
{
    vec s[LANES];
    UNROLL_STAGE for (int r = 0; r < LANES; r++)
    {
        s[r] = v_set1(0);
    }
    for (int64_t c = 0; c < D; c += LANES) {
        const vec b = v_load(q + c);
        UNROLL_STAGE for (int r = 0; r < LANES; r++)
        {
            if (r < n) {
                s[r] = v_fma(v_load(K + r * ldk + c), b, s[r]);
            }
        }
    }
    return v_sums(s);
}

static void scores_by_dot(real *T, int64_t ld, int64_t nj, int64_t W, const real *K, int64_t ldk,
                          const real *Q, int64_t ldq, int64_t ni, int64_t D, bool add)
{
    real sums[LANES];
    for (int64_t j = 0; j < nj && !add; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            v_store(T + j * ld + i, v_set1(0));
        }
    }
    for (int64_t j = 0; j < nj; j += LANES) {
        const int64_t n = nj - j < LANES ? nj - j : LANES;
        for (int64_t i = 0; i < ni; i++) {
            const real *rows = K + j * ldk, *q = Q + i * ldq;
            v_store(sums, n == LANES ? row_dots(LANES, rows, ldk, q, D) : row_dots(n, rows, ldk, q, D));
            for (int64_t r = 0; r < n; r++) {
                T[(j + r) * ld + i] += sums[r];
            }
        }
    }
}
