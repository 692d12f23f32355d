/* On a GPU: calls end, with the bits of a quiet run, whatever else the device does. Blocks of vjp wait for one another
 * on the table sm90 (docs/gpu.md): here other kernels hold 1, half or all but one of the multiprocessors for two
 * seconds while vjp and vjp_jvp run, up to eight vjps run side by side on streams of several priorities, and captured
 * graphs are replayed on two streams. A step that takes a minute has hung.
 *
 * gpu_progress [PROBLEM...]: the list below, or these. */
#define _POSIX_C_SOURCE 200809L /* alarm, sigaction, nanosleep */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <attngrad_check.h>

#include "graphs.h"
#include "outputs.h"
#include "sparse_mask.h"

enum { MAX_PROBLEMS = 8, STREAMS = 8, STEP_SECONDS = 60, REPEATS = 3 };
static const uint64_t hold_nanoseconds = 2000000000;

/* ---- Functions of the driver that the library does not call ---- */

typedef struct CUmod_st *CUmodule;
enum { NOT_READY = 600 };

struct functions {
    CUresult (*load)(CUmodule *module, const void *text);
    CUresult (*find)(CUfunction *function, CUmodule module, const char *name);
    CUresult (*set_attribute)(CUfunction function, CUfunction_attribute attribute, int value);
    CUresult (*launch)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
                       void **parameters, void **extra);
    CUresult (*alloc_host)(void **memory, size_t bytes);
    CUresult (*priorities)(int *least, int *greatest);
    CUresult (*query)(CUstream stream);
};

static const struct agc_driver_function names[] = {
    {"cuModuleLoadData", offsetof(struct functions, load)},
    {"cuModuleGetFunction", offsetof(struct functions, find)},
    {"cuFuncSetAttribute", offsetof(struct functions, set_attribute)},
    {"cuLaunchKernel", offsetof(struct functions, launch)},
    {"cuMemAllocHost_v2", offsetof(struct functions, alloc_host)},
    {"cuCtxGetStreamPriorityRange", offsetof(struct functions, priorities)},
    {"cuStreamQuery", offsetof(struct functions, query)},
};

static struct functions more;
static CUstream streams[STREAMS]; /* the first has the lowest priority, the second the highest, and so on */
static CUstream holding;
static int processors, shared_limit;

static void make_streams(void)
{
    int least = 0, greatest = 0; /* the greatest priority is the smallest number */
    CUdevice device = 0;
    must(more.priorities(&least, &greatest), "priorities");
    for (int n = 0; n < STREAMS; n++) {
        const int step = n / 2, priority = n % 2 == 0 ? least - step : greatest + step;
        const int inside = priority > least ? least : priority < greatest ? greatest : priority;
        must(graphs.create(&streams[n], NON_BLOCKING, inside), "a stream");
    }
    must(graphs.create(&holding, NON_BLOCKING, greatest), "a stream");
    must(cu->CtxGetDevice(&device), "device");
    must(cu->DeviceGetAttribute(&processors, AGI_CU_PROCESSORS, device), "multiprocessors");
    must(cu->DeviceGetAttribute(&shared_limit, AGI_CU_SHARED_LIMIT, device), "shared memory");
    printf("%d multiprocessors, priorities %d to %d\n", processors, least, greatest);
}

/* ---- The watchdog ---- */

static const char *volatile step = "";

static void on_alarm(int number)
{
    static const char words[] = ": not done after a minute: it hangs\n";
    (void)number;
    if (write(STDOUT_FILENO, step, strlen(step)) < 0 || write(STDOUT_FILENO, words, sizeof words - 1) < 0) {
        _exit(2);
    }
    _exit(1);
}

static void begin_step(const char *name)
{
    step = name;
    printf("%s\n", name);
    fflush(stdout);
    alarm(STEP_SECONDS);
}

/* ---- Multiprocessors that are held ---- */

/* A block that has all shared memory of a multiprocessor leaves no room for another one. It writes the number of its
 * multiprocessor, from 1 on, and waits. */
static const char hold_text[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                                ".visible .entry hold(.param .u64 places, .param .u64 nanoseconds)\n{\n"
                                ".reg .pred p;\n.reg .b32 block, processor;\n.reg .b64 at, begin, now, all;\n"
                                "ld.param.u64 at, [places];\nld.param.u64 all, [nanoseconds];\n"
                                "mov.u64 begin, %globaltimer;\n"
                                "mov.u32 block, %ctaid.x;\nmov.u32 processor, %smid;\n"
                                "add.u32 processor, processor, 1;\nmad.wide.u32 at, block, 4, at;\n"
                                "st.volatile.global.u32 [at], processor;\n"
                                "AGAIN:\nmov.u64 now, %globaltimer;\nsub.u64 now, now, begin;\n"
                                "setp.lt.u64 p, now, all;\n@p bra AGAIN;\nret;\n}\n";

static CUfunction hold_kernel;
static volatile uint32_t *places; /* host memory that the device writes */

static void load_hold(void)
{
    CUmodule module;
    void *memory = NULL;
    must(more.load(&module, hold_text), "loading the kernel that holds");
    must(more.find(&hold_kernel, module, "hold"), "finding the kernel that holds");
    must(more.set_attribute(hold_kernel, AGI_CU_MAX_DYNAMIC_SHARED, shared_limit), "its shared memory");
    must(more.alloc_host(&memory, (size_t)processors * sizeof *places), "host memory");
    places = memory;
}

static int is_first(int block)
{
    int other = 0;
    while (places[other] != places[block]) {
        other++;
    }
    return other == block;
}

/* Returns when `count` different multiprocessors are held. */
static void begin_hold(int count)
{
    const struct timespec millisecond = {0, 1000000};
    void *address = (void *)(uintptr_t)places;
    uint64_t nanoseconds = hold_nanoseconds;
    void *parameters[] = {&address, &nanoseconds};
    memset(address, 0, (size_t)processors * sizeof *places);
    must(more.launch(hold_kernel, (unsigned)count, 1, 1, 32, 1, 1, (unsigned)shared_limit, holding,
                     parameters, NULL),
         "holding");
    for (int n = 0; n < count; n++) {
        while (places[n] == 0) {
            nanosleep(&millisecond, NULL);
        }
        CHECK(is_first(n), "multiprocessor %d is held by two blocks", (int)places[n] - 1);
    }
}

/* ---- Calls ---- */

struct problem {
    const char *text;
    struct arrays x;
    void *kept[T_COUNT]; /* the results of a quiet run */
};
static struct problem problems[MAX_PROBLEMS];
static int n_problems;

static void add_problem(const char *text)
{
    test_need(n_problems < MAX_PROBLEMS, "too many problems");
    struct problem *p = &problems[n_problems++];
    p->text = text;
    make_arrays(&p->x, text, NULL, 3);
    if (p->x.data[T_MASK] != NULL) {
        make_mask_sparse(&p->x);
    }
    test_need(agc_on_device(p->x.plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
    printf("'%s': %s\n", text, ag_plan_describe(p->x.plan));
    CHECK_OK(agc_arrays_run_all(&p->x));
    CHECK_OK(agc_arrays_run(&p->x, AG_MAP_VJP)); /* from jvp's o and lse, which the calls below are given */
    keep_outputs(&p->x, p->kept);
}

/* A map of a problem on its own copy of the arrays, in memory of the device. */
struct call {
    struct problem *p;
    int map; /* its index: 1 vjp, 3 vjp_jvp */
    struct agc_stage stage;
    ag_args args;
    void *workspace;
    ag_status status;
};
enum { VJP = 1, VJP_JVP = 3 };

/* The results are NaN until the map writes them. */
static void begin_call(struct call *c, struct problem *p, int map)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&p->x, t, map_bit[map])) {
            memset(p->x.data[t], 0xff, tensor_bytes(&p->x, t));
        }
    }
    *c = (struct call){.p = p, .map = map, .args = p->x.args};
    c->status =
        agc_stage_map(&c->stage, p->x.plan, map_bit[map], &c->args, &c->workspace, p->x.workspace_bytes);
    CHECK_OK(c->status);
}

static void enqueue(struct call *c, CUstream stream)
{
    ag_exec exec = AG_EXEC_INIT;
    exec.stream = stream;
    if (c->status == AG_OK) {
        c->status = call_map(c->map, c->p->x.plan, &c->args, &exec, c->workspace, c->p->x.workspace_bytes);
        CHECK_OK(c->status);
    }
}

/* After the device is done. */
static void end_call(struct call *c)
{
    char label[256];
    snprintf(label, sizeof label, "%s: %s of '%s'", step, map_name[c->map], c->p->text);
    CHECK_OK(agc_stage_end(&c->stage, c->status));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&c->p->x, t, map_bit[c->map])) {
            same_tensor(&c->p->x, t, c->p->x.data[t], c->p->kept[t], label);
        }
    }
}

static void end_calls(struct call *calls, int count)
{
    CHECK_OK(agc_stage_wait(&calls[0].stage));
    for (int n = 0; n < count; n++) {
        end_call(&calls[n]);
    }
}

/* ---- The steps ---- */

/* vjp and vjp_jvp of every problem, each on a stream of its own, while multiprocessors are held. */
static void while_held(const char *name, int count)
{
    struct call calls[2 * MAX_PROBLEMS];
    begin_step(name);
    for (int n = 0; n < 2 * n_problems; n++) {
        begin_call(&calls[n], &problems[n / 2], n % 2 == 0 ? VJP : VJP_JVP);
    }
    begin_hold(count);
    for (int n = 0; n < 2 * n_problems; n++) {
        enqueue(&calls[n], streams[n % STREAMS]);
    }
    CHECK(more.query(holding) == NOT_READY, "%s: the hold ended before the calls were enqueued", name);
    end_calls(calls, 2 * n_problems);
}

/* The other order: the device is full of vjps when the kernel that holds arrives, with a higher priority. */
static void held_later(const char *name, int count)
{
    struct call calls[MAX_PROBLEMS];
    begin_step(name);
    for (int n = 0; n < n_problems; n++) {
        begin_call(&calls[n], &problems[n], VJP);
    }
    for (int n = 0; n < REPEATS * n_problems; n++) {
        enqueue(&calls[n % n_problems], streams[n % n_problems % STREAMS]);
    }
    begin_hold(count);
    end_calls(calls, n_problems);
}

/* vjps side by side, several on each stream. */
static void side_by_side(const char *name, int count)
{
    struct call calls[STREAMS];
    begin_step(name);
    for (int n = 0; n < count; n++) {
        begin_call(&calls[n], &problems[n % n_problems], VJP);
    }
    for (int n = 0; n < REPEATS * count; n++) {
        enqueue(&calls[n % count], streams[n % count]);
    }
    end_calls(calls, count);
}

static CUgraphExec capture(struct call *c)
{
    must(graphs.begin_capture(streams[0], CAPTURE_GLOBAL), "capture");
    enqueue(c, streams[0]);
    return end_of_capture(streams[0]);
}

/* One graph on two streams: the driver runs its replays one after another. Two graphs on two streams, each on its own
 * arrays: they run side by side. With multiprocessors held, too. */
static void replayed(const char *name, int count, int held)
{
    struct call calls[2];
    CUgraphExec execs[2];
    for (int n = 0; n < n_problems; n++) {
        begin_step(name);
        for (int g = 0; g < count; g++) {
            begin_call(&calls[g], &problems[n], VJP);
            execs[g] = capture(&calls[g]);
        }
        if (held > 0 && n == 0) {
            begin_hold(held);
        }
        for (int r = 0; r < 2 * REPEATS; r++) {
            must(graphs.replay(execs[r % count], streams[r % 2]), "a replay");
        }
        end_calls(calls, count);
        for (int g = 0; g < count; g++) {
            must(graphs.destroy_exec(execs[g]), "a graph");
        }
    }
}

/* Rings of one group of blocks and of several, bands of several groups, lengths, packed sequences; head sizes of both
 * kernels. With a mask blocks wait for those that visit a tile alone: rings and bands of two groups. */
static const char *const usual[] = {
    "h4 q4096 d64 bf16",
    "h2 q17000 k17000 d64 bf16",
    "h1 q17000 k17000 d128 bf16",
    "h2 q8192 d128 causal bf16",
    "h4 kv2 q9000 d64 window=2000,0 sink f16",
    "b3 h2 q3000 k4000 d128 packed=5000,9000 bf16",
    "h2 q4000 k9008 d64 mask=11qk bf16",
    "h1 q9000 d128 mask=11qk causal f16",
};

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    begin_step("a quiet run");
    for (int n = 0; n < (int)(sizeof usual / sizeof usual[0]) && argc == 1; n++) {
        add_problem(usual[n]);
    }
    for (int n = 1; n < argc; n++) {
        add_problem(argv[n]);
    }
    find_graph_functions();
    test_need(agc_find_in_driver(&more, names, sizeof names / sizeof names[0]) == AG_OK,
              ag_check_last_message());
    make_streams();
    load_hold();
    while_held("one multiprocessor is held", 1);
    while_held("half of the multiprocessors are held", processors / 2);
    while_held("all multiprocessors but one are held", processors - 1);
    held_later("half of the multiprocessors are held after vjps began", processors / 2);
    side_by_side("two vjps", 2);
    side_by_side("eight vjps", STREAMS);
    replayed("one graph on two streams", 1, 0);
    replayed("two graphs on two streams", 2, 0);
    replayed("two graphs while half of the multiprocessors are held", 2, processors / 2);
    alarm(0);
    for (int n = 0; n < n_problems; n++) {
        free_outputs(problems[n].kept);
        agc_arrays_destroy(&problems[n].x);
    }
    return test_summary();
}
