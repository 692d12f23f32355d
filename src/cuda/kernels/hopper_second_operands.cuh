/* The matrices of vjp_jvp on Hopper, for box_copy (hopper_tiles.cuh). Call: a parameter with `maps` by operand. */
#pragma once
#include "cuda/kernels/hopper_verbs.cuh"

/* The matrices of a side, in this order. */
enum { QK, T_QK, OV, T_OV, MATRICES }; /* Q or K, tQ or tK, dO or V, tdO or tV */

template <class Call> VERB int operand_of(const Call &, bool keys, int matrix)
{
    return matrix == QK     ? (keys ? AGI_CUDA_K : AGI_CUDA_Q)
           : matrix == T_QK ? (keys ? AGI_CUDA_TK : AGI_CUDA_TQ)
           : matrix == OV   ? (keys ? AGI_CUDA_V : AGI_CUDA_DO)
                            : (keys ? AGI_CUDA_TV : AGI_CUDA_TDO);
}
template <class Call> VERB const agi_cuda_tensor_map &map_of(const Call &f, bool keys, int matrix)
{
    return f.maps[operand_of(f, keys, matrix)];
}
