/* The products: a part of kernels.c. */
#ifndef AGI_CPU_KERNELS_PRODUCT_H
#define AGI_CPU_KERNELS_PRODUCT_H

#include "cpu/vec/kernels/kernels.h"
#include "cpu/vec/kernels/vec.h"

/* ---- The product ---- */

/* Of what is asked for ahead: half a cache line in each step of k, as others' lines do not come faster. */
enum { AHEAD_STEP = 32 };

/* C[mr][nv vectors]: every C stays in a register while k runs. mr, nv and add are constants at each of
 * the places below, and ahead is 0 at most of them: this is a template. */
INLINE void micro(const int mr, const int nv, const bool add, int64_t K, const real *A, int64_t ars,
                  int64_t aks, const real *B, int64_t ldb, real *C, int64_t ldc, uintptr_t ahead)
{
    vec c[12][MAX_NV];
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
        if (ahead != 0) {
            agi_prefetch_l2(ahead);
            ahead += AHEAD_STEP;
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

#define PARAMETERS                                                                                           \
    int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb, real *C,     \
        int64_t ldc
#define ARGS K, A, ars, aks, B, ldb, C, ldc

/* The instances: mr rows of nv vectors, C = or C +=. */
INLINE void instances(const int nv, const bool add, PARAMETERS, uintptr_t ahead)
{
    switch (mr) {
    case 1: micro(1, nv, add, ARGS, ahead); break;
    case 2: micro(2, nv, add, ARGS, ahead); break;
    case 3: micro(3, nv, add, ARGS, ahead); break;
    case 4: micro(4, nv, add, ARGS, ahead); break;
    case 5: micro(5, nv, add, ARGS, ahead); break;
    case 6: micro(6, nv, add, ARGS, ahead); break;
    case 7: micro(MAX_MR(nv) < 7 ? 1 : 7, nv, add, ARGS, ahead); break;
    case 8: micro(MAX_MR(nv) < 8 ? 1 : 8, nv, add, ARGS, ahead); break;
    case 9: micro(MAX_MR(nv) < 9 ? 1 : 9, nv, add, ARGS, ahead); break;
    case 10: micro(MAX_MR(nv) < 10 ? 1 : 10, nv, add, ARGS, ahead); break;
    case 11: micro(MAX_MR(nv) < 11 ? 1 : 11, nv, add, ARGS, ahead); break;
    default: micro(MAX_MR(nv) < 12 ? 1 : 12, nv, add, ARGS, ahead); break;
    }
}

static void set_1(PARAMETERS)
{
    instances(1, false, mr, ARGS, 0);
}
static void add_1(PARAMETERS)
{
    instances(1, true, mr, ARGS, 0);
}
static void set_2(PARAMETERS)
{
    instances(2, false, mr, ARGS, 0);
}
static void add_2(PARAMETERS)
{
    instances(2, true, mr, ARGS, 0);
}
#if MAX_NV == 4
static void set_3(PARAMETERS)
{
    instances(3, false, mr, ARGS, 0);
}
static void add_3(PARAMETERS)
{
    instances(3, true, mr, ARGS, 0);
}
static void set_4(PARAMETERS)
{
    instances(4, false, mr, ARGS, 0);
}
static void add_4(PARAMETERS)
{
    instances(4, true, mr, ARGS, 0);
}
static void (*const micros[][2])(PARAMETERS) = {
    {NULL}, {set_1, add_1}, {set_2, add_2}, {set_3, add_3}, {set_4, add_4}};
#else
static void (*const micros[][2])(PARAMETERS) = {{NULL}, {set_1, add_1}, {set_2, add_2}};
#endif

static void set_ahead(PARAMETERS, uintptr_t ahead)
{
    instances(MAX_NV, false, mr, ARGS, ahead);
}
static void add_ahead(PARAMETERS, uintptr_t ahead)
{
    instances(MAX_NV, true, mr, ARGS, ahead);
}

/* M rows in strips of at most `step`, as even as can be: 32 are 6, 6, 5, 5, 5, 5, not five times 6 and 2. */
typedef struct {
    int64_t each, more; /* rows of a strip; that many of the first ones have one more */
} strips;

INLINE strips strips_of(int64_t M, int64_t step)
{
    const int64_t n = M <= step ? 1 : (M + step - 1) / step, each = n == 1 ? M : M / n;
    return (strips){each, M - n * each};
}

/* Rows of the strip that begins at row r. */
INLINE int64_t strip_at(strips s, int64_t r)
{
    return s.each + (r < s.more * (s.each + 1));
}

static void product(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B,
                    int64_t ldb, real *C, int64_t ldc, bool add)
{
    const int64_t vectors = N / LANES, groups = (vectors + MAX_NV - 1) / MAX_NV;
    for (int64_t g = 0; g < groups; g++) {
        /* Groups likewise: 5 vectors are 3 and 2, not 4 and 1. */
        const int64_t first = groups == 1 ? 0 : vectors * g / groups;
        const int64_t nv = groups == 1 ? vectors : vectors * (g + 1) / groups - first;
        const strips cut = strips_of(M, MAX_MR(nv));
        for (int64_t r = 0, mr; r < M; r += mr) {
            mr = strip_at(cut, r);
            micros[nv][add](mr, K, A + r * ars, ars, aks, B + first * LANES, ldb, C + r * ldc + first * LANES,
                            ldc);
        }
    }
}

static void product_ahead(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks,
                          const real *B, int64_t ldb, real *C, int64_t ldc, bool add,
                          agi_prefetch_list *ahead)
{
    const strips cut = strips_of(M, MAX_MR(MAX_NV));
    const int64_t width = MAX_NV * LANES;
    int64_t i = 0;
    for (; ahead != NULL && i + width <= N; i += width) {
        for (int64_t r = 0, mr; r < M; r += mr) {
            mr = strip_at(cut, r);
            const uintptr_t lines = agi_prefetch_step(ahead, AHEAD_STEP * K);
            if (lines == 0) { /* the rest */
                product(M - r, width, K, A + r * ars, ars, aks, B + i, ldb, C + r * ldc + i, ldc, add);
                break;
            }
            (add ? add_ahead : set_ahead)(mr, K, A + r * ars, ars, aks, B + i, ldb, C + r * ldc + i, ldc,
                                          lines);
        }
    }
    if (i < N) {
        product(M, N - i, K, A, ars, aks, B + i, ldb, C + i, ldc, add);
    }
}

/* ---- The product for few queries ---- */

/* Lane r: the sum of the lanes of s[r]. Each time the halves of two vectors are added, and they become one. */
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

/* The products of n rows of K, LANES at most, and one of Q. */
INLINE vec row_sums(const int64_t n, const real *K, int64_t ldk, const real *q, int64_t D)
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

static void few_scores(real *T, int64_t ld, int64_t nj, int64_t W, const real *K, int64_t ldk, const real *Q,
                       int64_t ldq, int64_t ni, int64_t D, bool add)
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
            v_store(sums, n == LANES ? row_sums(LANES, rows, ldk, q, D) : row_sums(n, rows, ldk, q, D));
            for (int64_t r = 0; r < n; r++) {
                T[(j + r) * ld + i] += sums[r];
            }
        }
    }
}

#endif
