/* What host and the kernels for Hopper agree on, beside params.h: tensor maps, the parameters of a launch and the list
 * of kernels. Plain C and CUDA C++; knows no driver and no plan. */
#ifndef AGI_CUDA_HOPPER_PARAMS_H
#define AGI_CUDA_HOPPER_PARAMS_H

#include "cuda/params.h"

#ifdef __cplusplus
#define AGI_ALIGNED(bytes) alignas(bytes)
#else
#define AGI_ALIGNED(bytes) _Alignas(bytes)
#endif

/* A tensor as the copy engine sees it: the driver's CUtensorMap, made of an agi_cuda_box_view. */
typedef struct {
    AGI_ALIGNED(128) uint64_t words[16];
} agi_cuda_tensor_map;

/* 16-bit numbers by [batch][head][row][channel], which are copied in boxes of `rows` rows and 64 channels. What a box
 * has outside of the tensor is zero. */
typedef struct {
    void *data;         /* aligned to 16 bytes */
    int64_t size[4];    /* batch, heads, rows, channels: all at least 1 */
    int64_t strides[3]; /* of the first three axes, in numbers: multiples of 8 */
    int32_t rows;
    int32_t dtype;
} agi_cuda_box_view;

/* ---- forward ---- */

/* The parameter of a launch. Blocks take tiles of queries group by group of heads, in each group the last tile of every
 * head first, which with causal is the longest. */
typedef struct {
    agi_cuda_tensor_map q, k, v;
    agi_cuda_tensor_map o, o_low; /* if stores_boxes; o_low only if the call has it */
    agi_cuda_params p;            /* p.w.blocks: tiles of queries per head */
    int64_t heads_together;       /* heads of a group, all sequences counted */
    int32_t stores_boxes;         /* o and o_low are stored by the copy engine, else row by row */
} agi_hopper_forward;

/* ---- jvp ---- */

/* A matrix and its tangent, in this order; an absent tangent has the map of its matrix. There is no room for the maps
 * of o_low and to_low: the parameters of a launch have 4 KB. */
typedef struct {
    agi_cuda_tensor_map q[2], k[2], v[2];
    agi_cuda_tensor_map o, to; /* those that are stored by the copy engine */
    agi_cuda_params p;         /* as in agi_hopper_forward */
    int64_t heads_together;
    int32_t o_in_boxes, to_in_boxes; /* stored by the copy engine, else row by row */
} agi_hopper_jvp;

/* ---- vjp ---- */

typedef struct {
    agi_cuda_tensor_map q, k, v, d_o;
    agi_cuda_params p; /* p.w.blocks: blocks of rows per head */
} agi_hopper_backward;

/* ---- The kernels ----
 *
 * A block has 64 rows, queries or keys, for each of CONSUMERS warpgroups and one warpgroup more, which only copies. It
 * walks over the other side in tiles of N rows, STAGES of which are in shared memory at once. D: the head size, smaller
 * ones are filled up with zeros. X(map, format, D, CONSUMERS, N, STAGES) */
/* clang-format off */
#define AGI_HOPPER_forward(X, format) \
    X(hopper_forward, format, 64, 3, 112, 4) \
    X(hopper_forward, format, 128, 2, 128, 2)
#define AGI_HOPPER_jvp(X, format) \
    X(hopper_jvp, format, 64, 2, 112, 2) \
    X(hopper_jvp, format, 128, 2, 64, 2)
#define AGI_HOPPER_backward(X, format) \
    X(hopper_dkdv, format, 64, 2, 64, 4) \
    X(hopper_dkdv, format, 128, 2, 64, 3) \
    X(hopper_dq, format, 64, 2, 64, 4) \
    X(hopper_dq, format, 128, 2, 64, 3)
/* clang-format on */
#define AGI_HOPPER_FORMATS(X) X(bf16) X(f16)

enum { AGI_HOPPER_PLACE = 128 };

/* Shared memory in bytes: up to 1,024 of them to begin at a multiple of 1,024, the tiles, the barriers, where the block
 * is. MATRICES: 1 in forward, 2 in jvp, which has the tangent of each. */
#define AGI_HOPPER_SHARED(MATRICES, D, CONSUMERS, N, STAGES)                                                 \
    (1024 + 2 * (MATRICES) * (D) * (64 * (CONSUMERS) + 2 * (STAGES) * (N)) + 8 * (1 + 4 * (STAGES)) +        \
     AGI_HOPPER_PLACE)

/* Of the kernels of vjp: two matrices of either side, statistics of the queries. */
#define AGI_HOPPER_BACKWARD_SHARED(D, CONSUMERS, N, STAGES)                                                  \
    (1024 + 4 * (D) * (64 * (CONSUMERS) + (STAGES) * (N)) + (STAGES) * (N)*4 * AGI_CUDA_STATS +              \
     8 * (1 + 2 * (STAGES)))

#endif
