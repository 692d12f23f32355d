/* The kernels of src/cuda by the error rule: problems that run every kernel, every feature and pair of features in
 * every dtype, random problems; with the schedules of the emulation, copies that arrive early or late, the first
 * or the last warp ahead of the others, the last warps behind them.
 *
 * cuda_emulated [SEED [STEP [NUMBER]]]: of the pairs and the random problems one of STEP, which ones by SEED, as the
 * schedules are; NUMBER: this problem alone. */
#include <time.h>

#include "check/summary.h"
#include "emulated_backend.h"
#include "emulated_cases.h"
#include "feature_pairs.h"
#include "kernel_problems.h"
#include "kernels.h"
#include "test.h"

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

enum { N_PAIRS = FEATURES * FEATURES * N_DTYPES, N_RANDOM = 400 };

/* Features number / FEATURES and number % FEATURES, in the order in which features_each has them. Returns 0 if there is
 * no such problem. */
static int draw_pair(ag_check_case *c, int number)
{
    const struct feature_problems list = {SEVERAL_TILES, dtypes[number % N_DTYPES], 0, PAIRS};
    const struct feature *together[MAX_TOGETHER];
    const int a = number / N_DTYPES / FEATURES, b = number / N_DTYPES % FEATURES;
    int last = 0;
    const int count = a <= b ? features_together(&list, a, b, &last, together) : 0;
    if (count > 0) {
        features_case(c, &list, together, count);
    }
    return count > 0;
}

static int draw_case(ag_check_case *c, uint64_t seed, int number)
{
    if (number >= N_FIXED + N_PAIRS) {
        ag_check_random(c, seed, (uint64_t)number, number % 20 == 10 ? AG_CHECK_LARGE : AG_CHECK_SMALL);
        return 1;
    }
    if (number >= N_FIXED) {
        const int exists = draw_pair(c, number - N_FIXED);
        c->seed = seed;
        return exists;
    }
    return CHECK_OK(make_fixed(c, number, seed));
}

/* to and mu once more, given o and lse. */
static void run_given_o(struct arrays *x)
{
    static const enum tensor written[] = {T_TO, T_TO_LOW, T_MU};
    for (int n = 0; n < 3; n++) {
        if (x->data[written[n]] != NULL) {
            const ag_dtype dtype = x->dtype[written[n]];
            memset(x->data[written[n]], 0xff, (size_t)x->count[written[n]] * ag_dtype_size(dtype));
        }
    }
    x->args.flags = AG_GIVEN_O;
    CHECK_OK(ag_jvp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
}

static void check_case(uint64_t seed, int number)
{
    ag_check_case c;
    struct arrays x;
    if (!draw_case(&c, seed, number) || !CHECK_OK(agc_arrays_of_case(&x, &c, NULL))) {
        return;
    }
    emulate_schedule_number((unsigned)number + (unsigned)seed);
    emulated_shared_limit = number % 3 == 2 && number >= N_FIXED ? 101376 : 232448;
    const double start = seconds();
    if (CHECK_OK(agc_arrays_run_all(&x))) {
        const double run = seconds() - start;
        if (run > 2) {
            printf("%d: %.1f s\n", number, run);
        }
        struct error_truth truth;
        if (CHECK_OK(agc_error_truth_create(&truth, &x, 1))) {
            check_case_results(&c, &truth, &x, UINT32_MAX, number);
            run_given_o(&x);
            check_case_results(&c, &truth, &x, UINT32_MAX, number);
            agc_error_truth_destroy(&truth);
        }
    }
    agc_arrays_destroy(&x);
}

int main(int argc, char **argv)
{
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const int step = argc > 2 ? atoi(argv[2]) : 1, only = argc > 3 ? atoi(argv[3]) : -1;
    test_need(step > 0, "STEP is below 1");
    printf("seed %llu, one problem of %d\n", (unsigned long long)seed, step);
    for (int n = 0; n < N_FIXED + N_PAIRS + N_RANDOM; n++) {
        const int drawn = n < N_FIXED || (uint64_t)n % (uint64_t)step == seed % (uint64_t)step;
        if (only >= 0 ? n == only : drawn) {
            check_case(seed, n);
        }
    }
    const int ran = emulate_report(0, AGI_CUDA_N_PORTABLE);
    printf("%d of %d kernels\n", ran, AGI_CUDA_N_PORTABLE);
    if (only < 0) {
        CHECK(ran >= AGI_CUDA_N_PORTABLE - 1, "%d kernels were not run",
              AGI_CUDA_N_PORTABLE - ran); /* but merge */
    }
    return test_summary();
}
