/* The first use of the library in a process is inside the capture of a stream, without a call before it: the kernels
 * are loaded there. All maps are captured; or one is refused in words that name the capture, and then all are captured
 * after a plain call. A replay has the bits of a plain call.
 *
 * gpu_capture MODE PROBLEM: a process can do it once. MODE: global or relaxed, as the driver's modes of capture. */
#include "graphs.h"
#include "outputs.h"

static CUstream stream;

/* Captures the maps; a refusal is printed. Returns whether there was none. */
static bool capture_maps(const struct arrays *x, const ag_args *args, void *workspace, int mode,
                         CUgraphExec *exec)
{
    ag_exec how = AG_EXEC_INIT;
    CUgraph graph = NULL;
    bool all = true;
    how.stream = stream;
    must(graphs.begin_capture(stream, mode), "capture");
    for (int map = 0; map < MAPS && all; map++) {
        const ag_status status = call_map(map, x->plan, args, &how, workspace, x->workspace_bytes);
        all = status == AG_OK;
        if (!all) {
            printf("%s is refused: %s: %s\n", map_name[map], ag_status_string(status), ag_last_message());
            CHECK(strstr(ag_last_message(), "captur") != NULL || strstr(ag_last_message(), "CAPTUR") != NULL,
                  "the refusal does not name the capture: %s", ag_last_message());
        }
    }
    const CUresult ended = graphs.end_capture(stream, &graph); /* fails after what no capture may have */
    CHECK(!all || ended == 0, "all maps were captured, but the capture failed: error %d", ended);
    *exec = NULL;
    if (all && ended == 0) {
        must(graphs.instantiate(exec, graph, 0), "a graph");
    }
    return all;
}

/* A stage of all maps; results are NaN until a replay writes them. */
static void stage_maps(struct agc_stage *stage, struct arrays *x, ag_args *args, void **workspace)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            memset(x->data[t], 0xff, tensor_bytes(x, t));
        }
    }
    *args = x->args;
    test_need(agc_stage_map(stage, x->plan, ALL_MAPS, args, workspace, x->workspace_bytes) == AG_OK,
              ag_check_last_message());
}

static void check_replay(struct arrays *x, const char *text, CUgraphExec exec, struct agc_stage *stage)
{
    void *kept[T_COUNT];
    must(graphs.replay(exec, stream), "a replay");
    CHECK_OK(agc_stage_wait(stage));
    CHECK_OK(agc_stage_end(stage, AG_OK));
    keep_outputs(x, kept);
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(agc_arrays_run(x, map_bit[map]));
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            same_tensor(x, t, kept[t], x->data[t], text);
        }
    }
    free_outputs(kept);
}

int main(int argc, char **argv)
{
    struct arrays x;
    struct agc_stage stage;
    ag_args args;
    void *workspace = NULL;
    CUgraphExec exec = NULL;
    test_need(argc == 3, "gpu_capture global|relaxed PROBLEM");
    const int mode = strcmp(argv[1], "global") == 0 ? CAPTURE_GLOBAL : CAPTURE_RELAXED;
    make_arrays(&x, argv[2], NULL, 3);
    test_need(agc_on_device(x.plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
    memset(x.data[T_SMU], 0, tensor_bytes(&x, T_SMU));
    stage_maps(&stage, &x, &args, &workspace);
    find_graph_functions();
    must(graphs.create(&stream, NON_BLOCKING, 0), "a stream");
    if (capture_maps(&x, &args, workspace, mode, &exec)) {
        printf("the first call may be captured\n");
    } else {
        CHECK_OK(agc_stage_end(&stage, AG_OK));
        CHECK_OK(agc_arrays_run_all(&x));
        stage_maps(&stage, &x, &args, &workspace);
        CHECK(capture_maps(&x, &args, workspace, mode, &exec), "refused after a plain call too");
    }
    if (exec != NULL) {
        check_replay(&x, argv[2], exec, &stage);
    }
    agc_arrays_destroy(&x);
    return test_summary();
}
