/* struct_size of every public struct: older and newer callers are accepted, wrong sizes and unknown fields refused, and
 * an info struct is filled up to its size and no further. */
#include "refusals.h"

#include <stddef.h>

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
    all_struct_sizes();
    all_info_sizes();
    return test_summary();
}
