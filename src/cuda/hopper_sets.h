/* Score features on Hopper: its kernels are compiled once without any and once for each set of AGI_HOPPER_SETS. A set
 * that is missing is a line there, one in AGI_HOPPER_JVP_SETS, and one in AGI_HOPPER_dbias_sets if it has a bias: the
 * kernels, their names, the choice among them and the tests follow from it; a problem that no set covers runs on the
 * portable kernels. Causal, windows, lengths, packed sequences, offsets, groups of heads and
 * the sink are in every kernel. Plain C and CUDA C++. */
#ifndef AGI_CUDA_HOPPER_SETS_H
#define AGI_CUDA_HOPPER_SETS_H

enum {
    AGI_HAS_SOFTCAP = 1,
    AGI_HAS_RELATIVE = 2, /* ALiBi and table: a number for each j - i */
    AGI_HAS_BIAS = 4,
    AGI_HAS_MASK = 8,
    AGI_HAS_DROPOUT = 16
};

/* Larger caps run on the portable kernels: these have phi within 2^-22 times the cap. */
#define AGI_HOPPER_MAX_SOFTCAP 256

/* X(Y, format, name, features, of forward for head sizes up to 64: CONSUMERS, N, STAGES, up to 128: the same; of dkdv
 * and dq: the same). hopper_params.h says what they mean. */
/* clang-format off */
#define AGI_HOPPER_SETS(X, Y, format) \
    X(Y, format, softcap, AGI_HAS_SOFTCAP, 4, 64, 4, 2, 128, 2, 2, 64, 4, 2, 64, 3) \
    X(Y, format, relative, AGI_HAS_RELATIVE, 3, 112, 4, 2, 128, 2, 2, 64, 4, 2, 64, 3) \
    X(Y, format, bias, AGI_HAS_BIAS, 3, 64, 3, 2, 96, 2, 2, 64, 4, 2, 64, 3) \
    X(Y, format, mask, AGI_HAS_MASK, 2, 128, 2, 2, 128, 2, 2, 64, 4, 2, 64, 3) \
    X(Y, format, bias_mask, AGI_HAS_BIAS | AGI_HAS_MASK, 2, 112, 2, 2, 96, 2, 2, 64, 4, 2, 64, 3) \
    X(Y, format, dropout, AGI_HAS_DROPOUT, 2, 128, 2, 2, 128, 2, 2, 64, 4, 2, 64, 3) \
    X(Y, format, dropout_bias, AGI_HAS_DROPOUT | AGI_HAS_BIAS, 2, 112, 2, 2, 96, 2, 2, 64, 4, 2, 64, 3)
/* clang-format on */

/* Kernels that run before those of a set. X(name, threads, bytes of shared memory) */
#define AGI_HOPPER_BEFORE(X) X(hopper_relative, 256, 0) X(hopper_classes, 256, 0) X(hopper_live, 256, 64)

/* The kernels of one format. Y(map, format, D, CONSUMERS, N, STAGES, set) */
#define AGI_HOPPER_FORWARD_OF_SET(Y, format, set, features, C64, N64, S64, C128, N128, S128, ...)            \
    Y(hopper_forward, format, 64, C64, N64, S64, set) Y(hopper_forward, format, 128, C128, N128, S128, set)
#define AGI_HOPPER_BACKWARD_OF_SET(Y, format, set, features, FC64, FN64, FS64, FC128, FN128, FS128, C64,     \
                                   N64, S64, C128, N128, S128)                                               \
    Y(hopper_dkdv, format, 64, C64, N64, S64, set)                                                           \
    Y(hopper_dkdv, format, 128, C128, N128, S128, set)                                                       \
    Y(hopper_dq, format, 64, C64, N64, S64, set) Y(hopper_dq, format, 128, C128, N128, S128, set)
/* vjp and vjp_jvp in one kernel, in the shapes that they have without sets. */
#define AGI_HOPPER_RING_OF_SET(Y, format, set, ...)                                                          \
    Y(hopper_ring, format, 64, 2, 128, 2, set) Y(hopper_ring, format, 128, 2, 64, 2, set)
#define AGI_HOPPER_SECOND_RING_OF_SET(Y, format, set, ...)                                                   \
    Y(hopper_second_ring, format, 64, 2, 64, 2, set) Y(hopper_second_ring, format, 128, 2, 32, 2, set)
#define AGI_HOPPER_forward_sets(Y, format) AGI_HOPPER_SETS(AGI_HOPPER_FORWARD_OF_SET, Y, format)
#define AGI_HOPPER_backward_sets(Y, format) AGI_HOPPER_SETS(AGI_HOPPER_BACKWARD_OF_SET, Y, format)
#define AGI_HOPPER_ring_sets(Y, format) AGI_HOPPER_SETS(AGI_HOPPER_RING_OF_SET, Y, format)
#define AGI_HOPPER_second_ring_sets(Y, format) AGI_HOPPER_SETS(AGI_HOPPER_SECOND_RING_OF_SET, Y, format)

/* jvp. Z(Y, format, set, CONSUMERS, N, STAGES for head sizes up to 64, up to 128: the same) */
/* clang-format off */
#define AGI_HOPPER_JVP_SETS(Z, Y, format) \
    Z(Y, format, softcap, 2, 112, 2, 2, 64, 2) \
    Z(Y, format, relative, 2, 96, 2, 2, 64, 2) \
    Z(Y, format, bias, 2, 96, 2, 2, 64, 2) \
    Z(Y, format, mask, 2, 96, 2, 2, 64, 2) \
    Z(Y, format, bias_mask, 2, 96, 2, 2, 64, 2) \
    Z(Y, format, dropout, 2, 96, 2, 2, 64, 2) \
    Z(Y, format, dropout_bias, 2, 96, 2, 2, 64, 2)
/* clang-format on */
#define AGI_HOPPER_JVP_OF_SET(Y, format, set, C64, N64, S64, C128, N128, S128)                               \
    Y(hopper_jvp, format, 64, C64, N64, S64, set) Y(hopper_jvp, format, 128, C128, N128, S128, set)
#define AGI_HOPPER_jvp_sets(Y, format) AGI_HOPPER_JVP_SETS(AGI_HOPPER_JVP_OF_SET, Y, format)

/* The gradient of the bias, for sets that have one; and the sum of its parts, X(name, format, threads). */
#define AGI_HOPPER_dbias_sum(X, format) X(hopper_dbias_sum, format, 256)
#define AGI_HOPPER_DBIAS_OF_SET(Y, format, set, C64, S64)                                                    \
    Y(hopper_dbias, format, 64, C64, 64, S64, set) Y(hopper_dbias, format, 128, 2, 64, 2, set)
#define AGI_HOPPER_dbias_sets(Y, format)                                                                     \
    AGI_HOPPER_DBIAS_OF_SET(Y, format, bias, 3, 3)                                                           \
    AGI_HOPPER_DBIAS_OF_SET(Y, format, bias_mask, 2, 4)                                                      \
    AGI_HOPPER_DBIAS_OF_SET(Y, format, dropout_bias, 3, 3)

/* AGI_SET_name: its features. */
enum {
#define AGI_HOPPER_FEATURES_OF(Y, format, set, features, ...) AGI_SET_##set = features,
    AGI_HOPPER_SETS(AGI_HOPPER_FEATURES_OF, , )
#undef AGI_HOPPER_FEATURES_OF
        AGI_SET_none = 0
};

#endif
