/* What ag_plan_create refuses: wrong problems, wrong options, a wrong environment. */
#define _POSIX_C_SOURCE 200809L

#include "refusals.h"

#include <math.h>
#include <stddef.h>

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
    static const int32_t no_backend[] = {-1, 4711, INT32_MAX}, no_isa[] = {-1, 4711, 99},
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
    if (test_has_backend(AG_BACKEND_CUDA)) {
        printf("cuda is built in: what it refuses is tested in tests/cuda\n");
    } else {
        o = good;
        o.backend = AG_BACKEND_CUDA;
        refuse_problem(&p, &o, AG_UNSUPPORTED, "options", "options.backend", "backend is 3, cuda: not built");
    }
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
    setenv("ATTNGRAD_BACKEND", "abacus", 1);
    refuse_problem(&p, NULL, AG_INVALID_PROBLEM, "environment", "ATTNGRAD_BACKEND",
                   "'abacus': this library has cpu, reference");
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

int main(void)
{
    problems();
    problem_flags_and_arrays();
    fields_without_their_flag();
    options();
    environment();
    return test_summary();
}
