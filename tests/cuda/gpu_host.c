/* The host's time of calls on a GPU, which only enqueue: gpu_host PROBLEM... prints, for each problem, the
 * microseconds of forward and of vjp. The GPU is waited for between rounds that are short enough for its queue. */
#include "check/stage.h"
#include "outputs.h"

#include <time.h>

enum { ROUNDS = 20, CALLS = 50 };

static double microseconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* The fastest round. */
static double time_map(struct arrays *x, int map)
{
    ag_exec exec = AG_EXEC_INIT;
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        struct agc_stage stage;
        ag_args args = x->args;
        void *workspace = NULL;
        ag_status status =
            agc_stage_map(&stage, x->plan, map_bit[map], &args, &workspace, x->workspace_bytes);
        const double begin = microseconds();
        for (int n = 0; n < CALLS && status == AG_OK; n++) {
            status = call_map(map, x->plan, &args, &exec, workspace, x->workspace_bytes);
        }
        const double each = (microseconds() - begin) / CALLS;
        CHECK_OK(agc_stage_end(&stage, status)); /* waits */
        best = each < best ? each : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    for (int n = 1; n < argc; n++) {
        struct arrays x;
        make_arrays(&x, argv[n], NULL, 1);
        test_need(agc_on_device(x.plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
        CHECK_OK(agc_arrays_run_all(&x));
        printf("%s: forward %.2f us, vjp %.2f us\n", argv[n], time_map(&x, 0), time_map(&x, 1));
        agc_arrays_destroy(&x);
    }
    return test_summary();
}
