/* What host and kernels agree on: the parameters of a launch and the list of kernels. Plain C and CUDA C++; knows no
 * driver and no plan.
 *
 * Every kernel of a map takes the same struct, agi_cuda_params, by value: the call's tensors and lists, the problem's
 * constants and the buffers in the workspace. It is below the 4 KB that every driver takes, and a captured graph keeps
 * it. */
#ifndef AGI_CUDA_PARAMS_H
#define AGI_CUDA_PARAMS_H

#include <stdint.h>

#include "attngrad.h"

enum {
    AGI_CUDA_SCALE_ROWS = 64,  /* rows of a matrix that share one power of two; the longest tile */
    AGI_CUDA_STATS = 8,        /* numbers per query in `stats` */
    AGI_CUDA_STATS_ROWS = 4,   /* queries that a warp makes them for */
    AGI_CUDA_PAIR_TILE = 32,   /* queries and keys of a tile of the gradients of bias and table */
    AGI_CUDA_SPLIT = 512,      /* keys of a split of decode */
    AGI_CUDA_DECODE_ROWS = 16, /* of a query and a head: rows of a tile of decode */
    AGI_CUDA_UPLOAD = 448      /* int64 values that one launch carries: together with the rest below 4 KB */
};

/* Shared memory of a stream kernel, in bytes: rows of `numbers` numbers of `bytes` bytes, padded by a chunk or two so
 * that neighbouring rows begin at different banks; OWN matrices of own_rows rows, `stages` times STREAM matrices of
 * stream_rows rows and, per stream row, its statistics. */
#define AGI_CUDA_PITCH(bytes, numbers) ((bytes) * (numbers) + ((bytes) == 8 ? 32 : 16))
#define AGI_CUDA_SHARED(planes, bytes, numbers, own, own_rows, stream, stream_rows, stages)                  \
    ((planes)*AGI_CUDA_PITCH(bytes, numbers) * ((own) * (own_rows) + (stages) * (stream) * (stream_rows)) +  \
     (stages) * (stream_rows)*AGI_CUDA_STATS * ((bytes) == 8 ? 8 : 4))

/* The inputs of the products. */
enum {
    AGI_CUDA_Q,
    AGI_CUDA_K,
    AGI_CUDA_V,
    AGI_CUDA_DO,
    AGI_CUDA_TQ,
    AGI_CUDA_TK,
    AGI_CUDA_TV,
    AGI_CUDA_TDO,
    AGI_CUDA_SQ,
    AGI_CUDA_SK,
    AGI_CUDA_SV,
    AGI_CUDA_OPERANDS
};

/* A matrix as the loops read it: rows of 16-byte chunks, channel after channel. It is the caller's own memory if that
 * has this form; else a copy in the workspace, made by `prepare`, with the rows of each sequence beginning at a
 * multiple of AGI_CUDA_SCALE_ROWS. A number is (sum of its planes) * inverse[head][row / AGI_CUDA_SCALE_ROWS]. */
typedef struct {
    const void *data;           /* NULL: absent, zero */
    int64_t batch, head, plane; /* strides in elements */
    int64_t row;
    const float *inverse; /* [head][rows / AGI_CUDA_SCALE_ROWS]; NULL: 1 */
    int32_t width;        /* channels that exist in memory, whole chunks */
    int32_t copied;       /* 1: in the workspace */
} agi_cuda_matrix;

/* What differs between the launches of a call. */
typedef struct {
    int64_t blocks;   /* of rows per head; statistics: warps per head; decode and join: splits of the keys */
    int32_t parts;    /* blocks that share the columns of a result; of decode: tiles of queries */
    int32_t operands; /* prepare: a bit per operand; statistics: 1: outputs are read by 16 bytes */
} agi_cuda_part;

/* The call. Strides of axes of size 1 are zero in every tensor of `a`, and tensors that the map does not use are
 * absent; its lists are in device memory. */
typedef struct {
    ag_args a;
    agi_cuda_matrix m[AGI_CUDA_OPERANDS];
    int64_t q_rows, k_rows; /* rows of copies and of `stats`, all sequences together */
    void *stats;            /* [H][q_rows][AGI_CUDA_STATS]: see row_stats in kernels/stream.cuh */
    double *
        diagonals; /* [B][H][diagonal_tiles][64]: of the tiles of AGI_CUDA_PAIR_TILE queries and keys whose indices
                          differ by one number, the sums of dS or tdS with equal j - i */
    int64_t diagonal_tiles;
    void *splits; /* decode: [B][H][Nq][splits][Dv + 2]: O', the maximum and the sum of a split of the keys */
    const int32_t *buckets; /* device memory; NULL: identity */
    const double *slopes;   /* device memory; NULL: no ALiBi */

    int64_t B, Nq, Nk;
    int64_t q_total, kv_total; /* AG_PACKED */
    int32_t H, Hk, group;      /* group = H / Hk */
    int32_t Dk, Dv;
    uint32_t flags; /* of the problem */
    int32_t bottom_right;
    int32_t dtype, out_dtype, grad_dtype, aux_dtype;
    int32_t map; /* agi_map */
    int32_t given_o;
    double scale, softcap, keep; /* keep: 1 - dropout */
    uint64_t drop_below;         /* a weight is dropped if its random word is below this; 0: no dropout */
    int64_t window_left, window_right; /* -1: unbounded */
    int64_t bias_size[4];
    int64_t table_radius, table_buckets;
    int32_t table_heads;
    int64_t head_offset;
    agi_cuda_part w;
} agi_cuda_params;

/* Lists in host memory, on their way to the workspace. */
typedef struct {
    int64_t *to;
    int64_t count;
    int64_t values[AGI_CUDA_UPLOAD];
} agi_cuda_upload;

typedef struct {
    ag_merge_args a; /* strides of axes of size 1 are zero */
    int64_t size[4]; /* of o */
    int32_t out_dtype;
} agi_cuda_merge;

/* ---- The kernels ----
 *
 * A block of a stream kernel owns WARPS * M * 16 rows of one side and walks over the other in tiles of N rows, STAGES
 * of which are in shared memory at once. D: the head size, smaller ones are padded with zeros; 0: any, in chunks of
 * AGI_CUDA_CHUNK_format channels. C: columns of the results that a block sums; D / C blocks share the columns.
 * Full kernels have M = 1. X(map, format, D, C, M, WARPS, N, STAGES) */
/* clang-format off */
#define AGI_CUDA_STREAM_forward_16(X, format) \
    X(forward, format, 32, 32, 2, 4, 64, 2) \
    X(forward, format, 64, 64, 2, 4, 64, 2) \
    X(forward, format, 128, 128, 2, 4, 32, 2) \
    X(forward, format, 256, 256, 1, 4, 32, 1)
#define AGI_CUDA_STREAM_one_16(X, format) \
    X(forward_short, format, 32, 32, 1, 4, 64, 1) \
    X(forward_short, format, 64, 64, 1, 4, 64, 1) \
    X(forward_short, format, 128, 128, 1, 4, 32, 2) \
    X(decode, format, 32, 32, 1, 1, 64, 2) \
    X(decode, format, 64, 64, 1, 1, 64, 2) \
    X(decode, format, 128, 128, 1, 1, 32, 2) \
    X(decode, format, 256, 256, 1, 1, 32, 2)
#define AGI_CUDA_STREAM_one_f32(X, format) \
    X(forward_short, format, 32, 32, 1, 4, 64, 1) \
    X(forward_short, format, 64, 64, 1, 4, 32, 2) \
    X(decode, format, 32, 32, 1, 1, 64, 2) \
    X(decode, format, 64, 64, 1, 1, 32, 2) \
    X(decode, format, 128, 128, 1, 1, 16, 2)
#define AGI_CUDA_STREAM_one_f64(X, format) \
    X(decode, format, 32, 32, 1, 1, 32, 2) \
    X(decode, format, 64, 64, 1, 1, 32, 2) \
    X(decode, format, 128, 128, 1, 1, 16, 2)
#define AGI_CUDA_STREAM_forward_f32(X, format) \
    X(forward, format, 32, 32, 2, 4, 64, 2) \
    X(forward, format, 64, 64, 2, 4, 32, 2) \
    X(forward, format, 128, 128, 1, 4, 32, 2) \
    X(forward, format, 256, 256, 1, 4, 16, 2)
#define AGI_CUDA_STREAM_forward_f64(X, format) \
    X(forward, format, 32, 32, 1, 4, 32, 2) \
    X(forward, format, 64, 64, 1, 4, 32, 1) \
    X(forward, format, 128, 128, 1, 4, 16, 1)

/* The other maps of queries: jvp, jvp that is given o, jvp_jvp. */
#define AGI_CUDA_STREAM_rows_16(X, map, format) \
    X(map, format, 32, 32, 1, 4, 32, 2) \
    X(map, format, 64, 64, 1, 4, 32, 2) \
    X(map, format, 128, 128, 1, 4, 16, 2)
#define AGI_CUDA_STREAM_rows_f32(X, map, format) \
    X(map, format, 32, 32, 1, 4, 32, 2) \
    X(map, format, 64, 64, 1, 4, 16, 2) \
    X(map, format, 128, 128, 1, 4, 16, 1)
#define AGI_CUDA_STREAM_rows_f64(X, map, format) \
    X(map, format, 32, 32, 1, 4, 16, 2) \
    X(map, format, 64, 64, 1, 4, 16, 1)

/* vjp: dkdv, dq. */
#define AGI_CUDA_STREAM_vjp_16(X, map, format) \
    X(map, format, 32, 32, 1, 4, 32, 2) \
    X(map, format, 64, 64, 1, 4, 32, 2) \
    X(map, format, 128, 128, 1, 4, 32, 2)
#define AGI_CUDA_STREAM_vjp_f32(X, map, format) \
    X(map, format, 32, 32, 1, 4, 32, 2) \
    X(map, format, 64, 64, 1, 4, 32, 2) \
    X(map, format, 128, 128, 1, 8, 32, 2)
#define AGI_CUDA_STREAM_vjp_f64(X, map, format) \
    X(map, format, 32, 32, 1, 4, 16, 2) \
    X(map, format, 64, 64, 1, 4, 16, 1) \
    X(map, format, 128, 64, 1, 4, 16, 1)

/* vjp_jvp: tdkdv, tdq. */
#define AGI_CUDA_STREAM_vjp_jvp_16(X, map, format) \
    X(map, format, 32, 32, 1, 4, 32, 2) \
    X(map, format, 64, 64, 1, 4, 32, 1) \
    X(map, format, 128, 128, 1, 4, 16, 1)
#define AGI_CUDA_STREAM_vjp_jvp_f32(X, map, format) \
    X(map, format, 32, 32, 1, 4, 16, 2) \
    X(map, format, 64, 64, 1, 4, 16, 1) \
    X(map, format, 128, 128, 1, 4, 16, 1)
#define AGI_CUDA_STREAM_vjp_jvp_f64(X, map, format) \
    X(map, format, 32, 32, 1, 4, 16, 1) \
    X(map, format, 64, 64, 1, 2, 8, 1)
/* clang-format on */

/* Matrices that a map owns and streams. */
#define AGI_CUDA_OWN_forward 1
#define AGI_CUDA_OWN_forward_short 1
#define AGI_CUDA_OWN_decode 1
#define AGI_CUDA_OWN_jvp 2
#define AGI_CUDA_OWN_jvp_given 2
#define AGI_CUDA_OWN_jvp_jvp 3
#define AGI_CUDA_OWN_dkdv 2
#define AGI_CUDA_OWN_dq 2
#define AGI_CUDA_OWN_tdkdv 4
#define AGI_CUDA_OWN_tdq 4
#define AGI_CUDA_READ_forward 2
#define AGI_CUDA_READ_forward_short 2
#define AGI_CUDA_READ_decode 2
#define AGI_CUDA_READ_jvp 4
#define AGI_CUDA_READ_jvp_given 4
#define AGI_CUDA_READ_jvp_jvp 6
#define AGI_CUDA_READ_dkdv 2
#define AGI_CUDA_READ_dq 2
#define AGI_CUDA_READ_tdkdv 4
#define AGI_CUDA_READ_tdq 4

/* Planes of a number, and bytes of each. */
#define AGI_CUDA_PLANES_bf16 1
#define AGI_CUDA_PLANES_f16 1
#define AGI_CUDA_PLANES_f32 2
#define AGI_CUDA_PLANES_f64 1
#define AGI_CUDA_BYTES_bf16 2
#define AGI_CUDA_BYTES_f16 2
#define AGI_CUDA_BYTES_f32 2
#define AGI_CUDA_BYTES_f64 8

/* Channels in shared memory at a time, in kernels for any head size. */
#define AGI_CUDA_CHUNK_bf16 64
#define AGI_CUDA_CHUNK_f16 64
#define AGI_CUDA_CHUNK_f32 64
#define AGI_CUDA_CHUNK_f64 32

/* X(format, class): the number formats; class: which of the lists above. */
#define AGI_CUDA_FORMATS(X) X(bf16, 16) X(f16, 16) X(f32, f32) X(f64, f64)
#define AGI_CUDA_CLASS_bf16 16
#define AGI_CUDA_CLASS_f16 16
#define AGI_CUDA_CLASS_f32 f32
#define AGI_CUDA_CLASS_f64 f64

/* All stream kernels of one format. P: head sizes of their own, in the two levels plain (scale, causal, window,
 * lengths, groups, offsets, sink) and full; A: any head size, full only; O: plain only. forward_short: at most 64
 * queries and keys. decode: few queries; as many of them with all heads of a group as there is room for are the rows
 * of a tile, and a block has AGI_CUDA_SPLIT keys. */
/* clang-format off */
#define AGI_CUDA_ROWWISE(P, A, O, format, class) \
    AGI_CUDA_STREAM_one_##class(O, format) \
    AGI_CUDA_STREAM_forward_##class(P, format) \
    AGI_CUDA_STREAM_rows_##class(P, jvp, format) \
    AGI_CUDA_STREAM_rows_##class(P, jvp_given, format) \
    AGI_CUDA_STREAM_rows_##class(P, jvp_jvp, format) \
    A(forward, format, 0, AGI_CUDA_CHUNK_##format, 1, 4, 32, 1) \
    A(jvp, format, 0, AGI_CUDA_CHUNK_##format, 1, 4, 16, 1) \
    A(jvp_given, format, 0, AGI_CUDA_CHUNK_##format, 1, 4, 16, 1) \
    A(jvp_jvp, format, 0, AGI_CUDA_CHUNK_##format, 1, 2, 16, 1)
#define AGI_CUDA_BACKWARD(P, A, O, format, class) \
    AGI_CUDA_STREAM_vjp_##class(P, dkdv, format) \
    AGI_CUDA_STREAM_vjp_##class(P, dq, format) \
    AGI_CUDA_STREAM_vjp_jvp_##class(P, tdkdv, format) \
    AGI_CUDA_STREAM_vjp_jvp_##class(P, tdq, format) \
    A(dkdv, format, 0, AGI_CUDA_CHUNK_##format, 1, 4, 16, 1) \
    A(dq, format, 0, AGI_CUDA_CHUNK_##format, 1, 4, 16, 1) \
    A(tdkdv, format, 0, AGI_CUDA_CHUNK_##format, 1, 2, 16, 1) \
    A(tdq, format, 0, AGI_CUDA_CHUNK_##format, 1, 2, 16, 1)
/* clang-format on */

/* The other kernels. X(name, format, threads): those with a format of numbers; X(name, threads): the others. */
#define AGI_CUDA_PREPARE(X, format) X(prepare, format, 256)
#define AGI_CUDA_GRADIENTS(X, format)                                                                        \
    X(dbias, format, 64)                                                                                     \
    X(tdbias, format, 64)                                                                                    \
    X(dtable, format, 64)                                                                                    \
    X(tdtable, format, 64)
#define AGI_CUDA_OTHERS(X)                                                                                   \
    X(upload, 128)                                                                                           \
    X(statistics_f32, 256)                                                                                   \
    X(statistics_f64, 256)                                                                                   \
    X(join_f32, 128)                                                                                         \
    X(join_f64, 128)                                                                                         \
    X(tails, 256)                                                                                            \
    X(sum_sink, 256)                                                                                         \
    X(sum_table, 256)                                                                                        \
    X(merge, 256)

#endif
