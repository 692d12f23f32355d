/* The sums of the emulated tensor core's products, compiled for speed. */
#define AGI_EMULATE
#include "cuda/emulate.h"

typedef double eight __attribute__((vector_size(64)));

template <int ROWS, int K>
void emulate_add_products(double (&sum)[ROWS][8], const double (&a)[ROWS][K], const double (&b)[K][8])
{
    for (int row = 0; row < ROWS; row++) {
        eight s, of_b;
        memcpy(&s, sum[row], sizeof s);
        for (int k = 0; k < K; k++) {
            memcpy(&of_b, b[k], sizeof of_b);
            s += a[row][k] * of_b;
        }
        memcpy(sum[row], &s, sizeof s);
    }
}
template void emulate_add_products(double (&)[16][8], const double (&)[16][16], const double (&)[16][8]);
template void emulate_add_products(double (&)[16][8], const double (&)[16][8], const double (&)[8][8]);
template void emulate_add_products(double (&)[64][8], const double (&)[64][16], const double (&)[16][8]);
