/* Every refusal: wrong problems and options when the plan is made, wrong arguments in a call. Each gives its
 * status and a message with the name and value of the field, and leaves every output as it was. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <math.h>
#include <stddef.h>

enum { PATTERN = 0x5A };

/* ag_last_field() gives the field, without the index that `field` may have; the message is one line, with
 * the field's own name and the value. */
static void check_message(const char *what, const char *field, const char *value)
{
    const char *message = ag_last_message(), *got = ag_last_field(), *dot = strrchr(field, '.');
    const char *name = dot == NULL ? field : dot + 1;
    const size_t length = strcspn(field, "[");
    CHECK(strncmp(got, field, length) == 0 && got[length] == '\0', "%s: the field is '%s', not '%s'", what,
          got, field);
    CHECK(strstr(message, name) != NULL && strstr(message, value) != NULL && strchr(message, '\n') == NULL,
          "%s: the message '%s' does not name '%s' and '%s'", what, message, name, value);
}

/* ---- Wrong problems ----------------------------------------------------------------------------- */

/* The type of the field that is set; AS_IT_IS: none is. */
enum kind { AS_IT_IS, INT32, INT64, REAL };

static const struct wrong_problem {
    const char *text; /* a valid problem before the field is set; invalid with AS_IT_IS */
    const char *field;
    size_t offset;
    enum kind kind;
    int64_t integer;
    double real;
    ag_status status;
} wrong_problems[] = {
#define WRONG(kind, text, field, integer, real, status)                                                      \
    {                                                                                                        \
        text, #field, offsetof(ag_problem, field), kind, integer, real, status                               \
    }
#define WRONG_INT(text, field, value) WRONG(INT64, text, field, value, 0, AG_INVALID_PROBLEM)
#define WRONG_REAL(text, field, value) WRONG(REAL, text, field, 0, value, AG_INVALID_PROBLEM)
#define WRONG_TEXT(text, field)                                                                              \
    {                                                                                                        \
        text, field, 0, AS_IT_IS, 0, 0, AG_INVALID_PROBLEM                                                   \
    }
    WRONG_INT("q4 d4 f32", batch, -1),
    WRONG_INT("q4 d4 f32", batch, INT64_MIN),
    WRONG_INT("q4 d4 f32", batch, INT64_MAX),
    WRONG_INT("q4 d4 f32", heads, 0),
    WRONG_INT("q4 d4 f32", heads, -3),
    WRONG_INT("q4 d4 f32", heads, INT64_MAX),
    WRONG_INT("h6 q4 d4 f32", kv_heads, 4),
    WRONG_INT("h6 q4 d4 f32", kv_heads, 12),
    WRONG_INT("h6 q4 d4 f32", kv_heads, -2),
    WRONG_INT("h6 q4 d4 f32", kv_heads, INT64_MIN),
    WRONG_INT("q4 d4 f32", q_len, -1),
    WRONG_INT("q4 d4 f32", q_len, INT64_MAX),
    WRONG_INT("q4 d4 f32", kv_len, -1),
    WRONG_INT("q4 d4 f32", kv_len, INT64_MIN),
    WRONG_INT("q4 d4 f32", dim_qk, 0),
    WRONG_INT("q4 d4 f32", dim_qk, 513),
    WRONG_INT("q4 d4 f32", dim_qk, -1),
    WRONG_INT("q4 d4 f32", dim_v, 513),
    WRONG_INT("q4 d4 f32", dim_v, -1),
    WRONG_TEXT("b4294967295 h4294967295 q4 d4 f32", "heads"),
    WRONG_TEXT("h1 q72057594037927936 k1 d16 f64", "q_len"),
    WRONG_TEXT("h1 q1 k72057594037927936 d16 f64", "kv_len"),
    WRONG_TEXT("b1048576 h65536 q65536 k1 d512 f16", "q_len"),
    WRONG_TEXT("h1 q4 d1 dv512 f64 packed=144115188075855872,4", "q_total"),
    WRONG_TEXT("b1000000 h1000000 q1000000 k1000000 d1 f32 bias", "bias_size"),
    WRONG_TEXT("b1000000 h1000000 q1000000 k1000000 d1 f32 mask", "mask_size"),
    WRONG_REAL("q4 d4 f32", dropout, 1),
    WRONG_REAL("q4 d4 f32", dropout, -0.5),
    WRONG_REAL("q4 d4 f32", dropout, 1.5),
    WRONG_REAL("q4 d4 f32", dropout, NAN),
    WRONG_REAL("q4 d4 f32", dropout, INFINITY),
    WRONG_REAL("q4 d4 f32", softcap, -1),
    WRONG_REAL("q4 d4 f32", softcap, NAN),
    WRONG_REAL("q4 d4 f32", softcap, INFINITY),
    WRONG_REAL("q4 d4 f32 scale=1", scale, NAN),
    WRONG_REAL("q4 d4 f32 scale=1", scale, INFINITY),
    WRONG_REAL("q4 d4 f32 scale=1", scale, -INFINITY),
    WRONG_INT("q4 d4 f32 window=0,0", window_left, -2),
    WRONG_INT("q4 d4 f32 window=0,0", window_right, -2),
    WRONG_INT("q4 d4 f32 window=0,0", window_right, INT64_MIN),
    WRONG_INT("b3 h2 q4 k5 d4 f32 bias", bias_size[0], 2),
    WRONG_INT("b3 h2 q4 k5 d4 f32 bias", bias_size[1], 3),
    WRONG_INT("b3 h2 q4 k5 d4 f32 bias", bias_size[2], 5),
    WRONG_INT("b3 h2 q4 k5 d4 f32 bias", bias_size[3], 4),
    WRONG_INT("b3 h2 q4 k5 d4 f32 bias", bias_size[3], 0),
    WRONG_INT("b3 h2 q4 k5 d4 f32 bias", bias_size[2], -4),
    WRONG_INT("b3 h2 q4 k5 d4 f32 mask", mask_size[0], 2),
    WRONG_INT("b3 h2 q4 k5 d4 f32 mask", mask_size[3], -1),
    WRONG_INT("b3 h2 q4 k5 d4 f32 mask", mask_size[2], 0),
    WRONG_INT("q4 d4 f32 table=2", table_radius, -1),
    WRONG_INT("q4 d4 f32 table=2", table_radius, INT64_MAX),
    WRONG_INT("q4 d4 f32 table=2", table_radius, INT64_MAX / 2 + 1),
    WRONG_INT("q4 d4 f32 table=2", table_buckets, -1),
    WRONG_INT("q4 d4 f32 table=2", table_buckets, 4),
    WRONG_INT("q4 d4 f32 table=2", table_buckets, INT64_MAX),
    WRONG_INT("h4 q4 d4 f32 table=2", table_heads, 2),
    WRONG_INT("h4 q4 d4 f32 table=2", table_heads, -1),
    WRONG_TEXT("h4 q4 d4 f32 table=2,3", "table_buckets"),
    WRONG_TEXT("h4 q4 d4 f32 alibi=slopes", "alibi_slopes"),
    WRONG_INT("h4 q4 d4 f32 alibi", head_offset, 2),
    WRONG_INT("h4 q4 d4 f32", head_offset, -1),
    WRONG_INT("h4 q4 d4 f32", head_offset, INT64_MAX),
    WRONG_INT("b2 q4 d4 f32 packed=8,8", q_total, -1),
    WRONG_INT("b2 q4 d4 f32 packed=8,8", kv_total, -1),
    WRONG_INT("b2 q4 d4 f32 packed=8,8", kv_total, INT64_MAX),
    WRONG(INT32, "q4 d4 f32", dtype, 0, 0, AG_INVALID_PROBLEM),
    WRONG(INT32, "q4 d4 f32", dtype, 7, 0, AG_INVALID_PROBLEM),
    WRONG(INT32, "q4 d4 f32", dtype, -1, 0, AG_INVALID_PROBLEM),
    WRONG(INT32, "q4 d4 f32", dtype, AG_F8_E4M3, 0, AG_UNSUPPORTED),
    WRONG(INT32, "q4 d4 f32", dtype, AG_F8_E5M2, 0, AG_UNSUPPORTED),
    WRONG(INT32, "q4 d4 f32", out_dtype, 77, 0, AG_INVALID_PROBLEM),
    WRONG(INT32, "q4 d4 f16", out_dtype, AG_F8_E4M3, 0, AG_UNSUPPORTED),
    WRONG(INT32, "q4 d4 f32", align, 2, 0, AG_INVALID_PROBLEM),
    WRONG(INT32, "q4 d4 f32", align, -1, 0, AG_INVALID_PROBLEM),
    WRONG(INT32, "q4 d4 f32", reserved, 1, 0, AG_INVALID_PROBLEM),
    WRONG_TEXT("q4 d4 f32 out=f64", "out_dtype"),
    WRONG_TEXT("q4 d4 f64 out=f32", "out_dtype"),
    WRONG_TEXT("q4 d4 f16 out=bf16", "out_dtype"),
    WRONG_TEXT("q4 d4 f32 out=f16", "out_dtype"),
    WRONG_TEXT("q4 d4 f32 grad=f16", "grad_dtype"),
    WRONG_TEXT("q4 d4 bf16 grad=f64", "grad_dtype"),
    WRONG_TEXT("q4 d4 f64 aux=f32", "aux_dtype"),
    WRONG_TEXT("q4 d4 bf16 aux=f16", "aux_dtype"),
};

static void value_text(const struct wrong_problem *w, char *text, size_t size)
{
    text[0] = '\0';
    if (w->kind == REAL) {
        snprintf(text, size, "%g", w->real);
    } else if (w->kind != AS_IT_IS) {
        snprintf(text, size, "%lld", (long long)w->integer);
    }
}

static void set_field(ag_problem *p, const struct wrong_problem *w)
{
    char *at = (char *)p + w->offset;
    const int32_t narrow = (int32_t)w->integer;
    if (w->kind == INT64) {
        memcpy(at, &w->integer, sizeof w->integer);
    } else if (w->kind == REAL) {
        memcpy(at, &w->real, sizeof w->real);
    } else if (w->kind == INT32) {
        memcpy(at, &narrow, sizeof narrow);
    }
}

static void refuse_problem(const ag_problem *p, const ag_options *options, ag_status status, const char *what,
                           const char *field, const char *value)
{
    ag_plan *const not_null = (ag_plan *)(void *)&status;
    ag_plan *plan = not_null;
    const ag_status got = ag_plan_create(&plan, p, options);
    if (CHECK(got == status, "%s with %s %s: %s instead of %s", what, field, value, ag_status_string(got),
              ag_status_string(status))) {
        check_message(what, field, value);
    }
    if (got == AG_OK) {
        ag_plan_destroy(plan);
    } else {
        CHECK(plan == NULL, "%s: the plan is not NULL", what);
    }
}

static void problems(void)
{
    for (size_t n = 0; n < sizeof wrong_problems / sizeof wrong_problems[0]; n++) {
        const struct wrong_problem *w = &wrong_problems[n];
        ag_problem p = AG_PROBLEM_INIT;
        char value[40];
        CHECK(ag_problem_parse(w->text, &p) == AG_OK, "'%s': %s", w->text, ag_last_message());
        value_text(w, value, sizeof value);
        set_field(&p, w);
        refuse_problem(&p, NULL, w->status, w->text, w->field, value);
    }
}

static ag_problem small_problem(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_OK(ag_problem_parse("b2 h2 q4 k5 d4 f32", &p));
    return p;
}

static void problem_flags_and_arrays(void)
{
    ag_problem p = small_problem();
    p.flags = AG_PAGED;
    refuse_problem(&p, NULL, AG_UNSUPPORTED, "AG_PAGED", "flags", "AG_PAGED");
    for (uint32_t bit = 1u << 11; bit != 0; bit <<= 1) {
        p.flags = bit;
        refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "an unknown flag", "flags", "");
    }
    p.flags = AG_ALIBI | AG_SLOPES;
    p.alibi_slopes = (const double[]){1, 1};
    refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "both kinds of slopes", "flags", "AG_SLOPES");
    p.flags = AG_SLOPES;
    p.alibi_slopes = (const double[]){1, NAN};
    refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "a slope of NaN", "alibi_slopes[1]", "nan");
    p = small_problem();
    p.flags = AG_TABLE;
    p.table_radius = 1;
    p.table_buckets = 3;
    static const int32_t buckets[][3] = {{0, 3, 0}, {0, 0, -1}, {INT32_MIN, 0, 0}, {0, 0, INT32_MAX}};
    static const char *const names[] = {"buckets[1]", "buckets[2]", "buckets[0]", "buckets[2]"};
    for (int n = 0; n < 4; n++) {
        p.buckets = buckets[n];
        refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "a bucket out of range", names[n], "");
    }
}

/* Fields whose flag is not set are not read. */
static void fields_without_their_flag(void)
{
    ag_problem p = small_problem();
    ag_plan *plan = NULL;
    p.scale = NAN;
    p.window_left = -99;
    p.bias_size[0] = p.mask_size[3] = -5;
    p.table_radius = -1;
    p.table_buckets = p.table_heads = 999;
    p.q_total = p.kv_total = -7;
    p.buckets = (const int32_t *)(uintptr_t)64; /* never to be followed */
    p.alibi_slopes = (const double *)(uintptr_t)64;
    CHECK_OK(ag_plan_create(&plan, &p, NULL));
    ag_plan_destroy(plan);
}

/* ---- Options and environment -------------------------------------------------------------------- */

static void *some_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return malloc(size);
}

static void some_release(void *ctx, void *memory)
{
    (void)ctx;
    free(memory);
}

static void options(void)
{
    const ag_problem p = small_problem();
    ag_options good = AG_OPTIONS_INIT, o = good;
    o.flags = 4;
    refuse_problem(&p, &o, AG_INVALID_PROBLEM, "options", "options.flags", "4");
    o = good;
    o.device = -9;
    refuse_problem(&p, &o, AG_INVALID_PROBLEM, "options", "options.device", "-9");
    static const int32_t no_backend[] = {-1, 4711, INT32_MAX}, no_isa[] = {-1, 6, 99},
                         no_threads[] = {-1, 1025, INT32_MAX};
    for (int n = 0; n < 3; n++) {
        char value[16];
        o = good;
        o.backend = no_backend[n];
        snprintf(value, sizeof value, "%d", (int)o.backend);
        refuse_problem(&p, &o, o.backend < 0 ? AG_INVALID_PROBLEM : AG_UNSUPPORTED, "options",
                       "options.backend", value);
        o = good;
        o.isa = no_isa[n];
        snprintf(value, sizeof value, "%d", (int)o.isa);
        refuse_problem(&p, &o, AG_INVALID_PROBLEM, "options", "options.isa", value);
        o = good;
        o.threads = no_threads[n];
        snprintf(value, sizeof value, "%d", (int)o.threads);
        refuse_problem(&p, &o, AG_INVALID_PROBLEM, "options", "options.threads", value);
    }
    o = good;
    o.backend = AG_BACKEND_CUDA;
    refuse_problem(&p, &o, AG_UNSUPPORTED, "options", "options.backend", "backend is 3, cuda: not built");
    o = good;
    o.alloc = some_alloc;
    refuse_problem(&p, &o, AG_INVALID_PROBLEM, "options", "options.release", "");
    o = good;
    o.release = some_release;
    refuse_problem(&p, &o, AG_INVALID_PROBLEM, "options", "options.alloc", "");
}

static void environment(void)
{
    const ag_problem p = small_problem();
    static const char *const wrong[][2] = {
        {"ATTNGRAD_THREADS", "many"}, {"ATTNGRAD_THREADS", "-2"},
        {"ATTNGRAD_THREADS", "3x"},   {"ATTNGRAD_THREADS", "99999999999999999999"},
        {"ATTNGRAD_BACKEND", "fast"}, {"ATTNGRAD_ISA", "mmx"}};
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        setenv(wrong[n][0], wrong[n][1], 1);
        refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "environment", wrong[n][0], wrong[n][1]);
        unsetenv(wrong[n][0]);
    }
    setenv("ATTNGRAD_BACKEND", "cuda", 1);
    refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "environment", "ATTNGRAD_BACKEND",
                   "'cuda': this library has cpu, reference");
    unsetenv("ATTNGRAD_BACKEND");
    for (int32_t given = 0; given <= 2; given += 2) { /* options take precedence over the environment */
        ag_options o = AG_OPTIONS_INIT;
        ag_plan *plan = NULL;
        setenv("ATTNGRAD_THREADS", "3", 1);
        o.threads = given;
        CHECK_OK(ag_plan_create(&plan, &p, &o));
        ag_plan_info info = {.struct_size = sizeof info};
        CHECK_OK(ag_plan_info_get(plan, &info));
        CHECK_INT(info.threads, given ? 2 : 3);
        ag_plan_destroy(plan);
        unsetenv("ATTNGRAD_THREADS");
    }
}

/* ---- Wrong calls -------------------------------------------------------------------------------- */

/* Calls the map with x->args as they are now; what the test wrote into the outputs must stay. */
static void refuse_call(struct arrays *x, int map, const ag_exec *exec, void *workspace, size_t bytes,
                        ag_status status, const char *what, const char *field, const char *value)
{
    void *before[T_COUNT];
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            memset(x->data[t], PATTERN, tensor_bytes(x, t));
        }
    }
    keep_outputs(x, before);
    const ag_status got = call_map(map, x->plan, &x->args, exec, workspace, bytes);
    if (CHECK(got == status, "%s with %s: %s instead of %s", map_name[map], what, ag_status_string(got),
              ag_status_string(status))) {
        check_message(what, field, value);
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        CHECK(before[t] == NULL || memcmp(before[t], x->data[t], tensor_bytes(x, t)) == 0,
              "%s with %s: %s was written", map_name[map], what, agc_tensor_info[t].name);
    }
    free_outputs(before);
}

static void refuse_args(struct arrays *x, int map, const char *what, const char *field, const char *value)
{
    refuse_call(x, map, NULL, x->workspace, x->workspace_bytes, AG_INVALID_ARGUMENT, what, field, value);
}

/* Does the map require the tensor? Maps are 0 forward, 1 vjp, 2 jvp, 3 vjp_jvp. */
static int is_required(enum tensor t, int map)
{
    static const enum tensor by_all[] = {T_Q, T_K, T_V, T_BIAS, T_MASK, T_TABLE, T_SINK};
    static const enum tensor by_map[MAPS][5] = {{T_O, T_O, T_O, T_O, T_O},
                                                {T_O, T_LSE, T_D_O, T_O, T_O},
                                                {T_TO, T_TO, T_TO, T_TO, T_TO},
                                                {T_O, T_LSE, T_D_O, T_TO, T_MU}};
    for (int n = 0; n < 7; n++) {
        if (t == by_all[n] || (n < 5 && t == by_map[map][n])) {
            return 1;
        }
    }
    return 0;
}

/* Does the map read the tensor if it is present? */
static int is_optional_input(enum tensor t, int map)
{
    const enum tensor_role role = agc_tensor_info[t].role;
    const int tangent = role == ROLE_TANGENT, of_tangents = t == T_TD_O || t == T_TD_LSE;
    const int backward = map % 2 == 1, of_backward = t == T_D_LSE || t == T_O_LOW;
    return (tangent && map >= 2) || ((of_tangents || t == T_TO_LOW) && map == 3) || (of_backward && backward);
}

static int takes_part(enum tensor t, int map)
{
    return is_required(t, map) || is_optional_input(t, map) ||
           (agc_tensor_info[t].writers & map_bit[map]) != 0;
}

static void pointers(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            ag_tensor *tensor = agc_arrays_tensor(x, t);
            if (x->data[t] == NULL) {
                continue;
            }
            if (is_required(t, map)) {
                tensor->data = NULL;
                refuse_args(x, map, "a missing pointer", agc_tensor_info[t].name, "NULL");
                x->args = good;
            }
            if (takes_part(t, map) && element_size(x, t) > 1) {
                tensor->data = (char *)x->data[t] + 1;
                refuse_args(x, map, "a misaligned pointer", agc_tensor_info[t].name, "aligned");
                x->args = good;
            }
        }
    }
}

/* Two tensors in one buffer. */
struct pair {
    enum tensor tensor[2];
    char *buffer;
    size_t bytes;
};

/* The same elements, in reverse order along every axis. */
static void flip(const struct arrays *x, enum tensor t, ag_tensor *view)
{
    int64_t last = 0;
    for (int axis = 0; axis < 4; axis++) {
        last += view->strides[axis] * (x->size[t][axis] - 1);
        view->strides[axis] = -view->strides[axis];
    }
    view->data = (char *)view->data + last * (int64_t)element_size(x, t);
}

/* Dense views: the first tensor's at the beginning of the buffer, the second's at `offset` bytes. Bits 0 and 1 of
 * `flipped`: whether the first and the second are flipped. */
static void place(struct arrays *x, const struct pair *pair, size_t offset, int flipped)
{
    memset(pair->buffer, PATTERN, pair->bytes);
    for (int n = 0; n < 2; n++) {
        const enum tensor t = pair->tensor[n];
        *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, pair->buffer + (n == 0 ? 0 : offset));
        if (flipped >> n & 1) {
            flip(x, t, agc_arrays_tensor(x, t));
        }
    }
}

static void check_untouched(const char *buffer, size_t bytes, const char *what)
{
    size_t n = 0;
    while (n < bytes && buffer[n] == PATTERN) {
        n++;
    }
    CHECK(n == bytes, "%s: byte %zu of the buffer was written", what, n);
}

/* The second tensor begins where the first does, or in its last element: refused, and the message names both. After it:
 * accepted. */
static void refuse_overlap(struct arrays *x, int map, enum tensor first, enum tensor second)
{
    const ag_args good = x->args;
    const size_t bytes = tensor_bytes(x, first), element = element_size(x, second);
    struct pair pair = {{first, second}, NULL, bytes + tensor_bytes(x, second) + 2 * element};
    pair.buffer = test_alloc((int64_t)pair.bytes, 1);
    /* Of two outputs the message is about the first in the order of ag_args. */
    const int first_is_blamed =
        is_output(x, first, map_bit[map]) && (first < second || !is_output(x, second, map_bit[map]));
    const char *const blamed = agc_tensor_info[first_is_blamed ? first : second].name;
    const char *const other = agc_tensor_info[first_is_blamed ? second : first].name;
    const size_t refused[] = {0, (bytes - 1) / element * element};
    for (int flipped = 0; flipped < 4; flipped++) {
        for (int n = 0; n < 2; n++) {
            place(x, &pair, refused[n], flipped);
            refuse_args(x, map, "overlapping tensors", blamed, other);
            check_untouched(pair.buffer, pair.bytes, "overlapping tensors");
        }
        place(x, &pair, (bytes + element - 1) / element * element, flipped);
        CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
        x->args = good;
    }
    free(pair.buffer);
}

static void overlaps(struct arrays *x)
{
    CHECK_OK(agc_arrays_run_all(x));
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            for (enum tensor other = 0; other < T_COUNT; other++) {
                if (t != other && is_output(x, t, map_bit[map]) && x->data[other] != NULL &&
                    takes_part(other, map)) {
                    refuse_overlap(x, map, t, other);
                    refuse_overlap(x, map, other, t);
                }
            }
        }
    }
}

/* A tensor that reaches one element into the workspace, at either end, or whose rows lie around it. */
static void tensors_in_the_workspace(struct arrays *x)
{
    const ag_args good = x->args;
    const size_t bytes = x->workspace_bytes / 64 * 64 + 64;
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (x->data[t] == NULL || !takes_part(t, map)) {
                continue;
            }
            const size_t room = tensor_bytes(x, t) / 64 * 64 + 64, element = element_size(x, t);
            char *buffer = test_alloc((int64_t)(bytes + 2 * room), 1), *workspace = buffer + room;
            char *const refused[] = {workspace - tensor_bytes(x, t) + element, workspace,
                                     workspace + bytes - element};
            char *const accepted[] = {workspace - tensor_bytes(x, t), workspace + bytes};
            memset(buffer, PATTERN, bytes + 2 * room);
            for (int n = 0; n < 3; n++) {
                *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, refused[n]);
                refuse_call(x, map, NULL, workspace, bytes, AG_INVALID_ARGUMENT, "a tensor in the workspace",
                            agc_tensor_info[t].name, "workspace");
            }
            check_untouched(buffer, bytes + 2 * room, "a tensor in the workspace");
            for (int n = 0; n < 2; n++) {
                *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, accepted[n]);
                CHECK_OK(call_map(map, x->plan, &x->args, NULL, workspace, bytes));
            }
            x->args = good;
            free(buffer);
        }
    }
}

static void rows_around_the_workspace(struct arrays *x)
{
    const ag_args good = x->args;
    const size_t heads = tensor_bytes(x, T_O);
    char *buffer = test_alloc((int64_t)(x->workspace_bytes + 2 * heads), 1);
    x->args.o.data = buffer;
    x->args.o.strides[0] = (int64_t)((x->workspace_bytes + heads) / element_size(x, T_O));
    refuse_call(x, 0, NULL, buffer + heads, x->workspace_bytes, AG_INVALID_ARGUMENT,
                "sequences around the workspace", "o", "workspace");
    x->args = good;
    free(buffer);
}

static void strides(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            ag_tensor *tensor = agc_arrays_tensor(x, t);
            for (int axis = 0; axis < 4 && x->data[t] != NULL && takes_part(t, map); axis++) {
                if (x->size[t][axis] < 2) {
                    continue;
                }
                const int output = is_output(x, t, map_bit[map]);
                for (int other = 0; output && other < 4; other++) {
                    if (other != axis && x->size[t][other] > 1) {
                        tensor->strides[axis] = -tensor->strides[other];
                        refuse_args(x, map, "two equal strides", agc_tensor_info[t].name, "stride");
                        x->args = good;
                    }
                }
                if (output) {
                    tensor->strides[axis] = 0;
                    refuse_args(x, map, "a zero stride on an output", agc_tensor_info[t].name, "stride");
                    x->args = good;
                }
                static const int64_t far[] = {INT64_MAX, INT64_MIN, INT64_MIN + 1, INT64_MAX / 2 + 1};
                /* The mask has elements of one byte: 2^62 of them do not overflow. */
                for (int n = 0; n < (t == T_MASK ? 3 : 4); n++) {
                    tensor->strides[axis] = far[n];
                    refuse_args(x, map, "a stride that overflows", agc_tensor_info[t].name, "stride");
                    x->args = good;
                }
            }
        }
    }
}

/* One row reaches one element into the next. */
static void rows_that_overlap(struct arrays *x)
{
    const ag_args good = x->args;
    x->args.dq.strides[2] = x->p->dim_qk - 1;
    refuse_args(x, 1, "rows that overlap", "dq", "stride");
    x->args = good;
    x->args.dbias.strides[1] = 1;
    x->args.dbias.strides[3] = 2; /* 2, 4, 6 .. and 1, 2, 3 .. meet */
    refuse_args(x, 1, "axes that meet", "dbias", "stride");
    x->args = good;
}

static void workspaces(struct arrays *x)
{
    for (int map = 0; map < MAPS; map++) {
        size_t bytes = 0;
        CHECK_OK(ag_plan_workspace(x->plan, map_bit[map], &bytes));
        CHECK(bytes <= x->workspace_bytes, "%s needs %zu bytes, all maps %zu", map_name[map], bytes,
              x->workspace_bytes);
        char value[32];
        snprintf(value, sizeof value, "%zu", bytes);
        refuse_call(x, map, NULL, NULL, bytes, AG_WORKSPACE, "no workspace", "workspace", value);
        refuse_call(x, map, NULL, x->workspace, bytes - 1, AG_WORKSPACE, "one byte too few", "workspace",
                    value);
        refuse_call(x, map, NULL, x->workspace, 0, AG_WORKSPACE, "no bytes", "workspace", value);
    }
}

/* Exactly the size that ag_plan_workspace returns, at several alignments; the memory ends where the workspace ends. */
static void exact_workspaces_work(struct arrays *x)
{
    CHECK_OK(agc_arrays_run_all(x));
    for (int map = 0; map < MAPS; map++) {
        size_t bytes = 0;
        CHECK_OK(ag_plan_workspace(x->plan, map_bit[map], &bytes));
        for (size_t shift = 0; shift < 64; shift += shift < 9 ? 1 : 11) {
            char *memory = test_alloc((int64_t)(bytes + shift), 1);
            CHECK_OK(call_map(map, x->plan, &x->args, NULL, memory + shift, bytes));
            free(memory);
        }
    }
}

static void positions(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        x->args.q_offset = INT64_MAX;
        refuse_args(x, map, "a far offset", "q_offset", "9223372036854775807");
        x->args = good;
        x->args.k_offset = INT64_MIN;
        refuse_args(x, map, "a far offset", "k_offset", "-9223372036854775808");
        x->args = good;
        x->args.batch_offset = -1;
        refuse_args(x, map, "a negative sequence number", "batch_offset", "-1");
        x->args = good;
        x->args.batch_offset = INT64_MAX;
        refuse_args(x, map, "a sequence number beyond 2^32", "batch_offset", "9223372036854775807");
        x->args = good;
        x->args.accumulate = 1u << 18;
        refuse_args(x, map, "an unknown bit", "accumulate", "40000");
        x->args.accumulate = 1u << 31;
        refuse_args(x, map, "an unknown bit", "accumulate", "80000000");
        x->args = good;
    }
}

static void lengths(struct arrays *x)
{
    static const int64_t right[] = {0, 7, 3};
    static const struct {
        int64_t lengths[3];
        const char *index, *value;
    } wrong[] = {{{8, 0, 0}, "[0]", "8"},
                 {{0, -1, 0}, "[1]", "-1"},
                 {{0, 0, INT64_MAX}, "[2]", "9223372036854775807"}};
    const ag_args good = x->args;
    for (int n = 0; n < 12; n++) {
        char field[32];
        const int map = n % 4;
        x->args.q_lengths = wrong[n / 4].lengths;
        snprintf(field, sizeof field, "q_lengths%s", wrong[n / 4].index);
        refuse_args(x, map, "a wrong length", field, wrong[n / 4].value);
        x->args = good;
        int64_t of_keys[3]; /* kv_len is 9 */
        for (int b = 0; b < 3; b++) {
            of_keys[b] = wrong[n / 4].lengths[b] == 8 ? 10 : wrong[n / 4].lengths[b];
        }
        x->args.q_lengths = right;
        x->args.kv_lengths = of_keys;
        snprintf(field, sizeof field, "kv_lengths%s", wrong[n / 4].index);
        refuse_args(x, map, "a wrong length", field, n / 4 == 0 ? "10" : wrong[n / 4].value);
        x->args = good;
        x->args.q_packed = right;
        refuse_args(x, map, "packed offsets of a padded problem", "q_packed", "packed");
        x->args = good;
        x->args.k_packed = right;
        refuse_args(x, map, "packed offsets of a padded problem", "k_packed", "packed");
        x->args = good;
    }
}

/* b3 q7 k9 packed=15,20 */
static void packed_offsets(struct arrays *x)
{
    static const struct {
        int64_t offsets[4];
        const char *index, *value;
    } wrong[] = {
        {{1, 2, 3, 4}, "[0]", "1"},     {{-1, 2, 3, 4}, "[0]", "-1"},
        {{0, 5, 4, 6}, "[2]", "4"},     {{0, 1, 2, -3}, "[3]", "-3"},
        {{0, 7, 14, 21}, "[3]", "21"},  {{0, 0, 0, INT64_MAX}, "[3]", "9223372036854775807"},
        {{0, 10, 10, 10}, "[1]", "10"}, /* longer than q_len and kv_len */
    };
    static const int64_t lengths_given[] = {1, 1, 1};
    const ag_args good = x->args;
    for (size_t n = 0; n < MAPS * sizeof wrong / sizeof wrong[0]; n++) {
        char field[32];
        const int map = (int)(n % MAPS);
        x->args.q_packed = wrong[n / MAPS].offsets;
        snprintf(field, sizeof field, "q_packed%s", wrong[n / MAPS].index);
        refuse_args(x, map, "a wrong offset", field, wrong[n / MAPS].value);
        x->args = good;
        x->args.k_packed = wrong[n / MAPS].offsets;
        snprintf(field, sizeof field, "k_packed%s", wrong[n / MAPS].index);
        refuse_args(x, map, "a wrong offset", field, wrong[n / MAPS].value);
        x->args = good;
    }
    for (int map = 0; map < MAPS; map++) {
        x->args.q_packed = NULL;
        refuse_args(x, map, "no offsets", "q_packed", "NULL");
        x->args = good;
        x->args.k_packed = NULL;
        refuse_args(x, map, "no offsets", "k_packed", "NULL");
        x->args = good;
        x->args.q_lengths = lengths_given;
        refuse_args(x, map, "lengths of a packed problem", "q_lengths", "packed");
        x->args = good;
        x->args.kv_lengths = lengths_given;
        refuse_args(x, map, "lengths of a packed problem", "kv_lengths", "packed");
        x->args = good;
        x->args.q_offset = 1; /* its align is bottom-right */
        refuse_args(x, map, "bottom-right with an offset", "q_offset", "1");
        x->args = good;
        x->args.k_offset = -2;
        refuse_args(x, map, "bottom-right with an offset", "k_offset", "-2");
        x->args = good;
    }
}

/* A tensor of a feature that the problem does not have, or the low half of an output that is not in 16 bits. */
static void tensors_of_other_problems(void)
{
    struct arrays plain, full;
    make_arrays(&plain, "b3 h4 kv2 q7 k9 d5 dv3 f32", NULL, 1);
    make_arrays(&full, EVERY_FEATURE "f32", NULL, 1);
    const ag_args good = plain.args;
    CHECK_OK(agc_arrays_run_all(&plain));
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (plain.data[t] == NULL && takes_part(t, map)) {
                const enum tensor source = agc_tensor_info[t].role == ROLE_LOW_HALF ? T_D_O : t;
                *agc_arrays_tensor(&plain, t) = *agc_arrays_tensor(&full, source);
                refuse_args(&plain, map, "a tensor without its feature", agc_tensor_info[t].name, "");
                plain.args = good;
            }
        }
    }
    agc_arrays_destroy(&full);
    agc_arrays_destroy(&plain);
}

/* A map does not look at what is not its own: no pointer of another map is followed or refused. */
static void fields_of_other_maps(struct arrays *x)
{
    const ag_args good = x->args;
    CHECK_OK(agc_arrays_run_all(x));
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (!takes_part(t, map)) {
                *agc_arrays_tensor(x, t) = (ag_tensor){(void *)(uintptr_t)1, {INT64_MIN, INT64_MAX, -1, 0}};
            }
        }
        CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
        x->args = good;
    }
}

static void absent_arguments(struct arrays *x)
{
    for (int map = 0; map < MAPS; map++) {
        CHECK_STATUS(call_map(map, NULL, &x->args, NULL, x->workspace, x->workspace_bytes),
                     AG_INVALID_ARGUMENT);
        check_message(map_name[map], "plan", "NULL");
        CHECK_STATUS(call_map(map, x->plan, NULL, NULL, x->workspace, x->workspace_bytes),
                     AG_INVALID_ARGUMENT);
        check_message(map_name[map], "args", "NULL");
    }
    ag_plan *plan = NULL;
    const ag_problem p = small_problem();
    CHECK(ag_plan_create(NULL, &p, NULL) != AG_OK, "ag_plan_create without a place for the plan");
    CHECK(ag_plan_create(&plan, NULL, NULL) != AG_OK, "ag_plan_create without a problem");
    ag_plan_destroy(NULL);
}

static void workspace_query(struct arrays *x)
{
    size_t bytes = 12345;
    CHECK_STATUS(ag_plan_workspace(NULL, AG_MAP_FORWARD, &bytes), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_plan_workspace(x->plan, AG_MAP_FORWARD, NULL), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_plan_workspace(x->plan, AG_MAP_JVP_JVP, &bytes), AG_UNSUPPORTED);
    CHECK_STATUS(ag_plan_workspace(x->plan, AG_MAP_FORWARD | AG_MAP_JVP_JVP, &bytes), AG_UNSUPPORTED);
    CHECK_STATUS(ag_plan_workspace(x->plan, 1u << 5, &bytes), AG_INVALID_ARGUMENT);
    CHECK_INT(bytes, 12345);
    size_t largest = 0, all = 0;
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(ag_plan_workspace(x->plan, map_bit[map], &bytes));
        largest = bytes > largest ? bytes : largest;
    }
    CHECK_OK(ag_plan_workspace(x->plan, ALL_MAPS, &all));
    CHECK_INT(all, largest);
}

static void conversions(void)
{
    double from[2] = {1, 2}, to[2] = {3, 4};
    CHECK_STATUS(ag_convert(to, 0, from, AG_F64, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F64, from, 99, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F64, from, AG_F64, -1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(NULL, AG_F64, from, AG_F64, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F64, NULL, AG_F64, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F8_E4M3, from, AG_F64, 1), AG_UNSUPPORTED);
    CHECK(to[0] == 3 && to[1] == 4, "a refused conversion wrote");
    CHECK_OK(ag_convert(NULL, AG_F32, NULL, AG_F64, 0));
}

/* ---- Trace -------------------------------------------------------------------------------------- */

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

/* ---- Sizes of structs --------------------------------------------------------------------------- */

/* Uses the struct `given` in a call that is otherwise valid. */
typedef ag_status (*use)(void *given, struct arrays *x);

static ag_status use_problem(void *given, struct arrays *x)
{
    ag_plan *plan = NULL;
    (void)x;
    const ag_status status = ag_plan_create(&plan, given, NULL);
    ag_plan_destroy(plan);
    return status;
}

static ag_status use_options(void *given, struct arrays *x)
{
    ag_plan *plan = NULL;
    const ag_status status = ag_plan_create(&plan, x->p, given);
    ag_plan_destroy(plan);
    return status;
}

static ag_status use_args(void *given, struct arrays *x)
{
    return ag_forward(x->plan, given, NULL, x->workspace, x->workspace_bytes);
}

static ag_status use_exec(void *given, struct arrays *x)
{
    return ag_forward(x->plan, &x->args, given, x->workspace, x->workspace_bytes);
}

static ag_status use_merge(void *given, struct arrays *x)
{
    return ag_merge(x->plan, given, NULL);
}

static ag_status use_trace(void *given, struct arrays *x)
{
    return ag_trace(x->plan, AG_MAP_FORWARD, &x->args, given, x->workspace, x->workspace_bytes);
}

/* `older`: the size of an older version of the struct, without its last fields. `refused`: the status of a wrong
 * size. */
static void struct_sizes(const char *name, const void *good, size_t size, size_t older, use call,
                         struct arrays *x, ag_status refused)
{
    unsigned char *block = test_alloc((int64_t)size + 64, 1);
    const struct {
        uint32_t size;
        int at; /* offset, after our fields, of a byte that is not zero; -1: none */
        ag_status status;
    } cases[] = {
        {(uint32_t)size, -1, AG_OK},
        {(uint32_t)size, 0, AG_OK},
        {0, -1, refused},
        {1, -1, refused},
        {4, -1, refused},
        {(uint32_t)older, -1, AG_OK},
        {(uint32_t)size + 8, -1, AG_OK},
        {(uint32_t)size + 64, -1, AG_OK},
        {(uint32_t)size + 8, 0, refused},
        {(uint32_t)size + 64, 63, refused},
        {(uint32_t)size + 56, 56, AG_OK},
        {(uint32_t)size + 1, 0, refused},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        memset(block, 0, size + 64);
        memcpy(block, good, size);
        memcpy(block, &cases[n].size, sizeof cases[n].size);
        if (cases[n].size < size) {
            memset(block + cases[n].size + (cases[n].size < 4 ? 4 : 0), 0xEE,
                   size - cases[n].size - (cases[n].size < 4 ? 4 : 0)); /* must not be read */
        }
        if (cases[n].at >= 0) {
            block[size + (size_t)cases[n].at] = 1;
        }
        const ag_status got = call(block, x);
        CHECK(got == cases[n].status, "%s with struct_size %u of %zu, byte %d: %s: %s", name,
              (unsigned)cases[n].size, size, cases[n].at, ag_status_string(got), ag_last_message());
        if (got != AG_OK && cases[n].status != AG_OK) {
            check_message(name, name, "struct_size");
        }
    }
    free(block);
}

static void all_struct_sizes(void)
{
    struct arrays x;
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, "b2 h2 q3 k4 d2 f32", &reference, 8);
    const ag_problem p = small_problem();
    const ag_options o = AG_OPTIONS_INIT;
    const ag_exec exec = AG_EXEC_INIT;
    const ag_trace_args trace = {.struct_size = sizeof trace};
    float parts[2][24];
    double rows[2][12];
    memset(parts, 0, sizeof parts);
    memset(rows, 0, sizeof rows);
    const ag_merge_args merge = {.struct_size = sizeof merge,
                                 .o1 = ag_bhnd(parts[0], 2, 3, 2),
                                 .lse1 = ag_bhnd(rows[0], 2, 3, 1),
                                 .o2 = ag_bhnd(parts[1], 2, 3, 2),
                                 .lse2 = ag_bhnd(rows[1], 2, 3, 1),
                                 .o = x.args.o,
                                 .lse = x.args.lse};
    struct_sizes("problem", &p, sizeof p, offsetof(ag_problem, table_radius), use_problem, &x,
                 AG_INVALID_PROBLEM);
    struct_sizes("options", &o, sizeof o, offsetof(ag_options, alloc_ctx), use_options, &x,
                 AG_INVALID_PROBLEM);
    struct_sizes("args", &x.args, sizeof x.args, offsetof(ag_args, d_o), use_args, &x, AG_INVALID_ARGUMENT);
    struct_sizes("exec", &exec, sizeof exec, offsetof(ag_exec, ctx), use_exec, &x, AG_INVALID_ARGUMENT);
    struct_sizes("args", &merge, sizeof merge, offsetof(ag_merge_args, to), use_merge, &x,
                 AG_INVALID_ARGUMENT);
    struct_sizes("trace", &trace, sizeof trace, offsetof(ag_trace_args, J), use_trace, &x,
                 AG_INVALID_ARGUMENT);
    agc_arrays_destroy(&x);
}

/* A function that fills in an info struct writes no more than the caller's struct_size. */
typedef ag_status (*fill)(void *info, struct arrays *x);

static ag_status fill_info(void *info, struct arrays *x)
{
    (void)x;
    return ag_info_get(info);
}

static ag_status fill_plan_info(void *info, struct arrays *x)
{
    return ag_plan_info_get(x->plan, info);
}

static ag_status fill_isa_info(void *info, struct arrays *x)
{
    (void)x;
    return ag_backend_isa(AG_BACKEND_CPU, 0, info);
}

static ag_status fill_backend_info(void *info, struct arrays *x)
{
    (void)x;
    return ag_backend_info_get(0, info);
}

static void info_sizes(const char *name, size_t full, fill call, struct arrays *x)
{
    unsigned char *bytes = test_alloc((int64_t)full + 64, 1);
    for (size_t size = 0; size <= full + 64; size += 4) {
        memset(bytes, PATTERN, full + 64);
        const uint32_t struct_size = (uint32_t)size;
        memcpy(bytes, &struct_size, sizeof struct_size);
        const ag_status status = call(bytes, x);
        CHECK((status == AG_OK) == (size >= 8), "%s of %zu bytes: %s", name, size, ag_status_string(status));
        for (size_t n = size < 4 ? 4 : size; n < full + 64; n++) {
            if (!CHECK(bytes[n] == PATTERN, "%s of %zu bytes: byte %zu was written", name, size, n)) {
                break;
            }
        }
    }
    free(bytes);
    CHECK_STATUS(call(NULL, x), AG_INVALID_ARGUMENT);
    check_message(name, "info", "NULL");
}

static void all_info_sizes(void)
{
    struct arrays x;
    ag_plan_info info = {.struct_size = sizeof info};
    make_arrays(&x, "b2 h2 q3 k4 d2 f32", NULL, 8);
    info_sizes("ag_info", sizeof(ag_info), fill_info, &x);
    info_sizes("ag_plan_info", sizeof(ag_plan_info), fill_plan_info, &x);
    info_sizes("ag_isa_info", sizeof(ag_isa_info), fill_isa_info, &x);
    info_sizes("ag_backend_info", sizeof(ag_backend_info), fill_backend_info, &x);
    CHECK_STATUS(ag_plan_info_get(NULL, &info), AG_INVALID_ARGUMENT);
    check_message("ag_plan_info_get", "plan", "NULL");
    agc_arrays_destroy(&x);
}

int main(void)
{
    struct arrays padded, packed;
    problems();
    problem_flags_and_arrays();
    fields_without_their_flag();
    options();
    environment();
    make_arrays(&padded, EVERY_FEATURE "f32", NULL, 2);
    make_arrays(&packed, EVERY_FEATURE_PACKED "f16", NULL, 2);
    CHECK_OK(agc_arrays_add_low_halves(&packed));
    for (int n = 0; n < 2; n++) {
        struct arrays *x = n == 0 ? &padded : &packed;
        pointers(x);
        overlaps(x);
        tensors_in_the_workspace(x);
        strides(x);
        workspaces(x);
        exact_workspaces_work(x);
        fields_of_other_maps(x);
        absent_arguments(x);
        workspace_query(x);
    }
    rows_that_overlap(&padded);
    rows_around_the_workspace(&padded);
    positions(&padded);
    lengths(&padded);
    packed_offsets(&packed);
    agc_arrays_destroy(&packed);
    agc_arrays_destroy(&padded);
    tensors_of_other_problems();
    conversions();
    traces();
    traces_write_no_tensor();
    all_struct_sizes();
    all_info_sizes();
    return test_summary();
}
