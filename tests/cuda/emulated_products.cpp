/* The sums of the emulated tensor core's products, compiled for speed. */
#define AGI_EMULATE
#include "cuda/emulate.h"

typedef double eight __attribute__((vector_size(64)));

/* Compiled for the processors of today too; the results are the same, as no product is fused with its sum. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define FAST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FAST
#endif

FAST static void add_products(double *sum, const double *a, const double *b, int rows, int K)
{
    for (int row = 0; row < rows; row++) {
        eight s, of_b;
        memcpy(&s, sum + row * 8, sizeof s);
        for (int k = 0; k < K; k++) {
            memcpy(&of_b, b + k * 8, sizeof of_b);
            s += a[row * K + k] * of_b;
        }
        memcpy(sum + row * 8, &s, sizeof s);
    }
}

template <int ROWS, int K>
void emulate_add_products(double (&sum)[ROWS][8], const double (&a)[ROWS][K], const double (&b)[K][8])
{
    add_products(sum[0], a[0], b[0], ROWS, K);
}
template void emulate_add_products(double (&)[16][8], const double (&)[16][16], const double (&)[16][8]);
template void emulate_add_products(double (&)[16][8], const double (&)[16][8], const double (&)[8][8]);
template void emulate_add_products(double (&)[64][8], const double (&)[64][16], const double (&)[16][8]);
