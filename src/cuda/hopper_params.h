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

/* A boolean mask by tiles of so many queries and keys; the class of a tile, as bits: some of its pairs are seen, some
 * are hidden. */
enum { AGI_HOPPER_CLASS = 64, AGI_TILE_SEEN = 1, AGI_TILE_HIDDEN = 2 };

/* What the kernels of a set need beside the call. */
typedef struct {
    float cap, minus_two_caps, cap_rate; /* c, -2 c, 2 log2(e) / c */
    float inverse_keep;                  /* 1 / (1 - p) */
    /* [B][H][relative_width], made by hopper_relative: what ALiBi and table add to a score, by
     * j - i + Nq + AGI_HOPPER_PAD */
    float *relative;
    /* Made by hopper_live: 0 if mask and bias hide the key from every query that would see it, else 1. That of key j is
     * at b live_batch + hk live_head + j; 0: all sequences, or all kv heads, have the same. */
    uint8_t *live;
    int64_t relative_width, live_width;
    int64_t live_batch, live_head;
    /* [class_tiles], made by hopper_classes: the class of each tile of the mask, by batch, head, tile of queries, tile
     * of keys. On an axis along which the mask is the same there is one, but not on the last, which is filled up to a
     * multiple of 4 with tiles that have nothing. */
    uint8_t *classes;
    int32_t class_tiles[4];
    int32_t
        mask_in_chunks; /* 16 keys of the mask are 16 bytes in a row, aligned, and no row ends among them */
} agi_hopper_features;

/* With a mask: a step of vjp or vjp_jvp in one kernel that is not left out. */
typedef struct {
    AGI_ALIGNED(8) int32_t tile; /* of queries, in its sequence; -1: there are no more steps */
    uint32_t about;              /* see visit_finder of kernels/hopper_visits.cuh */
} agi_hopper_visit;

/* The parameter of hopper_relative, hopper_live and hopper_classes. p.w.blocks: blocks per head, of the first two. */
typedef struct {
    agi_cuda_params p;
    agi_hopper_features x;
} agi_hopper_before;

/* ---- forward ---- */

/* The parameter of a launch. Tiles of queries are numbered group by group of heads, in each group the last tile of
 * every head first, which with causal is the longest. Of n blocks each begins with the tile of its own number; then it
 * takes every n-th, or, if tiles may differ in length, draws: the next number is n and what the counter counts. */
typedef struct {
    agi_cuda_tensor_map q, k, v;
    agi_cuda_tensor_map o, o_low; /* if stores_boxes; o_low only if the call has it */
    agi_cuda_tensor_map bias;     /* if bias_in_boxes: as in agi_hopper_ring */
    agi_cuda_params p;            /* p.w.blocks: tiles of queries per head */
    agi_hopper_features x;
    int32_t heads_together; /* heads of a group, all sequences counted */
    int32_t tiles;          /* of all heads */
    int64_t *drawn;         /* the counter; NULL: every n-th */
    int32_t stores_boxes;   /* o and o_low are stored by the copy engine, else row by row */
    int32_t bias_in_boxes;  /* read by the copy engine, else entry by entry */
} agi_hopper_forward;

/* float32's: the two planes of each matrix. The second planes have the places of tangents: p.m[AGI_CUDA_TQ] is
 * p.m[AGI_CUDA_Q], and so on. */
typedef struct {
    agi_cuda_tensor_map q[2], k[2], v[2];
    agi_cuda_params p; /* as in agi_hopper_forward */
    int64_t heads_together;
    float scale; /* p.scale */
} agi_hopper_planes;

/* ---- jvp ---- */

/* A matrix and its tangent, in this order; an absent tangent has the map of its matrix. There is no room for the maps
 * of o_low and to_low, nor for one more beside that of the bias: the parameters of a launch have 4 KB. */
typedef struct {
    agi_cuda_tensor_map q[2], k[2], v[2];
    agi_cuda_tensor_map o;    /* if o_in_boxes; if tbias_in_boxes that of the bias's tangent */
    agi_cuda_tensor_map to;   /* if to_in_boxes */
    agi_cuda_tensor_map bias; /* if bias_in_boxes: as in agi_hopper_ring, as is that of its tangent */
    agi_cuda_params p;        /* as in agi_hopper_forward */
    agi_hopper_features x;
    const float *relative_tangents; /* as x.relative, of the table's tangent; NULL: the call has none */
    int32_t heads_together;
    int16_t o_in_boxes, to_in_boxes;       /* stored by the copy engine, else row by row */
    int16_t bias_in_boxes, tbias_in_boxes; /* read by the copy engine, else entry by entry */
} agi_hopper_jvp;

/* ---- vjp ---- */

typedef struct {
    agi_cuda_tensor_map q, k, v, d_o;
    agi_cuda_params p; /* p.w.blocks: blocks of rows per head */
    agi_hopper_features x;
} agi_hopper_backward;

/* vjp for head sizes above 128 (kernels/hopper_wide.cu), one of its two kernels. */
typedef struct {
    agi_cuda_tensor_map q, k, v, d_o;
    agi_cuda_tensor_map results[2]; /* dV and dK, or dQ: if in_boxes */
    agi_cuda_params p;              /* p.w.blocks: blocks of rows per head */
    int32_t in_boxes[2];            /* stored by the copy engine, else row by row */
} agi_hopper_wide;

/* vjp in one kernel (kernels/hopper_ring.cu), and what comes before it. Tiles of queries are counted over all sequences
 * of a head; each has two halves. */
typedef struct {
    agi_cuda_tensor_map q, k, v, d_o;
    agi_cuda_tensor_map dk, dv; /* if dk_in_boxes, dv_in_boxes */
    agi_cuda_tensor_map bias;   /* if bias_in_boxes: rows are queries, channels keys; boxes of 64 x 64 */
    agi_cuda_params p;          /* p.w.blocks, for the statistics: tiles of queries per head and sequence */
    agi_hopper_features x;
    /* [H][tiles][N]: L in powers of two, D. If there is a bias, scores and with them L may be so large that all its
     * digits are needed: then lse is L, rounded, and lse_rest is -log2 e times what rounding took from it. */
    float *lse, *delta, *lse_rest;
    float *sums;      /* [H][tiles][2][N * D / 2]: dQ, as the registers of a warpgroup have it */
    int32_t *passes;  /* [H][tiles][2]: how many blocks have added to the sum */
    int32_t *tickets; /* how many items have been taken, in a band */
    /* If there is a mask, made by hopper_visits: for each sequence, head of the mask and block of keys the steps that
     * it leaves, in the order of the block's walk, and one that is not there. */
    agi_hopper_visit *visits;
    int32_t key_blocks, most_visits; /* of a head; of a block, with that last one */
    int64_t tiles;
    float scale_log2;                 /* scale * log2 e */
    int32_t is_ring;                  /* 1: every query sees every key; 0: a band */
    int32_t ring, groups;             /* blocks of a group, groups per head */
    int32_t dk_in_boxes, dv_in_boxes; /* stored by the copy engine, else row by row */
    int32_t dq_in_pairs;              /* two channels at a time, else row by row */
    int32_t in_chunks;                /* O and dO can be read 16 bytes at a time */
    int32_t bias_in_boxes;            /* read by the copy engine, else entry by entry */
} agi_hopper_ring;

/* The gradient of the bias (kernels/hopper_dbias.cu): blocks by part, tile of the bias. p.w.blocks: tiles of keys;
 * p.w.parts: of the walk over the sequences and heads that share a tile. */
typedef struct {
    agi_cuda_tensor_map q, k, v, d_o;
    agi_cuda_params p;
    agi_hopper_features x;
    const float *lse, *delta, *lse_rest; /* those of agi_hopper_ring; NULL: p.stats has them */
    int64_t tiles;                       /* likewise, of `tile` queries each */
    float *sums;   /* [parts][the bias's shape]; NULL: one part, stored into dB at once */
    int64_t steps; /* of a part */
    int32_t tile;
} agi_hopper_dbias;

/* ---- vjp_jvp ---- */

typedef struct {
    agi_cuda_tensor_map maps[AGI_CUDA_TDO + 1]; /* by operand; of one that the call lacks: that of Q or K */
    agi_cuda_params p;                          /* p.w.blocks: blocks of rows per head */
} agi_hopper_second;

/* vjp_jvp in one kernel (kernels/hopper_second_ring.cu), and the statistics before it: fields of the same names as in
 * agi_hopper_ring have the same meaning, with tdQ for dQ. There is no room for maps of results. */
typedef struct {
    agi_cuda_tensor_map maps[AGI_CUDA_TDO + 1]; /* as in agi_hopper_second */
    agi_cuda_params p;
    agi_hopper_features x;
    const float *relative_tangents; /* as x.relative, of the table's tangent; NULL: the call has none */
    float *rows;                    /* [H][tiles][4][N]: L, in powers of two if there is no bias, mu, D, tD */
    float *lse_rest;                /* [H][tiles][N] */
    float *sums;                    /* of tdQ, with channels as the rows of the registers */
    int32_t *passes, *tickets;
    agi_hopper_visit *visits; /* made by hopper_second_visits */
    int32_t key_blocks, most_visits;
    int64_t tiles;
    float scale_log2;
    int32_t is_ring, ring, groups;
    int32_t tdq_in_pairs, tdk_in_pairs, tdv_in_pairs; /* two channels at a time, else row by row */
    int32_t in_chunks; /* O, dO and their tangents can be read 16 bytes at a time */
} agi_hopper_second_ring;

/* ---- The kernels ----
 *
 * A block has 64 rows, queries or keys, for each of CONSUMERS warpgroups and one warpgroup more, which only copies. It
 * walks over the other side in tiles of N rows, STAGES of which are in shared memory at once. D: the head size, smaller
 * ones are filled up with zeros. X(map, format, D, CONSUMERS, N, STAGES) */
/* clang-format off */
#define AGI_HOPPER_forward(X, format) \
    X(hopper_forward, format, 64, 3, 112, 4) \
    X(hopper_forward_fine, format, 64, 4, 64, 4) \
    X(hopper_forward, format, 128, 2, 128, 2) \
    X(hopper_forward, format, 256, 2, 80, 2)
#define AGI_HOPPER_forward_f32(X, format) \
    X(hopper_forward, format, 64, 3, 64, 4) \
    X(hopper_forward, format, 128, 2, 64, 2)
#define AGI_HOPPER_jvp(X, format) \
    X(hopper_jvp, format, 64, 2, 112, 2) \
    X(hopper_jvp, format, 128, 2, 64, 2)
#define AGI_HOPPER_backward(X, format) \
    X(hopper_dkdv, format, 64, 2, 64, 4) \
    X(hopper_dkdv, format, 128, 2, 64, 3) \
    X(hopper_dq, format, 64, 2, 64, 4) \
    X(hopper_dq, format, 128, 2, 64, 3)
/* Those of hopper_wide.cu: X(map, format, D, rows of a block, N, STAGES); two warpgroups compute. */
#define AGI_HOPPER_wide(X, format) \
    X(hopper_dkdv, format, 256, 64, 64, 2) \
    X(hopper_dq, format, 256, 128, 48, 2)
#define AGI_HOPPER_ring(X, format) \
    X(hopper_ring, format, 64, 2, 128, 2) \
    X(hopper_ring, format, 128, 2, 64, 2)
#define AGI_HOPPER_second(X, format) \
    X(hopper_tdkdv, format, 64, 2, 64, 4) \
    X(hopper_tdkdv, format, 128, 2, 32, 2) \
    X(hopper_tdq, format, 64, 2, 64, 4) \
    X(hopper_tdq, format, 128, 2, 48, 2)
#define AGI_HOPPER_second_ring(X, format) \
    X(hopper_second_ring, format, 64, 2, 64, 2) \
    X(hopper_second_ring, format, 128, 2, 32, 2)
/* clang-format on */
#define AGI_HOPPER_FORMATS(X) X(bf16) X(f16)

/* Shared memory in bytes: up to 1,024 of them to begin at a multiple of 1,024, the tiles, the barriers, the places of
 * tiles of queries. Two tiles of queries at once, where there is room. */
#define AGI_HOPPER_PLACES 512
#define AGI_HOPPER_Q_SLOTS(D) ((D) > 128 ? 1 : 2)
#define AGI_HOPPER_SHARED(D, CONSUMERS, N, STAGES)                                                           \
    (1024 + 2 * (D) * (AGI_HOPPER_Q_SLOTS(D) * 64 * (CONSUMERS) + 2 * (STAGES) * (N)) +                      \
     8 * (2 * AGI_HOPPER_Q_SLOTS(D) + 4 * (STAGES)) + AGI_HOPPER_PLACES)
/* Of forward, beside that: ones behind each tile of V, for the sums of the weights. */
#define AGI_HOPPER_HAS_ONES(features, D) ((D) <= 128 && ((features) & (AGI_HAS_BIAS | AGI_HAS_DROPOUT)) == 0)
#define AGI_HOPPER_ONES(features, D, N, STAGES) (AGI_HOPPER_HAS_ONES(features, D) ? (STAGES) * (N)*128 : 0)
/* Beside each tile of keys, in sets with a bias: the bias of the block's queries and of the keys, 64 at a time. */
#define AGI_HOPPER_BIAS_TILE(CONSUMERS, N) (64 * (CONSUMERS)*128 * (((N) + 63) / 64))

/* Of jvp, which has the tangent of each matrix, and of float32's forward, which has two planes; where the block is. */
enum { AGI_HOPPER_PLACE = 128 };
#define AGI_HOPPER_JVP_SHARED(D, CONSUMERS, N, STAGES)                                                       \
    (1024 + 4 * (D) * (64 * (CONSUMERS) + 2 * (STAGES) * (N)) + 8 * (1 + 4 * (STAGES)) + AGI_HOPPER_PLACE)
/* Of its sets, beside that: a tile of the bias and of its tangent with two barriers; notes of the producer. */
#define AGI_HOPPER_JVP_SET_SHARED(features, CONSUMERS, N, STAGES)                                            \
    (((features)&AGI_HAS_BIAS ? 2 * AGI_HOPPER_BIAS_TILE(CONSUMERS, N) + 16 : 0) +                           \
     ((features)&AGI_HAS_MASK ? 16 * (STAGES) : 0))

/* Of the kernels of vjp and vjp_jvp: so many matrices of either side, statistics of the queries if STATS is 1, notes of
 * the producer. */
#define AGI_HOPPER_NOTES 256
#define AGI_HOPPER_OWNERS_SHARED(MATRICES, STATS, D, CONSUMERS, N, STAGES)                                   \
    (1024 + 2 * (MATRICES) * (D) * (64 * (CONSUMERS) + (STAGES) * (N)) +                                     \
     (STATS) * (STAGES) * (N)*4 * AGI_CUDA_STATS + 8 * (1 + 2 * (STAGES)) + AGI_HOPPER_NOTES)
#define AGI_HOPPER_STATS_hopper_dkdv 1
#define AGI_HOPPER_STATS_hopper_dq 0
#define AGI_HOPPER_STATS_hopper_tdkdv 1
#define AGI_HOPPER_STATS_hopper_tdq 0

/* Of vjp for head sizes above 128: with STATS P of the pairs and three numbers of each query beside each tile; three
 * rings. */
#define AGI_HOPPER_WIDE_SHARED(STATS, D, ROWS, N, STAGES)                                                    \
    (1024 + 4 * (D) * ((ROWS) + (STAGES) * (N)) + (STATS) * (STAGES) * (N)*4 * ((ROWS) + 3) +                \
     8 * (1 + 6 * (STAGES)) + AGI_HOPPER_NOTES)

/* Of the gradient of the bias: stages of Q, dO, K, V and the statistics of the queries, with two barriers and a note of
 * each. */
#define AGI_HOPPER_DBIAS_NOTE 112
#define AGI_HOPPER_DBIAS_SHARED(D, CONSUMERS, N, STAGES)                                                     \
    (1024 + (STAGES) * (4 * (D) * (64 * (CONSUMERS) + (N)) + 64 * (CONSUMERS)*4 * AGI_CUDA_STATS + 16 +      \
                        AGI_HOPPER_DBIAS_NOTE))

/* Of vjp in one kernel: K and V of 128 keys, two tiles of Q and dO, twice dS, buffers of dQ, L, D and the rest of L of
 * two tiles, the barriers, two walks and the notes of two steps. At head sizes above 64 that is all there is, 227 KB.
 * Shared memory begins at a multiple of 16. */
enum {
    AGI_HOPPER_RING_KEYS = 128, /* of a block */
    AGI_HOPPER_RING_WALK = 144, /* bytes of a walk, of a note */
    AGI_HOPPER_RING_NOTE = 12
};
#define AGI_HOPPER_RING_STAGED(D) ((D) == 128 ? 2 : 1)
#define AGI_HOPPER_RING_SHARED(D, CONSUMERS, N, STAGES)                                                      \
    (1008 + 4 * 128 * (D) + 8 * (N) * (D) + 4 * 128 * (N) + AGI_HOPPER_RING_STAGED(D) * 4 * (N) * (D) +      \
     24 * (N) + 120 + AGI_HOPPER_RING_STAGED(D) * 48 + 2 * AGI_HOPPER_RING_WALK + 2 * AGI_HOPPER_RING_NOTE)

/* Of vjp_jvp in one kernel: K, tK, V, tV of 128 keys, two tiles of Q, tQ, dO, tdO, dZ and tdZ, at head size 64 twice,
 * one tile of tdQ, four numbers for each query of two tiles, the barriers, two walks and the notes of two steps. */
#define AGI_HOPPER_SECOND_SCORES(D) ((D) == 128 ? 1 : 2)
#define AGI_HOPPER_SECOND_RING_SHARED(D, CONSUMERS, N, STAGES)                                               \
    (1024 + 8 * 128 * (D) + 16 * (N) * (D) + AGI_HOPPER_SECOND_SCORES(D) * 4 * 128 * (N) + 4 * (N) * (D) +   \
     32 * (N) + 176 + 2 * AGI_HOPPER_RING_WALK + 2 * AGI_HOPPER_RING_NOTE)
/* Beside that, in sets with a bias: the rest of L of each query. */
#define AGI_HOPPER_SECOND_REST(features, N) ((features)&AGI_HAS_BIAS ? 8 * (N) : 0)

#endif
