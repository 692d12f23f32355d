/* The kernels by number, and what a launch of one consists of. Plain C and C++. */
#ifndef AGI_CUDA_KERNEL_LIST_H
#define AGI_CUDA_KERNEL_LIST_H

#include <stddef.h>

#include "cuda/hopper_params.h"
#include "cuda/hopper_sets.h"

#ifdef __cplusplus
extern "C" {
#endif

/* agi_kernel_NAME for each: agi_kernel_forward_bf16_d64_plain, agi_kernel_merge; those of the table sm90 come last. */
enum {
#define AGI_CUDA_LEVELS(map, format, D, C, M, W, N, S)                                                       \
    agi_kernel_##map##_##format##_d##D##_plain, agi_kernel_##map##_##format##_d##D##_full,
#define AGI_CUDA_ANY(map, format, D, C, M, W, N, S) agi_kernel_##map##_##format##_any,
#define AGI_CUDA_ONE(map, format, D, C, M, W, N, S) agi_kernel_##map##_##format##_d##D,
#define AGI_CUDA_NAMED(name, format, threads) agi_kernel_##name##_##format,
#define AGI_CUDA_OF(format, class)                                                                           \
    AGI_CUDA_ROWWISE(AGI_CUDA_LEVELS, AGI_CUDA_ANY, AGI_CUDA_ONE, format, class)                             \
    AGI_CUDA_BACKWARD(AGI_CUDA_LEVELS, AGI_CUDA_ANY, AGI_CUDA_ONE, format, class)                            \
    AGI_CUDA_PREPARE(AGI_CUDA_NAMED, format)                                                                 \
    AGI_CUDA_GRADIENTS(AGI_CUDA_NAMED, format)
#define AGI_CUDA_OTHER(name, threads) agi_kernel_##name,
#define AGI_CUDA_HOPPER(map, format, D, CONSUMERS, N, STAGES) agi_kernel_##map##_##format##_d##D,
#define AGI_CUDA_HOPPER_SET(map, format, D, CONSUMERS, N, STAGES, set)                                       \
    agi_kernel_##map##_##format##_d##D##_##set,
#define AGI_CUDA_HOPPER_BEFORE(name, threads, shared) agi_kernel_##name,
#define AGI_CUDA_HOPPER_FORWARD(format)                                                                      \
    AGI_HOPPER_forward(AGI_CUDA_HOPPER, format) AGI_HOPPER_forward_sets(AGI_CUDA_HOPPER_SET, format)
#define AGI_CUDA_HOPPER_F32 AGI_HOPPER_forward_f32(AGI_CUDA_HOPPER, f32)
#define AGI_CUDA_HOPPER_JVP(format)                                                                          \
    AGI_HOPPER_jvp(AGI_CUDA_HOPPER, format) AGI_HOPPER_jvp_sets(AGI_CUDA_HOPPER_SET, format)
#define AGI_CUDA_HOPPER_BACKWARD(format)                                                                     \
    AGI_HOPPER_backward(AGI_CUDA_HOPPER, format) AGI_HOPPER_backward_sets(AGI_CUDA_HOPPER_SET, format)
#define AGI_CUDA_HOPPER_PRE(map, format, D, CONSUMERS, N, STAGES)                                            \
    agi_kernel_hopper_statistics_##format##_d##D, agi_kernel_hopper_visits_##format##_d##D,
#define AGI_CUDA_HOPPER_RING(format)                                                                         \
    AGI_HOPPER_ring(AGI_CUDA_HOPPER, format) AGI_HOPPER_ring(AGI_CUDA_HOPPER_PRE, format)                    \
        AGI_HOPPER_ring_sets(AGI_CUDA_HOPPER_SET, format)
#define AGI_CUDA_HOPPER_SECOND(format) AGI_HOPPER_second(AGI_CUDA_HOPPER, format)
#define AGI_CUDA_HOPPER_SECOND_PRE(map, format, D, CONSUMERS, N, STAGES)                                     \
    agi_kernel_hopper_second_statistics_##format##_d##D, agi_kernel_hopper_second_visits_##format##_d##D,
#define AGI_CUDA_HOPPER_SECOND_RING(format)                                                                  \
    AGI_HOPPER_second_ring(AGI_CUDA_HOPPER, format)                                                          \
        AGI_HOPPER_second_ring(AGI_CUDA_HOPPER_SECOND_PRE, format)                                           \
            AGI_HOPPER_second_ring_sets(AGI_CUDA_HOPPER_SET, format)
#define AGI_CUDA_HOPPER_WIDE(format) AGI_HOPPER_wide(AGI_CUDA_HOPPER, format)
#define AGI_CUDA_HOPPER_DBIAS(format)                                                                        \
    AGI_HOPPER_dbias_sets(AGI_CUDA_HOPPER_SET, format) AGI_HOPPER_dbias_sum(AGI_CUDA_NAMED, format)
    AGI_CUDA_FORMATS(AGI_CUDA_OF) AGI_CUDA_OTHERS(AGI_CUDA_OTHER) AGI_CUDA_N_PORTABLE,
    AGI_CUDA_LAST_PORTABLE = AGI_CUDA_N_PORTABLE - 1,
    AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_FORWARD) AGI_CUDA_HOPPER_F32 AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_JVP)
        AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_BACKWARD) AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_RING)
            AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_SECOND) AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_SECOND_RING)
                AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_WIDE) AGI_HOPPER_FORMATS(AGI_CUDA_HOPPER_DBIAS)
                    AGI_HOPPER_BEFORE(AGI_CUDA_HOPPER_BEFORE) AGI_CUDA_N_KERNELS
#undef AGI_CUDA_LEVELS
#undef AGI_CUDA_ANY
#undef AGI_CUDA_ONE
#undef AGI_CUDA_NAMED
#undef AGI_CUDA_OF
#undef AGI_CUDA_OTHER
#undef AGI_CUDA_HOPPER
#undef AGI_CUDA_HOPPER_SET
#undef AGI_CUDA_HOPPER_BEFORE
#undef AGI_CUDA_HOPPER_FORWARD
#undef AGI_CUDA_HOPPER_F32
#undef AGI_CUDA_HOPPER_JVP
#undef AGI_CUDA_HOPPER_BACKWARD
#undef AGI_CUDA_HOPPER_PRE
#undef AGI_CUDA_HOPPER_RING
#undef AGI_CUDA_HOPPER_SECOND
#undef AGI_CUDA_HOPPER_SECOND_PRE
#undef AGI_CUDA_HOPPER_SECOND_RING
#undef AGI_CUDA_HOPPER_WIDE
#undef AGI_CUDA_HOPPER_DBIAS
};

typedef struct {
    const char *name; /* the symbol in its image: "forward_bf16_d64_plain" */
    const char *
        image; /* "rowwise_bf16": kernels/rowwise.cu compiled with AGI_FORMAT=bf16; "common": kernels/common.cu */
    int32_t threads;
    int32_t shared; /* bytes of shared memory, all dynamic */
} agi_cuda_kernel;

extern const agi_cuda_kernel agi_cuda_kernels[AGI_CUDA_N_KERNELS];

/* One launch. The parameter is read before emit returns. */
typedef struct {
    int32_t kernel; /* agi_kernel_* */
    uint32_t blocks;
    const void *parameter; /* a struct of params.h or hopper_params.h */
    size_t bytes;
    int32_t together; /* 1: its blocks wait for each other, so all of them must be on the device at once */
} agi_cuda_entry;

#ifdef __cplusplus
}
#endif

#endif
