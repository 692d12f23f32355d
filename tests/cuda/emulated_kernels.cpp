/* One image of kernels as C++: compiled once per image, with AGI_IMAGE its name, AGI_SOURCE its file and, if it has a
 * number format, AGI_FORMAT. It puts its kernels into the list of emulated_launch.cpp. */
#define AGI_EMULATE
#include AGI_SOURCE

#include "cuda/kernel_list.h"

#include "emulated_launch.h"

template <class P, void (*KERNEL_FUNCTION)(P)> static void run(const agi_cuda_entry *launch)
{
    const P *p = (const P *)launch->parameter;
    const agi_cuda_kernel &k = agi_cuda_kernels[launch->kernel];
    emulate_launch(launch->blocks, (unsigned)k.threads, (size_t)k.shared, launch->together != 0,
                   [&] { KERNEL_FUNCTION(*p); });
}
template <void (*KERNEL_FUNCTION)(agi_cuda_params)> static void run_map(const agi_cuda_entry *launch)
{
    run<agi_cuda_params, KERNEL_FUNCTION>(launch);
}

#define LEVELS(map, format, D, C, M, W, N, S)                                                                \
    {agi_kernel_##map##_##format##_d##D##_plain, run_map<map##_##format##_d##D##_plain>},                    \
        {agi_kernel_##map##_##format##_d##D##_full, run_map<map##_##format##_d##D##_full>},
#define ANY(map, format, D, C, M, W, N, S) {agi_kernel_##map##_##format##_any, run_map<map##_##format##_any>},
#define ONE(map, format, D, C, M, W, N, S)                                                                   \
    {agi_kernel_##map##_##format##_d##D, run_map<map##_##format##_d##D>},
#define NAMED(name, format, threads) {agi_kernel_##name##_##format, run_map<name##_##format>},
#define STREAM_LIST(list, format, class) list(LEVELS, ANY, ONE, format, class)
#define STREAMS(list, format) STREAM_LIST(list, format, AGI_PASTE(AGI_CUDA_CLASS_, format))
#define NAMES(list, format) list(NAMED, format)
#define HOPPER(map, format, D, CONSUMERS, N, STAGES)                                                         \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_forward, map##_##format##_d##D>},
#define HOPPER_PLANES(map, format, D, CONSUMERS, N, STAGES)                                                  \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_planes, map##_##format##_d##D>},
#define HOPPER_JVP(map, format, D, CONSUMERS, N, STAGES)                                                     \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_jvp, map##_##format##_d##D>},
#define HOPPER_JVP_SET(map, format, D, CONSUMERS, N, STAGES, set)                                            \
    {agi_kernel_##map##_##format##_d##D##_##set, run<agi_hopper_jvp, map##_##format##_d##D##_##set>},
#define HOPPER_BACKWARD(map, format, D, CONSUMERS, N, STAGES)                                                \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_backward, map##_##format##_d##D>},
#define HOPPER_RING(map, format, D, CONSUMERS, N, STAGES)                                                    \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_ring, map##_##format##_d##D>},                       \
        {agi_kernel_hopper_statistics_##format##_d##D,                                                       \
         run<agi_hopper_ring, hopper_statistics_##format##_d##D>},                                           \
        {agi_kernel_hopper_visits_##format##_d##D, run<agi_hopper_ring, hopper_visits_##format##_d##D>},
#define HOPPER_SECOND(map, format, D, CONSUMERS, N, STAGES)                                                  \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_second, map##_##format##_d##D>},
#define HOPPER_WIDE(map, format, D, ROWS, N, STAGES)                                                         \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_wide, map##_##format##_d##D>},
#define HOPPER_SET(map, format, D, CONSUMERS, N, STAGES, set)                                                \
    {agi_kernel_##map##_##format##_d##D##_##set, run<agi_hopper_forward, map##_##format##_d##D##_##set>},
#define HOPPER_BACKWARD_SET(map, format, D, CONSUMERS, N, STAGES, set)                                       \
    {agi_kernel_##map##_##format##_d##D##_##set, run<agi_hopper_backward, map##_##format##_d##D##_##set>},
#define HOPPER_RING_SET(map, format, D, CONSUMERS, N, STAGES, set)                                           \
    {agi_kernel_##map##_##format##_d##D##_##set, run<agi_hopper_ring, map##_##format##_d##D##_##set>},
#define HOPPER_SECOND_RING(map, format, D, CONSUMERS, N, STAGES)                                             \
    {agi_kernel_##map##_##format##_d##D, run<agi_hopper_second_ring, map##_##format##_d##D>},                \
        {agi_kernel_hopper_second_statistics_##format##_d##D,                                                \
         run<agi_hopper_second_ring, hopper_second_statistics_##format##_d##D>},                             \
        {agi_kernel_hopper_second_visits_##format##_d##D,                                                    \
         run<agi_hopper_second_ring, hopper_second_visits_##format##_d##D>},
#define HOPPER_SECOND_RING_SET(map, format, D, CONSUMERS, N, STAGES, set)                                    \
    {agi_kernel_##map##_##format##_d##D##_##set, run<agi_hopper_second_ring, map##_##format##_d##D##_##set>},
#define HOPPER_DBIAS_SET(map, format, D, CONSUMERS, N, STAGES, set)                                          \
    {agi_kernel_##map##_##format##_d##D##_##set, run<agi_hopper_dbias, map##_##format##_d##D##_##set>},
#define HOPPER_DBIAS_SUM(name, format, threads)                                                              \
    {agi_kernel_##name##_##format, run<agi_hopper_dbias, name##_##format>},
#define HOPPERS(list, entry, format) list(entry, format)

static const emulated_kernel kernels[] = {
#if defined(AGI_IMAGE_rowwise)
    STREAMS(AGI_CUDA_ROWWISE, AGI_FORMAT)
#elif defined(AGI_IMAGE_backward)
    STREAMS(AGI_CUDA_BACKWARD, AGI_FORMAT)
#elif defined(AGI_IMAGE_prepare)
    NAMES(AGI_CUDA_PREPARE, AGI_FORMAT)
#elif defined(AGI_IMAGE_gradients)
    NAMES(AGI_CUDA_GRADIENTS, AGI_FORMAT)
#elif defined(AGI_IMAGE_sets)
    {agi_kernel_hopper_relative, run<agi_hopper_before, hopper_relative>},
    {agi_kernel_hopper_classes, run<agi_hopper_before, hopper_classes>},
    {agi_kernel_hopper_live, run<agi_hopper_before, hopper_live>},
#elif defined(AGI_IMAGE_hopper_forward)
    HOPPERS(AGI_HOPPER_forward, HOPPER, AGI_FORMAT) HOPPERS(AGI_HOPPER_forward_sets, HOPPER_SET, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_forward_f32)
    AGI_HOPPER_forward_f32(HOPPER_PLANES, f32)
#elif defined(AGI_IMAGE_hopper_jvp)
    HOPPERS(AGI_HOPPER_jvp, HOPPER_JVP, AGI_FORMAT) HOPPERS(AGI_HOPPER_jvp_sets, HOPPER_JVP_SET, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_backward)
    HOPPERS(AGI_HOPPER_backward, HOPPER_BACKWARD, AGI_FORMAT)
        HOPPERS(AGI_HOPPER_backward_sets, HOPPER_BACKWARD_SET, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_ring)
    HOPPERS(AGI_HOPPER_ring, HOPPER_RING, AGI_FORMAT)
        HOPPERS(AGI_HOPPER_ring_sets, HOPPER_RING_SET, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_second)
    HOPPERS(AGI_HOPPER_second, HOPPER_SECOND, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_second_ring)
    HOPPERS(AGI_HOPPER_second_ring, HOPPER_SECOND_RING, AGI_FORMAT)
        HOPPERS(AGI_HOPPER_second_ring_sets, HOPPER_SECOND_RING_SET, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_wide)
    HOPPERS(AGI_HOPPER_wide, HOPPER_WIDE, AGI_FORMAT)
#elif defined(AGI_IMAGE_hopper_dbias)
    HOPPERS(AGI_HOPPER_dbias_sets, HOPPER_DBIAS_SET, AGI_FORMAT)
        HOPPERS(AGI_HOPPER_dbias_sum, HOPPER_DBIAS_SUM, AGI_FORMAT)
#else
    {agi_kernel_upload, run<agi_cuda_upload, upload>},
    {agi_kernel_statistics_f32, run_map<statistics_f32>},
    {agi_kernel_statistics_f64, run_map<statistics_f64>},
    {agi_kernel_join_f32, run_map<join_f32>},
    {agi_kernel_join_f64, run_map<join_f64>},
    {agi_kernel_tails, run_map<tails>},
    {agi_kernel_sum_sink, run_map<sum_sink>},
    {agi_kernel_sum_table, run_map<sum_table>},
    {agi_kernel_merge, run<agi_cuda_merge, merge>},
#endif
};

static const emulated_image image(kernels, sizeof kernels / sizeof kernels[0]);
