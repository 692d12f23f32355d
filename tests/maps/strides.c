/* Views: whatever the strides, their signs, their order and the alignment of data and workspace, a map gives
 * the bits of the dense call and touches no byte that is not an element of an output. Also which tensors may
 * be absent, which may accumulate, and which dtypes the outputs may have. */
#include "device.h"
#include "outputs.h"

#include <math.h>

enum { GUARD = 0xA5, GUARD_BYTES = 128 };

/* The memory layout of a tensor: axes from the slowest to the fastest, elements left out after each axis, the stride of
 * the fastest axis, reversed axes, and a shift of the first element. */
struct layout {
    const char *name;
    int order[4];
    int gap, step;
    int negative[4];
    size_t shift;
};

static const struct layout layouts[] = {
    {"dense", {0, 1, 2, 3}, 0, 1, {0, 0, 0, 0}, 0},
    {"batch, position, head, channel", {0, 2, 1, 3}, 0, 1, {0, 0, 0, 0}, 0},
    {"gaps", {0, 1, 2, 3}, 3, 1, {0, 0, 0, 0}, 0},
    {"off by one element", {0, 1, 2, 3}, 0, 1, {0, 0, 0, 0}, 1},
    {"all negative", {0, 1, 2, 3}, 1, 1, {1, 1, 1, 1}, 3},
    {"negative positions", {0, 1, 2, 3}, 0, 1, {0, 0, 1, 0}, 0},
    {"channel stride 3", {0, 1, 2, 3}, 0, 3, {0, 0, 0, 0}, 1},
    {"channels slowest", {3, 0, 1, 2}, 0, 1, {0, 0, 0, 0}, 0},
    {"positions fastest, mixed signs", {1, 3, 0, 2}, 2, 2, {0, 1, 0, 1}, 5},
};

/* A copy of a tensor in another layout, with guard bytes in all that is not an element. */
struct view {
    char *memory;
    size_t bytes;
    ag_tensor tensor;
};

static char *element(const ag_tensor *tensor, size_t size, const int64_t at[4])
{
    int64_t index = 0;
    for (int axis = 0; axis < 4; axis++) {
        index += at[axis] * tensor->strides[axis];
    }
    return (char *)tensor->data + index * (int64_t)size;
}

/* Moves `at` to the next element, the last axis first; 0 at the end. */
static int next_element(const int64_t size[4], int64_t at[4])
{
    for (int axis = 3; axis >= 0; axis--) {
        if (++at[axis] < size[axis]) {
            return 1;
        }
        at[axis] = 0;
    }
    return 0;
}

/* The tensor with stride 0 along axes of size 1, whose strides the library must not read. */
static ag_tensor without_unused_strides(const ag_tensor *tensor, const int64_t size[4])
{
    ag_tensor t = *tensor;
    for (int axis = 0; axis < 4; axis++) {
        t.strides[axis] = size[axis] == 1 ? 0 : t.strides[axis];
    }
    return t;
}

static void copy_elements(const ag_tensor *to, const ag_tensor *from, const int64_t shape[4], size_t size)
{
    const ag_tensor a = without_unused_strides(to, shape), b = without_unused_strides(from, shape);
    int64_t at[4] = {0, 0, 0, 0};
    do {
        memcpy(element(&a, size, at), element(&b, size, at), size);
    } while (next_element(shape, at));
}

static struct view make_view(const struct layout *l, const ag_tensor *dense, const int64_t shape[4],
                             size_t size)
{
    struct view v;
    int64_t extent = l->step, first = 0;
    for (int n = 3; n >= 0; n--) {
        const int axis = l->order[n];
        const int64_t stride = extent;
        v.tensor.strides[axis] = l->negative[axis] ? -stride : stride;
        first += l->negative[axis] ? (shape[axis] - 1) * stride : 0;
        extent = stride * shape[axis] + l->gap;
    }
    v.bytes = ((size_t)extent + l->shift) * size + 2 * GUARD_BYTES;
    v.memory = test_alloc((int64_t)v.bytes, 1);
    memset(v.memory, GUARD, v.bytes);
    v.tensor.data = v.memory + GUARD_BYTES + ((size_t)first + l->shift) * size;
    copy_elements(&v.tensor, dense, shape, size);
    for (int axis = 0; axis < 4; axis++) {
        if (shape[axis] == 1) {
            v.tensor.strides[axis] = INT64_MIN + axis;
        }
    }
    return v;
}

/* Overwrites the elements with guard bytes: then every byte must be one. */
static void check_guards(struct view *v, const int64_t shape[4], size_t size, const char *label,
                         const char *name)
{
    const ag_tensor tensor = without_unused_strides(&v->tensor, shape);
    int64_t at[4] = {0, 0, 0, 0};
    size_t byte = 0;
    do {
        memset(element(&tensor, size, at), GUARD, size);
    } while (next_element(shape, at));
    while (byte < v->bytes && (unsigned char)v->memory[byte] == GUARD) {
        byte++;
    }
    CHECK(byte == v->bytes, "%s: %s: byte %zu of %zu, which is no element, was written", label, name, byte,
          v->bytes);
}

/* Runs the maps with every tensor in this layout and a workspace of exactly the required size,
 * at an odd address, full of NaN; the outputs must be the bits that x holds. */
static void check_layout(struct arrays *x, const struct layout *l, const char *text)
{
    struct view views[T_COUNT];
    ag_args dense = x->args;
    void *wanted[T_COUNT];
    char label[512];
    char *workspace = test_alloc((int64_t)x->workspace_bytes + 1, 1);
    memset(workspace, 0xff, x->workspace_bytes + 1);
    snprintf(label, sizeof label, "'%s' in layout '%s'", text, l->name);
    keep_outputs(x, wanted);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (x->data[t] != NULL) {
            ag_tensor *tensor = agc_arrays_tensor(x, t);
            views[t] = make_view(l, tensor, x->size[t], element_size(x, t));
            *tensor = views[t].tensor;
        }
    }
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(call_map(map, x->plan, &x->args, NULL, workspace + 1, x->workspace_bytes));
    }
    x->args = dense;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (x->data[t] != NULL) {
            copy_elements(agc_arrays_tensor(x, t), &views[t].tensor, x->size[t], element_size(x, t));
            if (wanted[t] != NULL) {
                same_tensor(x, t, x->data[t], wanted[t], label);
            }
            check_guards(&views[t], x->size[t], element_size(x, t), label, agc_tensor_info[t].name);
            free(views[t].memory);
        }
    }
    put_back(x, wanted);
    free_outputs(wanted);
    free(workspace);
}

static const char *const dtypes[] = {
    "f64", "f32", "f16", "bf16", "f16 out=f32", "bf16 grad=f32 aux=f32", "bf16 out=f32"};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* A problem of several tiles; `rows` has its features on a few rows. */
struct tiled {
    const char *tiles, *rows;
};

/* The few rows on the reference, and if AG_TEST_COUNT is small. */
static const char *sized(const struct tiled *problem)
{
    return test_on_reference() || test_count(1000) < 500 ? problem->rows : problem->tiles;
}

static void check_layouts(const char *problem, size_t number)
{
    /* If AG_TEST_COUNT is set, each problem and each layout meet every dtype, but not all three each other. */
    const size_t step = test_count(1000) < 1000 ? 3 : 1;
    for (size_t d = 0; d < DTYPES; d++) {
        if (test_on_best_vectors() && strstr(dtypes[d], "bf16") == NULL) {
            continue; /* the test without ATTNGRAD_ISA runs it on the same instruction set */
        }
        struct arrays x;
        char text[256];
        snprintf(text, sizeof text, "%s%s", problem, dtypes[d]);
        make_arrays(&x, text, NULL, 11 + number);
        if (d < 4) { /* 16-bit outputs with low halves and without */
            CHECK_OK(agc_arrays_add_low_halves(&x));
        }
        CHECK_OK(agc_arrays_run_all(&x));
        for (size_t l = (number + d) % step; l < LAYOUTS; l += step) {
            check_layout(&x, &layouts[l], text);
        }
        agc_arrays_destroy(&x);
    }
}

static void layouts_give_the_same_bits(void)
{
    static const char *const problems[] = {
        EVERY_FEATURE,
        EVERY_FEATURE_PACKED,
        "b2 h2 q5 k6 d4 causal ",
        "b1 h1 q1 k1 d1 sink bias mask table=0 ",
        "b2 h3 kv1 q1 k8 d2 dv7 bias=b1q1 ",
        "b2 h3 q7 k8 d32 dv16 ", /* dense rows take the small-head path */
        "b2 h4 kv2 q5 k1 d16 ",
        "b3 h2 q16 k16 d16 packed=40,35 ",
        "b2 h3 q7 k8 d96 dv80 ", /* the same, with dot products in several chunks of channels */
        "b2 h2 q3 k40 d10 causal align=bottom-right ", /* few queries: scores by dot products */
        "h2 kv1 q1 k520 d8 ",                          /* one query and many keys: GPU kernels split them */
    };
    static const struct tiled large[] = {
        {"h2 kv1 q210 k330 d40 dv24 causal align=bottom-right sink bias=11qk mask=11qk ",
         "h2 kv1 q7 k11 d5 dv3 causal align=bottom-right sink bias=11qk mask=11qk "},
        {"b2 h1 q180 k240 d24 packed=300,400 window=90,40 softcap=3 dropout=0.2 table=9 ",
         "b2 h1 q9 k12 d5 packed=15,20 window=4,2 softcap=3 dropout=0.2 table=3 "},
        {"h2 q70 k1100 d40 dv24 sink ", "h2 q3 k20 d5 dv3 sink "},
    };
    const size_t small_count = sizeof problems / sizeof problems[0];
    for (size_t n = 0; n < small_count; n++) {
        check_layouts(problems[n], n);
    }
    for (size_t n = 0; n < sizeof large / sizeof large[0]; n++) {
        check_layouts(sized(&large[n]), small_count + n);
    }
}

/* ---- Zero strides ------------------------------------------------------------------------------- */

/* An input that is constant along an axis: once stored so, once by a stride of zero. */
static void check_zero_stride(struct arrays *x, enum tensor t, int axis)
{
    ag_tensor *tensor = agc_arrays_tensor(x, t), dense = *tensor;
    const size_t size = element_size(x, t);
    void *wanted[T_COUNT];
    char label[64];
    int64_t at[4] = {0, 0, 0, 0};
    snprintf(label, sizeof label, "%s with stride[%d] = 0", agc_tensor_info[t].name, axis);
    do {
        int64_t first[4] = {at[0], at[1], at[2], at[3]};
        first[axis] = 0;
        memmove(element(&dense, size, at), element(&dense, size, first), size);
    } while (next_element(x->size[t], at));
    CHECK_OK(agc_arrays_run_all(x));
    keep_outputs(x, wanted);
    tensor->strides[axis] = 0;
    CHECK_OK(agc_arrays_run_all(x));
    *tensor = dense;
    for (enum tensor o = 0; o < T_COUNT; o++) {
        if (wanted[o] != NULL) {
            same_tensor(x, o, x->data[o], wanted[o], label);
        }
    }
    free_outputs(wanted);
}

/* Each input along each of its axes; if AG_TEST_COUNT is small, along one axis, another one per problem. */
static void zero_strides(void)
{
    static const char *const problems[] = {EVERY_FEATURE "f64", EVERY_FEATURE "bf16",
                                           EVERY_FEATURE_PACKED "f32"};
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        struct arrays x;
        for (enum tensor t = 0; t < T_COUNT; t++) {
            make_arrays(&x, problems[n], NULL, 5);
            const int is_input = t != T_SMU && agc_tensor_info[t].writers == 0 && x.data[t] != NULL;
            const int max_axes = test_count(1000) < 500 ? 1 : 4;
            for (int k = 0, axes = 0; k < 4 && axes < max_axes && is_input; k++) {
                const int axis = ((int)t + (int)n + k) % 4;
                if (x.size[t][axis] > 1) {
                    check_zero_stride(&x, t, axis);
                    axes++;
                }
            }
            agc_arrays_destroy(&x);
        }
    }
}

/* ---- Interleaved Q, K, V ------------------------------------------------------------------------ */

/* One array [batch][position][H + 2 Hk][channel] holds Q, K and V, others their gradients and tangents. */
static char *interleave(struct arrays *x, const enum tensor parts[3])
{
    const int64_t heads = x->p->heads + 2 * x->p->kv_heads, channels = x->p->dim_qk;
    const int64_t *shape = x->size[parts[0]];
    const size_t size = element_size(x, parts[0]);
    char *memory = test_alloc(shape[0] * shape[2] * heads * channels, size);
    int64_t head = 0;
    for (int n = 0; n < 3; n++) {
        ag_tensor *tensor = agc_arrays_tensor(x, parts[n]);
        ag_tensor part = ag_bnhd(memory + (size_t)(head * channels) * size, heads, shape[2], channels);
        copy_elements(&part, tensor, x->size[parts[n]], size);
        *tensor = part;
        head += x->size[parts[n]][1];
    }
    return memory;
}

static void interleaved(void)
{
    static const char *const problems[] = {"b2 h4 kv2 q6 d8 f64 causal sink",
                                           "b2 h3 q6 d4 f16 softcap=2 dropout=0.3",
                                           "b3 h4 kv1 q5 d4 packed=13,13 bf16 causal"};
    static const enum tensor sets[5][3] = {
        {T_Q, T_K, T_V}, {T_DQ, T_DK, T_DV}, {T_TQ, T_TK, T_TV}, {T_TDQ, T_TDK, T_TDV}, {T_SQ, T_SK, T_SV}};
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        struct arrays x;
        void *wanted[T_COUNT];
        char *memory[5];
        make_arrays(&x, problems[n], NULL, 21);
        CHECK_OK(agc_arrays_run_all(&x));
        keep_outputs(&x, wanted);
        ag_args dense = x.args;
        for (int set = 0; set < 5; set++) {
            memory[set] = interleave(&x, sets[set]);
        }
        for (int map = 0; map < MAPS; map++) {
            CHECK_OK(call_map(map, x.plan, &x.args, NULL, x.workspace, x.workspace_bytes));
        }
        for (int set = 0; set < 5; set++) {
            for (int part = 0; part < 3; part++) {
                const enum tensor t = sets[set][part];
                const ag_tensor *from = agc_arrays_tensor(&x, t);
                ag_tensor *to = (ag_tensor *)(void *)((char *)&dense + agc_tensor_info[t].offset);
                copy_elements(to, from, x.size[t], element_size(&x, t));
            }
            free(memory[set]);
        }
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (wanted[t] != NULL) {
                same_tensor(&x, t, x.data[t], wanted[t], problems[n]);
            }
        }
        free_outputs(wanted);
        agc_arrays_destroy(&x);
    }
}

/* ---- Absent outputs ----------------------------------------------------------------------------- */

/* o of forward and to of jvp are what the call is for; all other outputs may be absent. */
static int may_be_absent(enum tensor t, uint32_t map)
{
    return !(map == AG_MAP_FORWARD && t == T_O) && !(map == AG_MAP_JVP && t == T_TO) &&
           !(map == AG_MAP_JVP_JVP && t == T_STO);
}

/* Runs one map with these outputs absent: the others keep their bits, and the absent are not written. */
static void check_absent(struct arrays *x, int map, const int absent[T_COUNT], const char *label)
{
    ag_args all = x->args;
    void *wanted[T_COUNT];
    keep_outputs(x, wanted);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, map_bit[map])) {
            memset(x->data[t], GUARD, tensor_bytes(x, t));
            if (absent[t]) {
                agc_arrays_tensor(x, t)->data = NULL;
            }
        }
    }
    CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, map_bit[map]) && !absent[t]) {
            same_tensor(x, t, x->data[t], wanted[t], label);
        }
    }
    x->args = all;
    put_back(x, wanted);
    free_outputs(wanted);
}

static void outputs_may_be_absent(void)
{
    static const char *const problems[] = {EVERY_FEATURE "f32", EVERY_FEATURE_PACKED "f16", "q3 d2 f64"};
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        struct arrays x;
        make_arrays(&x, problems[n], NULL, 31);
        CHECK_OK(agc_arrays_run_all(&x));
        for (int map = 0; map < MAPS; map++) {
            for (enum tensor t = 0; t < T_COUNT; t++) {
                int one[T_COUNT] = {0}, others[T_COUNT];
                char label[64];
                if (!is_output(&x, t, map_bit[map])) {
                    continue;
                }
                for (enum tensor o = 0; o < T_COUNT; o++) {
                    others[o] = o != t && may_be_absent(o, map_bit[map]);
                }
                one[t] = may_be_absent(t, map_bit[map]);
                snprintf(label, sizeof label, "%s without %s", map_name[map], agc_tensor_info[t].name);
                check_absent(&x, map, one, label);
                snprintf(label, sizeof label, "%s of %s alone", map_name[map], agc_tensor_info[t].name);
                check_absent(&x, map, others, label);
            }
        }
        agc_arrays_destroy(&x);
    }
}

/* Absent tensors, `count` of them, are tensors of zeros. */
static void check_absent_inputs(const char *problem, const enum tensor *absent, int count)
{
    struct arrays x;
    void *wanted[T_COUNT];
    make_arrays(&x, problem, NULL, 41);
    for (int n = 0; n < count; n++) {
        memset(x.data[absent[n]], 0, tensor_bytes(&x, absent[n]));
    }
    CHECK_OK(agc_arrays_run_all(&x));
    keep_outputs(&x, wanted);
    for (int n = 0; n < count; n++) {
        agc_arrays_tensor(&x, absent[n])->data = NULL;
    }
    CHECK_OK(agc_arrays_run_all(&x));
    for (enum tensor o = 0; o < T_COUNT; o++) {
        if (wanted[o] != NULL) {
            same_tensor(&x, o, x.data[o], wanted[o], agc_tensor_info[absent[0]].name);
        }
    }
    free_outputs(wanted);
    agc_arrays_destroy(&x);
}

/* Each tangent, or the cotangent of lse, alone; then pairs of tangents, with enough keys for all kernels. */
static void absent_inputs_are_zeros(void)
{
    static const enum tensor optional[] = {T_D_LSE,  T_TQ, T_TK, T_TV, T_TBIAS, T_TTABLE, T_TSINK, T_TD_O,
                                           T_TD_LSE, T_SQ, T_SK, T_SV, T_SBIAS, T_STABLE, T_SSINK};
    static const enum tensor tangents[] = {T_TQ, T_TK, T_TV, T_TD_O};
    static const char *const large[] = {"h2 q70 k70 d24 bf16", "h2 q70 k70 d24 bf16 softcap=3 out=f32",
                                        "h2 q70 k70 d24 f32"};
    for (size_t n = 0; n < sizeof optional / sizeof optional[0]; n++) {
        check_absent_inputs(EVERY_FEATURE "f64", &optional[n], 1);
        check_absent_inputs(EVERY_FEATURE_PACKED "bf16", &optional[n], 1);
    }
    for (size_t n = 0; n < sizeof large / sizeof large[0]; n++) {
        check_absent_inputs(large[n], tangents, 2);
        check_absent_inputs(large[n], tangents + 2, 2);
        check_absent_inputs(large[n], tangents, 4);
    }
}

/* ---- Outputs of other dtypes, and added to ------------------------------------------------------- */

static const char *const kinds[] = {
    "f64",         "f32",           "f16",         "bf16",
    "f16 out=f32", "bf16 grad=f32", "f16 aux=f32", "bf16 out=f32 grad=f32 aux=f32"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* The values of accumulate that a map is called with: none and all of the bits, each bit of its own outputs alone, and
 * together the bits of outputs that only other maps have, which it must ignore. */
enum { ALL_BITS = 0x3ffff, MAX_VALUES = 32 };

static int accumulate_values(int map, uint32_t values[MAX_VALUES])
{
    uint32_t own = 0;
    int count = 0;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        own |= agc_tensor_info[t].writers & map_bit[map] ? agc_tensor_info[t].accumulate : 0;
    }
    values[count++] = 0;
    values[count++] = ALL_BITS;
    values[count++] = ALL_BITS & ~own;
    for (uint32_t bit = 1; bit <= ALL_BITS; bit <<= 1) {
        if (own & bit) {
            values[count++] = bit;
        }
    }
    return count;
}

/* The reference computes in float64 whatever the dtype: a float64 problem with the same inputs, among them the rounded
 * o, lse, to and mu, gives each result before it is rounded. */
static void exact_twin(struct arrays *y, const struct arrays *x, const ag_options *options)
{
    static const enum tensor given[] = {T_O, T_LSE, T_TO, T_MU, T_SMU};
    test_need(agc_arrays_clone_as(y, x, AG_F64, options) == AG_OK, "no float64 twin");
    CHECK_OK(agc_arrays_run(y, AG_MAP_FORWARD));
    CHECK_OK(agc_arrays_run(y, AG_MAP_JVP));
    CHECK_OK(agc_arrays_run_along_s(y));
    void *exact[5];
    for (int n = 0; n < 5; n++) {
        double *values = test_read(x, given[n]);
        exact[n] = test_read(y, given[n]);
        agc_arrays_write(y, given[n], values);
        free(values);
    }
    CHECK_OK(agc_arrays_run(y, AG_MAP_VJP));
    CHECK_OK(agc_arrays_run(y, AG_MAP_VJP_JVP));
    CHECK_OK(agc_arrays_run(y, AG_MAP_JVP_JVP));
    for (int n = 0; n < 5; n++) {
        agc_arrays_write(y, given[n], exact[n]);
        free(exact[n]);
    }
}

/* Fills an output with values to be added to; returns these. */
static double *fill_output(struct arrays *x, enum tensor t)
{
    double *old = test_read(x, t);
    for (int64_t n = 0; n < x->count[t]; n++) {
        old[n] = (double)(n % 7) - 2.75;
    }
    agc_arrays_write(x, t, old);
    return old;
}

/* Each output of one map is round(old + result) if its bit is set, else round(result). */
static void check_sums(struct arrays *x, const struct arrays *exact, int map, uint32_t bits, const char *text)
{
    void *clean[T_COUNT];
    double *old[T_COUNT] = {NULL};
    keep_outputs(x, clean);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, map_bit[map])) {
            old[t] = fill_output(x, t);
        }
    }
    x->args.accumulate = bits;
    CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
    x->args.accumulate = 0;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (old[t] == NULL) {
            continue;
        }
        double *result = test_read(exact, t);
        void *got = test_alloc(x->count[t], element_size(x, t));
        char label[512];
        for (int64_t n = 0; n < x->count[t]; n++) {
            if (agc_tensor_info[t].accumulate & bits) {
                result[n] += old[t][n];
            }
        }
        memcpy(got, x->data[t], tensor_bytes(x, t));
        agc_arrays_write(x, t, result);
        snprintf(label, sizeof label, "'%s' %s with accumulate %#x", text, map_name[map], bits);
        same_tensor(x, t, got, x->data[t], label);
        free(result);
        free(got);
        free(old[t]);
    }
    put_back(x, clean);
    free_outputs(clean);
}

static void sums_and_dtypes(void)
{
    static const char *const problems[] = {EVERY_FEATURE, EVERY_FEATURE_PACKED, "b2 q3 d2 "};
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_REFERENCE;
    for (size_t n = 0; n < 3 * KINDS; n++) {
        struct arrays x, exact;
        char text[256];
        snprintf(text, sizeof text, "%s%s", problems[n % 3], kinds[n / 3]);
        make_arrays(&x, text, &options, 51);
        CHECK_OK(agc_arrays_run_all(&x));
        exact_twin(&exact, &x, &options);
        for (int map = 0; map < MAPS; map++) {
            uint32_t values[MAX_VALUES];
            const int count = accumulate_values(map, values);
            for (int v = 0; v < count; v++) {
                check_sums(&x, &exact, map, values[v], text);
            }
        }
        agc_arrays_destroy(&exact);
        agc_arrays_destroy(&x);
    }
}

/* Half a unit in the last place of 1, and of the smallest subnormal. */
static void roundings(ag_dtype dtype, double *relative, double *smallest)
{
    *relative = dtype == AG_F64 ? 0x1p-53 : dtype == AG_F32 ? 0x1p-24 : dtype == AG_F16 ? 0x1p-11 : 0x1p-8;
    *smallest = dtype == AG_F64 ? 0 : dtype == AG_F16 ? 0x1p-25 : 0x1p-134;
}

/* Is t the exception of AG_ACC_*, to which every sequence and head is added by itself? */
static int is_added_in_parts(const struct arrays *x, enum tensor t)
{
    const ag_problem *p = x->p;
    const int64_t *size = p->bias_size;
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(x->plan, &info));
    const int shared = (size[0] == 1 && p->batch > 1) || (size[1] == 1 && p->heads > 1);
    return (t == T_DBIAS || t == T_TDBIAS) && size[2] == p->q_len && size[3] == p->kv_len && shared &&
           x->dtype[t] == info.compute_dtype;
}

/* An output was computed once as `clean` and once, as `got`, over `old`. Without its bit, got must be clean, bit for
 * bit; with it, old + clean up to the rounding of both. lse and mu are float64, so their clean is not rounded. */
static void check_near_sum(const struct arrays *x, enum tensor t, const double *clean, const double *old,
                           const double *got, uint32_t bits, const char *label)
{
    /* of parts, each sum is rounded, and may be larger than the last one */
    const double times = is_added_in_parts(x, t) ? 32 : 1;
    const int adds = (agc_tensor_info[t].accumulate & bits) != 0;
    double unit, smallest;
    roundings(x->dtype[t], &unit, &smallest);
    for (int64_t n = 0; n < x->count[t]; n++) {
        const double wanted = adds ? old[n] + clean[n] : clean[n];
        const double magnitude = fabs(wanted) + (agc_tensor_info[t].kind == KIND_F64 ? 0 : fabs(clean[n]));
        const double limit = adds ? times * (1.0001 * unit * magnitude + 2 * smallest) : 0;
        if (got[n] != wanted && !(fabs(got[n] - wanted) <= limit)) {
            CHECK(0, "%s: %s element %lld is %.17g instead of %.17g within %g", label,
                  agc_tensor_info[t].name, (long long)n, got[n], wanted, limit);
            return;
        }
    }
    CHECK(1, "%s", label);
}

static void check_near_sums(struct arrays *x, int map, uint32_t bits, const char *text)
{
    void *kept[T_COUNT];
    double *clean[T_COUNT] = {NULL}, *old[T_COUNT] = {NULL};
    char label[512];
    snprintf(label, sizeof label, "'%s' %s with accumulate %#x", text, map_name[map], bits);
    keep_outputs(x, kept);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, map_bit[map])) {
            clean[t] = test_read(x, t);
            old[t] = fill_output(x, t);
        }
    }
    x->args.accumulate = bits;
    CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
    x->args.accumulate = 0;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (clean[t] != NULL) {
            double *got = test_read(x, t);
            check_near_sum(x, t, clean[t], old[t], got, bits, label);
            free(got);
            free(clean[t]);
            free(old[t]);
        }
    }
    put_back(x, kept);
    free_outputs(kept);
}

/* On the default backend, whose results are not available before they are rounded. */
static void sums_of_the_default(void)
{
    static const struct tiled large = {"h2 kv1 q210 k330 d40 dv24 causal align=bottom-right sink bias=11qk ",
                                       "h2 kv1 q7 k11 d5 dv3 causal align=bottom-right sink bias=11qk "};
    const char *const problems[] = {EVERY_FEATURE, EVERY_FEATURE_PACKED, "b2 q3 d2 ", sized(&large)};
    for (size_t n = 0; n < 4 * KINDS; n++) {
        if (test_on_best_vectors() && strstr(kinds[n % KINDS], "bf16") == NULL) {
            continue;
        }
        struct arrays x;
        char text[256];
        snprintf(text, sizeof text, "%s%s", problems[n / KINDS], kinds[n % KINDS]);
        make_arrays(&x, text, NULL, 52);
        CHECK_OK(agc_arrays_run_all(&x));
        for (int map = 0; map < MAPS; map++) {
            uint32_t values[MAX_VALUES];
            const int count = accumulate_values(map, values);
            CHECK_OK(agc_arrays_run(&x, map_bit[map])); /* o and lse are forward's, then jvp's */
            for (int v = 0; v < count; v++) {
                check_near_sums(&x, map, values[v], text);
            }
        }
        agc_arrays_destroy(&x);
    }
}

/* The view of head h of sequence b; an axis of size 1 is shared by all. */
static ag_tensor part_of(struct arrays *x, enum tensor t, int64_t b, int64_t h)
{
    ag_tensor view = *agc_arrays_tensor(x, t);
    const int64_t *size = x->size[t];
    const int64_t at = (size[0] > 1 ? b * view.strides[0] : 0) + (size[1] > 1 ? h * view.strides[1] : 0);
    view.data = (char *)view.data + at * (int64_t)element_size(x, t);
    return view;
}

/* Accumulates dbias or tdbias of every head of every sequence by a call of its own. */
static void call_each_part(struct arrays *x, const struct arrays *one, int map)
{
    for (int64_t n = 0; n < x->p->batch * x->p->heads; n++) {
        struct arrays part = *one;
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (x->data[t] != NULL) {
                *agc_arrays_tensor(&part, t) = part_of(x, t, n / x->p->heads, n % x->p->heads);
            }
        }
        part.args.accumulate = AG_ACC_DBIAS | AG_ACC_TDBIAS;
        CHECK_OK(call_map(map, one->plan, &part.args, NULL, one->workspace, one->workspace_bytes));
    }
}

/* What AG_ACC_* says about a dbias that is shared and has every query and key: one call adds sequences and heads one
 * after another, with the bits of one call for each. */
static void shared_bias_is_added_in_parts(void)
{
    static const char *const texts[][2] = {{"b3 h2 q7 k9 d8 bias=11qk f32", "q7 k9 d8 bias=11qk f32"},
                                           {"b3 h2 q7 k9 d8 bias=11qk f64", "q7 k9 d8 bias=11qk f64"}};
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    if (ag_backend_isa_count(AG_BACKEND_CPU) == 0) {
        printf("a shared bias: not run, GPU kernels stand for the CPU backend here\n");
        return;
    }
    for (int n = 0; n < 4; n++) {
        const int map = n % 2 == 0 ? 1 : 3;
        const enum tensor t = map == 1 ? T_DBIAS : T_TDBIAS;
        struct arrays x, one;
        make_arrays(&x, texts[n / 2][0], &options, 53);
        make_arrays(&one, texts[n / 2][1], &options, 53);
        CHECK_OK(agc_arrays_run_all(&x));
        CHECK(is_added_in_parts(&x, t), "'%s' is no exception", texts[n / 2][0]);
        free(fill_output(&x, t));
        x.args.accumulate = AG_ACC_DBIAS | AG_ACC_TDBIAS;
        CHECK_OK(call_map(map, x.plan, &x.args, NULL, x.workspace, x.workspace_bytes));
        void *got = test_alloc(x.count[t], element_size(&x, t));
        memcpy(got, x.data[t], tensor_bytes(&x, t));
        free(fill_output(&x, t));
        call_each_part(&x, &one, map);
        same_tensor(&x, t, got, x.data[t], texts[n / 2][0]);
        free(got);
        agc_arrays_destroy(&one);
        agc_arrays_destroy(&x);
    }
}

int main(void)
{
    if (test_on_best_vectors()) {
        printf("layouts and sums: bf16 only, the test without ATTNGRAD_ISA runs the others\n");
    }
    if (test_count(1000) < 500) {
        printf("problems of several tiles: their features on few rows, AG_TEST_COUNT asks for little\n");
    }
    layouts_give_the_same_bits();
    shared_bias_is_added_in_parts();
    zero_strides();
    interleaved();
    outputs_may_be_absent();
    absent_inputs_are_zeros();
    sums_and_dtypes();
    sums_of_the_default();
    return test_maps_summary();
}
