/* The choice of kernels on the host: every kernel fits its device, every head size has one, and the parameters of a
 * launch fit every driver. */
#include "cuda/schedule.h"
#include "test.h"

enum { LIMIT_SMALL = 101376, LIMIT_LARGE = 232448, MAX_PARAMETER = 4096 };

static void check_limits(void)
{
    for (int n = 0; n < AGI_CUDA_N_KERNELS; n++) {
        const agi_cuda_kernel *k = &agi_cuda_kernels[n];
        const bool any = strstr(k->name, "_any") != NULL || strstr(k->name, "_d") == NULL;
        CHECK(k->shared <= (any ? LIMIT_SMALL : LIMIT_LARGE), "%s: %d bytes of shared memory", k->name,
              (int)k->shared);
        CHECK(k->threads % 32 == 0 && k->threads <= 1024, "%s: %d threads", k->name, (int)k->threads);
    }
    CHECK(sizeof(agi_cuda_params) <= MAX_PARAMETER, "%zu bytes of parameters", sizeof(agi_cuda_params));
    CHECK(sizeof(agi_cuda_upload) <= MAX_PARAMETER, "%zu bytes of lists", sizeof(agi_cuda_upload));
    CHECK(sizeof(agi_hopper_forward) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's forward",
          sizeof(agi_hopper_forward));
    CHECK(sizeof(agi_hopper_jvp) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's jvp",
          sizeof(agi_hopper_jvp));
    CHECK(sizeof(agi_hopper_backward) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's vjp",
          sizeof(agi_hopper_backward));
    CHECK(sizeof(agi_hopper_second) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's vjp_jvp",
          sizeof(agi_hopper_second));
    CHECK(sizeof(agi_hopper_ring) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's vjp in one kernel",
          sizeof(agi_hopper_ring));
    CHECK(sizeof(agi_hopper_second_ring) <= MAX_PARAMETER,
          "%zu bytes of parameters of Hopper's vjp_jvp in one kernel", sizeof(agi_hopper_second_ring));
    CHECK(sizeof(agi_cuda_merge) <= MAX_PARAMETER, "%zu bytes of a merge", sizeof(agi_cuda_merge));
}

/* The choice is for the smallest head size that has room, and for any size where none fits. */
static void check_choices(ag_dtype dtype, int32_t limit)
{
    for (int64_t d = 1; d <= 512; d++) {
        const ag_problem p = {.dtype = dtype, .dim_qk = d, .dim_v = d < 8 ? 8 : d - 7};
        for (int map = AGI_STREAM_forward; map <= AGI_STREAM_tdq; map++) {
            const agi_cuda_choice c = agi_cuda_choose(&p, (agi_cuda_map)map, limit);
            const agi_cuda_kernel *k = &agi_cuda_kernels[c.kernel];
            const char *size = strstr(k->name, "_d");
            const bool any = strstr(k->name, "_any") != NULL;
            CHECK(k->shared <= limit, "%s for d%d: %d bytes of shared memory", k->name, (int)d,
                  (int)k->shared);
            CHECK(any || (size != NULL && atoll(size + 2) >= p.dim_qk && atoll(size + 2) >= p.dim_v),
                  "%s for d%d", k->name, (int)d);
            CHECK(any || d > 32 || atoll(size + 2) == 32, "%s for d%d", k->name, (int)d);
        }
    }
}

int main(void)
{
    static const ag_dtype dtypes[] = {AG_F64, AG_F32, AG_F16, AG_BF16};
    check_limits();
    for (int n = 0; n < 4; n++) {
        check_choices(dtypes[n], LIMIT_SMALL);
        check_choices(dtypes[n], LIMIT_LARGE);
    }
    return test_summary();
}
