/* What ag_trace refuses, and that it writes no tensor. */
#include "refusals.h"

static void refuse_trace(struct arrays *x, uint32_t map, const ag_trace_args *trace, ag_status status,
                         const char *field)
{
    const ag_status got = ag_trace(x->plan, map, &x->args, trace, x->workspace, x->workspace_bytes);
    if (CHECK(got == status, "trace with wrong %s: %s", field, ag_status_string(got))) {
        check_message("trace", field, "");
    }
}

static void traces(void)
{
    struct arrays x;
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, EVERY_FEATURE "f32", &reference, 4);
    CHECK_OK(agc_arrays_run_all(&x));
    double S[7 * 9], J[9 * 9];
    const ag_trace_args good = {sizeof good, 0, 2, 3, .S = S, .J = J, .jacobian_row = 6};
    ag_trace_args t = good;
    CHECK_OK(ag_trace(x.plan, AG_MAP_FORWARD, &x.args, &t, x.workspace, x.workspace_bytes));
    refuse_trace(&x, AG_MAP_FORWARD, NULL, AG_INVALID_ARGUMENT, "trace");
    refuse_trace(&x, 0, &good, AG_INVALID_ARGUMENT, "map");
    refuse_trace(&x, AG_MAP_FORWARD | AG_MAP_VJP, &good, AG_INVALID_ARGUMENT, "map");
    refuse_trace(&x, 1u << 7, &good, AG_INVALID_ARGUMENT, "map");
    t.reserved = 1;
    refuse_trace(&x, AG_MAP_VJP, &t, AG_INVALID_ARGUMENT, "trace.reserved");
    static const int64_t outside[] = {-1, INT64_MIN, INT64_MAX};
    for (int n = 0; n < 3; n++) {
        t = good;
        t.batch = outside[n];
        refuse_trace(&x, AG_MAP_VJP, &t, AG_INVALID_ARGUMENT, "trace.batch");
        t = good;
        t.head = outside[n];
        refuse_trace(&x, AG_MAP_VJP, &t, AG_INVALID_ARGUMENT, "trace.head");
        t = good;
        t.jacobian_row = outside[n];
        refuse_trace(&x, AG_MAP_VJP, &t, AG_INVALID_ARGUMENT, "trace.jacobian_row");
    }
    CHECK_STATUS(ag_trace(x.plan, AG_MAP_VJP, &x.args, &good, x.workspace, 1), AG_WORKSPACE);
    agc_arrays_destroy(&x);
}

/* A trace writes its own arrays and no tensor. */
static void traces_write_no_tensor(void)
{
    struct arrays x;
    void *before[T_COUNT];
    double M[7 * 9];
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, EVERY_FEATURE "f64", &reference, 4);
    CHECK_OK(agc_arrays_run_all(&x));
    keep_outputs(&x, before);
    for (int map = 0; map < MAPS; map++) {
        const ag_trace_args trace = {sizeof trace, 0, 1, 1, .M = M};
        CHECK_OK(ag_trace(x.plan, map_bit[map], &x.args, &trace, x.workspace, x.workspace_bytes));
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (before[t] != NULL) {
                same_tensor(&x, t, x.data[t], before[t], "trace");
            }
        }
    }
    free_outputs(before);
    agc_arrays_destroy(&x);
}

int main(void)
{
    traces();
    traces_write_no_tensor();
    return test_summary();
}
