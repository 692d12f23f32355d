/* Included before emulated_kernels.cpp: forward, decode and vjp at one head size, for a copy of the kernels that is
 * quick to build. Their numbers are those that they have among all kernels. */
#include "cuda/kernel_list.h"

#undef AGI_CUDA_ROWWISE
#undef AGI_CUDA_BACKWARD
#define AGI_CUDA_ROWWISE(P, A, O, format, class)                                                             \
    P(forward, format, 32, 32, 2, 4, 64, 2) O(decode, format, 32, 32, 1, 1, 64, 2)
#define AGI_CUDA_BACKWARD(P, A, O, format, class)                                                            \
    P(dkdv, format, 32, 32, 1, 4, 32, 2) P(dq, format, 32, 32, 1, 4, 32, 2)
