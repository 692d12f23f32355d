/* Lists and the seed in the device's memory, on a GPU or on the fake driver that computes: every map has the bits that
 * it has from lists in host memory; values that no list may have are clamped, and nothing but the outputs is written; a
 * captured call keeps the values of lists in host memory, and reads those on the device when it is replayed. */
#include "graphs.h"
#include "outputs.h"

enum { LISTS = 6, MAX_BATCH = 8, GUARD = 4096, GUARD_BYTE = 0xa5 };

/* ---- Lists ---- */

/* Of a call: on the host, on the device, how many more elements than sequences. */
static const struct {
    size_t host, device;
    int more;
} fields[LISTS] = {
    {offsetof(ag_args, q_lengths), offsetof(ag_args, q_lengths_device), 0},
    {offsetof(ag_args, kv_lengths), offsetof(ag_args, kv_lengths_device), 0},
    {offsetof(ag_args, q_packed), offsetof(ag_args, q_packed_device), 1},
    {offsetof(ag_args, k_packed), offsetof(ag_args, k_packed_device), 1},
    {offsetof(ag_args, q_offsets), offsetof(ag_args, q_offsets_device), 0},
    {offsetof(ag_args, k_offsets), offsetof(ag_args, k_offsets_device), 0},
};

/* The values of a call's lists: an element for each sequence, and one more of packed sequences. */
struct lists {
    int64_t values[LISTS][MAX_BATCH + 1];
    uint64_t seed;
};

static const int64_t **list_of(ag_args *a, size_t field)
{
    return (const int64_t **)(void *)((char *)a + field);
}

static struct lists lists_of(const struct arrays *x)
{
    struct lists l = {.seed = x->args.seed};
    ag_args a = x->args;
    for (int n = 0; n < LISTS; n++) {
        const int64_t *list = *list_of(&a, fields[n].host);
        if (list != NULL) {
            memcpy(l.values[n], list, (size_t)(x->p->batch + fields[n].more) * sizeof *list);
        }
    }
    return l;
}

/* The call with these values in the lists that it has. */
static ag_args with_lists(const struct arrays *x, const struct lists *l)
{
    ag_args a = x->args;
    for (int n = 0; n < LISTS; n++) {
        const int64_t **list = list_of(&a, fields[n].host);
        *list = *list == NULL ? NULL : l->values[n];
    }
    a.seed = l->seed;
    return a;
}

static CUdeviceptr lists_there; /* a struct lists */

static void set_lists_there(const struct lists *l)
{
    must(cu->MemcpyHtoD(lists_there, l, sizeof *l), "copying lists");
}

/* The call with its lists, and the seed, on the device. */
static ag_args with_lists_there(const struct arrays *x)
{
    const struct lists *there = (const struct lists *)(uintptr_t)lists_there;
    ag_args a = x->args;
    for (int n = 0; n < LISTS; n++) {
        const int64_t **list = list_of(&a, fields[n].host);
        *list_of(&a, fields[n].device) = *list == NULL ? NULL : there->values[n];
        *list = NULL;
    }
    a.seed_device = &there->seed;
    a.seed = 0;
    return a;
}

/* ---- The maps of a call, one after another, on copies of its arrays ---- */

struct run {
    struct arrays *x;
    struct agc_stage stage;
    ag_args args;
    void *workspace;
    char *before; /* the copies and the guard behind the workspace, as they were */
};

static void read_there(char *to, CUdeviceptr from, size_t bytes)
{
    CUresult (*copy)(void *, CUdeviceptr, size_t);
    const struct agc_driver_function name = {"cuMemcpyDtoH_v2", 0};
    CHECK_OK(agc_find_in_driver(&copy, &name, 1));
    must(copy(to, from, bytes), "copying from the device");
}

static char *read_all(const struct run *r)
{
    const CUdeviceptr guard = (CUdeviceptr)(uintptr_t)r->workspace + r->x->workspace_bytes;
    char *all = test_alloc((int64_t)r->stage.bytes + GUARD, 1);
    read_there(all, r->stage.memory, r->stage.bytes);
    read_there(all + r->stage.bytes, guard, GUARD);
    return all;
}

/* The results are NaN until the maps write them. */
static void begin_run(struct run *r, struct arrays *x, const ag_args *args)
{
    char guard[GUARD];
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            memset(x->data[t], 0xff, tensor_bytes(x, t));
        }
    }
    *r = (struct run){.x = x, .args = *args};
    test_need(agc_stage_map(&r->stage, x->plan, ALL_MAPS, &r->args, &r->workspace,
                            x->workspace_bytes + GUARD) == AG_OK,
              ag_check_last_message());
    memset(guard, GUARD_BYTE, GUARD);
    must(cu->MemcpyHtoD((CUdeviceptr)(uintptr_t)r->workspace + x->workspace_bytes, guard, GUARD), "a guard");
    r->before = read_all(r);
}

static void enqueue(const struct run *r, CUstream stream, const char *label)
{
    ag_exec exec = AG_EXEC_INIT;
    exec.stream = stream;
    for (int map = 0; map < MAPS; map++) {
        const ag_status status =
            call_map(map, r->x->plan, &r->args, &exec, r->workspace, r->x->workspace_bytes);
        CHECK(status == AG_OK, "%s: %s: %s", label, map_name[map], ag_last_message());
    }
}

/* Inputs, the gaps between the tensors and the guard are as they were. */
static void check_unwritten(const struct run *r, const char *label)
{
    char *after = read_all(r);
    for (int n = 0; n < r->stage.count; n++) {
        const struct agc_region *region = &r->stage.regions[n];
        if (region->written) {
            memcpy(after + region->offset, r->before + region->offset, region->end - region->begin);
        }
    }
    CHECK(memcmp(after, r->before, r->stage.bytes) == 0,
          "%s: an input, or memory beside a tensor, was written", label);
    CHECK(memcmp(after + r->stage.bytes, r->before + r->stage.bytes, GUARD) == 0,
          "%s: memory behind the workspace was written", label);
    free(after);
}

/* Waits; then the results are in x. */
static void end_run(struct run *r, const char *label)
{
    CHECK_OK(agc_stage_wait(&r->stage));
    check_unwritten(r, label);
    free(r->before);
    CHECK_OK(agc_stage_end(&r->stage, AG_OK));
}

static void run_maps(struct arrays *x, const ag_args *args, const char *label)
{
    struct run r;
    begin_run(&r, x, args);
    enqueue(&r, NULL, label);
    end_run(&r, label);
}

/* The results of lists in host memory, to compare with. */
static void keep_results(struct arrays *x, const struct lists *l, const char *label, void *kept[T_COUNT])
{
    const ag_args args = with_lists(x, l);
    run_maps(x, &args, label);
    keep_outputs(x, kept);
}

static void same_results(const struct arrays *x, void *kept[T_COUNT], const char *label)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            same_tensor(x, t, x->data[t], kept[t], label);
        }
    }
}

static void run_there(struct arrays *x, const struct lists *l, const char *label)
{
    const ag_args args = with_lists_there(x);
    set_lists_there(l);
    run_maps(x, &args, label);
}

/* ---- Values ---- */

enum { LENGTHS = 1, OFFSETS = 2 };

static void make_call(struct arrays *x, const char *text, int with)
{
    make_arrays(x, text, NULL, 7);
    test_need(agc_on_device(x->plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
    test_need(x->p->batch <= MAX_BATCH, "more sequences than MAX_BATCH");
    if (with & LENGTHS) {
        CHECK_OK(agc_arrays_random_lengths(x));
    }
    if (with & OFFSETS) {
        CHECK_OK(agc_arrays_random_offsets(x, 30));
    }
    CHECK_OK(agc_arrays_run_all(x)); /* smu, which jvp_jvp reads */
}

static const struct {
    const char *text;
    int with;
} problems[] = {
    {"b3 h2 kv1 q40 k70 d16 f32 causal dropout=0.2 table=5", LENGTHS | OFFSETS},
    {"b3 h2 kv1 q70 k140 d64 bf16 window=30,20 sink", LENGTHS | OFFSETS},
    {"b2 h1 q70 k80 d128 f16 mask=11qk bias=b1qk", LENGTHS},
    {"b3 h2 kv1 q60 k70 d64 bf16 causal packed=130,160 dropout=0.3", OFFSETS},
    {"b3 h1 q40 k40 d20 f64 packed=70,90 alibi", 0},
    {"b2 h2 kv1 q1 k600 d64 bf16 dropout=0.1", LENGTHS},
    {"b2 h1 q66 k70 d160 bf16 causal", LENGTHS},
    {"b3 h4 kv2 q9 k600 d64 bf16 causal align=bottom-right", LENGTHS},
};

static void check_values(const char *text, int with)
{
    struct arrays x;
    void *kept[T_COUNT];
    make_call(&x, text, with);
    const struct lists l = lists_of(&x);
    keep_results(&x, &l, text, kept);
    run_there(&x, &l, text);
    same_results(&x, kept, text);
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* ---- Values that no list may have ---- */

#define FAR (INT64_C(1) << 61)
#define FAR_ON_HOST (INT64_C(1) << 59) /* the furthest position that a list in host memory may have */

/* Lengths of 40 queries and 70 keys, or packed sequences of 100 and 130; positions. On the device, and what they count
 * as. */
static const struct lists wild = {.values = {{-3, 1000, INT64_MAX, INT64_MIN},
                                             {INT64_MAX, -1, 50, INT64_C(1) << 40},
                                             {-9, 30, 30, INT64_C(1) << 50, INT64_MAX},
                                             {INT64_MIN, 60, 131, INT64_MAX, 130},
                                             {FAR, -FAR, 3, -FAR},
                                             {5, 0, -4, FAR}}};
static const struct lists tame = {.values = {{0, 40, 40, 0},
                                             {70, 0, 50, 70},
                                             {0, 30, 30, 100, 100},
                                             {0, 60, 130, 130, 130},
                                             {FAR_ON_HOST, -FAR_ON_HOST, 3, -FAR_ON_HOST},
                                             {5, 0, -4, FAR_ON_HOST}}};

static void check_wild(const char *text, int with)
{
    struct arrays x;
    void *kept[T_COUNT];
    make_call(&x, text, with);
    keep_results(&x, &tame, text, kept);
    run_there(&x, &wild, text);
    same_results(&x, kept, text);
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* Anything: offsets of packed sequences that overlap and go back, positions whose difference has more than 64 bits.
 * What the results are then is left open, but the call ends, and the next one is right. */
static void fill_with_anything(struct lists *l, uint64_t *state)
{
    static const int64_t choices[] = {INT64_MIN,
                                      INT64_MAX,
                                      -1,
                                      0,
                                      1,
                                      25,
                                      40,
                                      69,
                                      70,
                                      71,
                                      99,
                                      100,
                                      131,
                                      INT64_C(1) << 31,
                                      (INT64_C(1) << 32) + 5,
                                      -(INT64_C(1) << 33)};
    enum { CHOICES = sizeof choices / sizeof choices[0] };
    for (int n = 0; n < LISTS; n++) {
        for (int b = 0; b <= MAX_BATCH; b++) {
            *state = *state * 6364136223846793005u + 1442695040888963407u;
            l->values[n][b] = choices[(*state >> 33) % CHOICES];
        }
    }
    l->seed = *state;
}

static void check_anything(const char *text, int with, int count)
{
    struct arrays x;
    void *kept[T_COUNT];
    struct lists any;
    uint64_t state = 1;
    make_call(&x, text, with);
    const struct lists l = lists_of(&x);
    keep_results(&x, &l, text, kept);
    for (int n = 0; n < count; n++) {
        char label[256];
        snprintf(label, sizeof label, "'%s' with lists of anything, number %d", text, n);
        fill_with_anything(&any, &state);
        run_there(&x, &any, label);
    }
    run_there(&x, &l, text);
    same_results(&x, kept, text);
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

static const struct {
    const char *text;
    int with;
} places[] = {
    {"b4 h2 kv1 q40 k70 d16 f32 causal", LENGTHS | OFFSETS},
    {"b4 h2 kv1 q40 k70 d64 bf16 window=30,20 mask=b1qk", LENGTHS | OFFSETS},
    {"b4 h1 q100 k130 d64 bf16 causal packed=100,130 sink", OFFSETS},
    {"b4 h1 q100 k130 d128 f16 packed=100,130", OFFSETS},
    {"b4 h2 kv1 q100 k130 d16 f32 packed=100,130 window=20,9 table=8", OFFSETS},
};

/* ---- Captures ---- */

static CUstream stream;

/* What was in the lists in host memory at the call is what each replay has. */
static void check_captured_values(const char *text, int with)
{
    struct arrays x;
    void *kept[T_COUNT];
    struct run r;
    make_call(&x, text, with);
    struct lists l = lists_of(&x);
    keep_results(&x, &l, text, kept);
    const ag_args args = with_lists(&x, &l);
    begin_run(&r, &x, &args);
    must(graphs.begin_capture(stream, CAPTURE_GLOBAL), "capture");
    enqueue(&r, stream, text);
    CUgraphExec exec = end_of_capture(stream);
    memset(&l, 0xff, sizeof l);
    must(graphs.replay(exec, stream), "a replay");
    must(graphs.replay(exec, stream), "a replay");
    end_run(&r, text);
    same_results(&x, kept, text);
    must(graphs.destroy_exec(exec), "a graph");
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* Other values for the same call: sequences change their places. */
static struct lists turned(const struct arrays *x, struct lists l)
{
    const int64_t batch = x->p->batch;
    struct lists other = {.seed = l.seed + 1};
    for (int n = 0; n < LISTS; n++) {
        for (int64_t b = 0; b < batch; b++) {
            other.values[n][b] = l.values[n][batch - 1 - b];
        }
        for (int64_t b = 0; b <= batch && fields[n].more; b++) {
            other.values[n][b] = l.values[n][batch] - l.values[n][batch - b];
        }
    }
    return other;
}

/* A graph of one call, replayed with other values: those that are on the device. */
static void check_replayed_values(const char *text, int with)
{
    struct arrays x;
    void *kept[2][T_COUNT];
    struct run r;
    make_call(&x, text, with);
    const struct lists first = lists_of(&x), second = turned(&x, first);
    keep_results(&x, &first, text, kept[0]);
    keep_results(&x, &second, text, kept[1]);
    CHECK(memcmp(kept[0][T_O], kept[1][T_O], tensor_bytes(&x, T_O)) != 0, "'%s': both lists give the same o",
          text);
    const ag_args args = with_lists_there(&x);
    set_lists_there(&first);
    begin_run(&r, &x, &args);
    must(graphs.begin_capture(stream, CAPTURE_GLOBAL), "capture");
    enqueue(&r, stream, text);
    CUgraphExec exec = end_of_capture(stream);
    for (int n = 0; n < 3; n++) {
        struct agc_stage copy = r.stage;
        set_lists_there(n == 1 ? &second : &first);
        must(graphs.replay(exec, stream), "a replay");
        CHECK_OK(agc_stage_wait(&copy));
        for (int i = 0; i < copy.count; i++) {
            const struct agc_region *region = &copy.regions[i];
            if (region->written) {
                read_there((char *)region->begin, copy.memory + region->offset, region->end - region->begin);
            }
        }
        same_results(&x, kept[n == 1], text);
    }
    end_run(&r, text);
    must(graphs.destroy_exec(exec), "a graph");
    free_outputs(kept[0]);
    free_outputs(kept[1]);
    agc_arrays_destroy(&x);
}

static const struct {
    const char *text;
    int with;
} captured[] = {
    {"b3 h2 kv1 q40 k70 d16 f32 causal dropout=0.2", LENGTHS | OFFSETS},
    {"b3 h2 kv1 q70 k140 d64 bf16 causal", LENGTHS | OFFSETS},
    {"b3 h1 q60 k70 d128 f16 packed=130,160 dropout=0.3", 0},
};

/* gpu_lists [COUNT]: how often lists of anything are drawn for each problem. */
int main(int argc, char **argv)
{
    const int count = argc > 1 ? atoi(argv[1]) : 2;
    struct arrays x;
    make_call(&x, "b2 h1 q4 k5 d4 f32", LENGTHS); /* opens the driver and enters a context */
    agc_arrays_destroy(&x);
    find_graph_functions();
    must(cu->MemAlloc(&lists_there, sizeof(struct lists)), "memory");
    must(graphs.create(&stream, NON_BLOCKING, 0), "a stream");
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        check_values(problems[n].text, problems[n].with);
    }
    for (size_t n = 0; n < sizeof places / sizeof places[0]; n++) {
        check_wild(places[n].text, places[n].with);
        check_anything(places[n].text, places[n].with, count);
    }
    for (size_t n = 0; n < sizeof captured / sizeof captured[0]; n++) {
        check_captured_values(captured[n].text, captured[n].with);
        check_replayed_values(captured[n].text, captured[n].with);
    }
    return test_summary();
}
