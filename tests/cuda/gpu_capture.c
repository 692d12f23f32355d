/* The first use of the library in a process is inside the capture of a stream, without a call before it: the plan is
 * made there, and its kernels are loaded. Plan and maps are captured; or one is refused in words that name the capture,
 * and then all are captured after a plain call. A replay has the bits of a plain call.
 *
 * gpu_capture MODE PROBLEM: a process can do it once. MODE: global or relaxed, as the driver's modes of capture. */
#include "graphs.h"
#include "outputs.h"

enum { WORKSPACE = 1 << 26 };

static CUstream stream;

/* A call on the device, whose plan may not be there yet. x has a plan of the host. */
struct call {
    struct arrays x;
    struct agc_stage stage;
    ag_args args;
    void *workspace;
    ag_plan *plan;
};

static ag_status make_plan(struct call *c)
{
    ag_options options = AG_OPTIONS_INIT;
    size_t bytes = 0;
    options.backend = AG_BACKEND_CUDA;
    const ag_status status = ag_plan_create(&c->plan, &c->x.given, &options);
    if (status == AG_OK) {
        CHECK_OK(ag_plan_workspace(c->plan, ALL_MAPS, &bytes));
        test_need(bytes <= WORKSPACE, "the workspace is larger than WORKSPACE");
    }
    return status;
}

/* The results are NaN until the maps write them. */
static void begin_call(struct call *c)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&c->x, t, ALL_MAPS)) {
            memset(c->x.data[t], 0xff, tensor_bytes(&c->x, t));
        }
    }
    c->args = c->x.args;
    test_need(agc_stage_map(&c->stage, c->x.plan, ALL_MAPS, &c->args, &c->workspace, WORKSPACE) == AG_OK,
              ag_check_last_message());
}

static void end_call(struct call *c)
{
    CHECK_OK(agc_stage_wait(&c->stage));
    CHECK_OK(agc_stage_end(&c->stage, AG_OK));
}

/* On the stream, or NULL. Makes the plan if there is none. what: what was done last. */
static ag_status run_maps(struct call *c, CUstream on, const char **what)
{
    ag_exec exec = AG_EXEC_INIT;
    exec.stream = on;
    *what = "the plan";
    ag_status status = c->plan == NULL ? make_plan(c) : AG_OK;
    for (int map = 0; map < MAPS && status == AG_OK; map++) {
        *what = map_name[map];
        status = call_map(map, c->plan, &c->args, &exec, c->workspace, WORKSPACE);
    }
    return status;
}

/* NULL if it is refused. */
static CUgraphExec capture(struct call *c, int mode)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    const char *what;
    must(graphs.begin_capture(stream, mode), "capture");
    const ag_status status = run_maps(c, stream, &what);
    if (status != AG_OK) {
        printf("%s is refused in a capture: %s: %s\n", what, ag_status_string(status), ag_last_message());
        CHECK(strstr(ag_last_message(), "captur") != NULL || strstr(ag_last_message(), "CAPTUR") != NULL,
              "the refusal does not name the capture: %s", ag_last_message());
        graphs.end_capture(stream, &graph); /* which fails after what no capture may have */
        return NULL;
    }
    must(graphs.end_capture(stream, &graph), "the end of a capture");
    must(graphs.instantiate(&exec, graph, 0), "a graph");
    return exec;
}

static void run_plainly(struct call *c)
{
    const char *what;
    begin_call(c);
    const ag_status status = run_maps(c, NULL, &what);
    CHECK(status == AG_OK, "%s: %s", what, ag_last_message());
    end_call(c);
}

static void make_call(struct call *c, const char *text)
{
    ag_options host = AG_OPTIONS_INIT;
    host.backend = AG_BACKEND_REFERENCE;
    *c = (struct call){.plan = NULL};
    make_arrays(&c->x, text, &host, 3);
    memset(c->x.data[T_SMU], 0, tensor_bytes(&c->x, T_SMU)); /* an input here */
}

int main(int argc, char **argv)
{
    struct call c;
    void *kept[T_COUNT];
    test_need(argc == 3, "gpu_capture global|relaxed PROBLEM");
    const int mode = strcmp(argv[1], "global") == 0 ? CAPTURE_GLOBAL : CAPTURE_RELAXED;
    make_call(&c, argv[2]);
    find_graph_functions();
    begin_call(&c); /* enters a context */
    must(graphs.create(&stream, NON_BLOCKING, 0), "a stream");
    CUgraphExec exec = capture(&c, mode);
    printf("the first use in a capture: %s\n", exec != NULL ? "works" : "refused");
    if (exec == NULL) {
        CHECK_OK(agc_stage_end(&c.stage, AG_OK));
        run_plainly(&c);
        begin_call(&c);
        exec = capture(&c, mode);
        test_need(exec != NULL, "refused after a plain call too");
    }
    must(graphs.replay(exec, stream), "a replay");
    end_call(&c);
    keep_outputs(&c.x, kept);
    run_plainly(&c);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&c.x, t, ALL_MAPS)) {
            same_tensor(&c.x, t, kept[t], c.x.data[t], argv[2]);
        }
    }
    free_outputs(kept);
    ag_plan_destroy(c.plan);
    agc_arrays_destroy(&c.x);
    return test_summary();
}
