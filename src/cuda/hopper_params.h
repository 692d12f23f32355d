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

/* ---- Score features: see hopper_sets.h ---- */

enum { AGI_HOPPER_PAD = 256 }; /* rows that tiles reach beyond the ends of a sequence, and more */

/* What the kernels of a set need beside the call. */
typedef struct {
    float cap, minus_two_caps, cap_rate; /* c, -2 c, 2 log2(e) / c */
    float inverse_keep;                  /* 1 / (1 - p) */
    /* [B][H][relative_width], made by hopper_relative: what ALiBi and table add to a score, by
     * j - i + Nq + AGI_HOPPER_PAD */
    float *relative;
    /* [B][Hk][live_width], made by hopper_live: 0 if mask and bias hide the key from every query that would see it,
     * else 1 */
    uint8_t *live;
    int64_t relative_width, live_width;
} agi_hopper_features;

/* The parameter of hopper_relative and hopper_live. p.w.blocks: blocks per head. */
typedef struct {
    agi_cuda_params p;
    agi_hopper_features x;
} agi_hopper_before;

/* ---- forward ---- */

/* The parameter of a launch. Blocks take tiles of queries group by group of heads, in each group the last tile of every
 * head first, which with causal is the longest. */
typedef struct {
    agi_cuda_tensor_map q, k, v;
    agi_cuda_tensor_map o, o_low; /* if stores_boxes; o_low only if the call has it */
    agi_cuda_params p;            /* p.w.blocks: tiles of queries per head */
    agi_hopper_features x;
    int64_t heads_together; /* heads of a group, all sequences counted */
    int32_t stores_boxes;   /* o and o_low are stored by the copy engine, else row by row */
} agi_hopper_forward;

/* ---- vjp ---- */

typedef struct {
    agi_cuda_tensor_map q, k, v, d_o;
    agi_cuda_params p; /* p.w.blocks: blocks of rows per head */
    agi_hopper_features x;
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
#define AGI_HOPPER_backward(X, format) \
    X(hopper_dkdv, format, 64, 2, 64, 4) \
    X(hopper_dkdv, format, 128, 2, 64, 3) \
    X(hopper_dq, format, 64, 2, 64, 4) \
    X(hopper_dq, format, 128, 2, 64, 3)
/* clang-format on */
#define AGI_HOPPER_FORMATS(X) X(bf16) X(f16)

/* Shared memory in bytes: up to 1,024 of them to begin at a multiple of 1,024, the tiles, the barriers. */
#define AGI_HOPPER_SHARED(D, CONSUMERS, N, STAGES)                                                           \
    (1024 + 2 * (D) * (64 * (CONSUMERS) + 2 * (STAGES) * (N)) + 8 * (1 + 4 * (STAGES)))

/* Of the kernels of vjp: two matrices of either side, statistics of the queries. */
#define AGI_HOPPER_BACKWARD_SHARED(D, CONSUMERS, N, STAGES)                                                  \
    (1024 + 4 * (D) * (64 * (CONSUMERS) + (STAGES) * (N)) + (STAGES) * (N)*4 * AGI_CUDA_STATS +              \
     8 * (1 + 2 * (STAGES)))

#endif
