/* The kernels of a list of params.h in the format AGI_FORMAT, which the compiler's command line gives: one symbol per
 * entry and level, each a call of the template that has its name. */
#pragma once

#define AGI_PARAMETERS const __grid_constant__ agi_cuda_params p
#define AGI_LEVELS(map, format, D, C, M, W, N, S)                                                            \
    KERNEL void __launch_bounds__(32 * W) map##_##format##_d##D##_plain(AGI_PARAMETERS)                      \
    {                                                                                                        \
        typedef shape<format, D, C, M, W, N, S, false> T;                                                    \
        run_stream<map<T>, T>(p);                                                                            \
    }                                                                                                        \
    KERNEL void __launch_bounds__(32 * W) map##_##format##_d##D##_full(AGI_PARAMETERS)                       \
    {                                                                                                        \
        typedef shape<format, D, C, 1, W, N, S, true> T;                                                     \
        run_stream<map<T>, T>(p);                                                                            \
    }
#define AGI_ANY(map, format, D, C, M, W, N, S)                                                               \
    KERNEL void __launch_bounds__(32 * W) map##_##format##_any(AGI_PARAMETERS)                               \
    {                                                                                                        \
        typedef shape<format, D, C, M, W, N, S, true> T;                                                     \
        run_stream<map<T>, T>(p);                                                                            \
    }
#define AGI_ONE(map, format, D, C, M, W, N, S)                                                               \
    KERNEL void __launch_bounds__(32 * W) map##_##format##_d##D(AGI_PARAMETERS)                              \
    {                                                                                                        \
        typedef shape<format, D, C, M, W, N, S, false> T;                                                    \
        run_stream<map<T>, T>(p);                                                                            \
    }
#define AGI_PASTE(a, b) a##b
#define AGI_EXPAND(list, format, class) list(AGI_LEVELS, AGI_ANY, AGI_ONE, format, class)
#define AGI_INSTANCES_OF(list, format) AGI_EXPAND(list, format, AGI_PASTE(AGI_CUDA_CLASS_, format))
