/* XLA's handler: one function for the five maps, told by its attributes what to do (xla.h). It runs in the thread that
 * XLA chose, without the interpreter's lock. */
#include "xla.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors ---- */

xf_error *core_xla_fail(const xf_frame *frame, int32_t code, const char *format, ...)
{
    char message[400] = "attngrad: ";
    const size_t n = strlen(message);
    va_list values;
    va_start(values, format);
    vsnprintf(message + n, sizeof message - n, format, values);
    va_end(values);
    xf_error_create_args args = {sizeof args, NULL, message, code};
    /* cppcheck-suppress returnDanglingLifetime ; XLA returns an object of its own */
    return frame->api->error_create(&args);
}

/* The library's message, which may begin with a variable that has another name in dot_product_attention. */
static xf_error *fail_with_message(const xf_frame *frame, int32_t code)
{
    static const char *const names[][2] = {{"q_lengths", "query_seq_lengths"},
                                           {"kv_lengths", "key_value_seq_lengths"}};
    const char *message = ag_last_message();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i][0]);
        if (strncmp(message, names[i][0], n) == 0) {
            return core_xla_fail(frame, code, "%s%s", names[i][1], message + n);
        }
    }
    return core_xla_fail(frame, code, "%s", message);
}

xf_error *core_xla_fail_status(const xf_frame *frame, ag_status status)
{
    int32_t code = XF_INTERNAL;
    switch (status) {
    case AG_INVALID_PROBLEM:
    case AG_INVALID_ARGUMENT: code = XF_INVALID_ARGUMENT; break;
    case AG_UNSUPPORTED: code = XF_UNIMPLEMENTED; break;
    case AG_NO_MEMORY: code = XF_RESOURCE_EXHAUSTED; break;
    default: break;
    }
    return fail_with_message(frame, code);
}

/* ---- Attributes ---- */

const void *core_xla_attribute(const xf_frame *frame, const char *name, int32_t type)
{
    const size_t length = strlen(name);
    const xf_attrs *attrs = &frame->attrs;
    for (int64_t i = 0; i < attrs->size; i++) {
        if (attrs->types[i] == type && attrs->names[i]->len == length &&
            memcmp(attrs->names[i]->ptr, name, length) == 0) {
            return attrs->items[i];
        }
    }
    return NULL;
}

const xf_array *core_xla_array(const xf_frame *frame, const char *name, int32_t dtype)
{
    const xf_array *array = core_xla_attribute(frame, name, XF_ATTR_ARRAY);
    return array != NULL && array->dtype == dtype ? array : NULL;
}

xf_error *core_xla_number(const xf_frame *frame, const char *name, int64_t *number)
{
    const xf_scalar *scalar = core_xla_attribute(frame, name, XF_ATTR_SCALAR);
    if (scalar == NULL || scalar->dtype != XF_S64) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT, "attribute %s is missing", name);
    }
    memcpy(number, scalar->value, sizeof *number);
    return NULL;
}

/* ---- The map ---- */

typedef ag_status (*map_function)(const ag_plan *plan, const ag_args *args, const ag_exec *exec,
                                  void *workspace, size_t bytes);

static map_function map_of(uint32_t map)
{
    switch (map) {
    case AG_MAP_FORWARD: return ag_forward;
    case AG_MAP_VJP: return ag_vjp;
    case AG_MAP_JVP: return ag_jvp;
    case AG_MAP_VJP_JVP: return ag_vjp_jvp;
    case AG_MAP_JVP_JVP: return ag_jvp_jvp;
    default: return NULL;
    }
}

static xf_error *read_map(xla_call *call)
{
    int64_t version, map;
    xf_error *error = core_xla_number(call->frame, "version", &version);
    if (error != NULL) {
        return error;
    }
    if (version != XLA_VERSION) {
        return core_xla_fail(call->frame, XF_UNIMPLEMENTED,
                             "version is %lld: this attngrad runs programs of version %d only",
                             (long long)version, XLA_VERSION);
    }
    error = core_xla_number(call->frame, "map", &map);
    if (error == NULL && (map < 0 || map > UINT32_MAX || map_of((uint32_t)map) == NULL)) {
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "map is %lld: must be a bit of AG_MAP_*",
                             (long long)map);
    }
    call->map = error == NULL ? (uint32_t)map : 0;
    return error;
}

/* ---- Running ---- */

/* Goes on to the next element of the mapped axes. Returns 0 after the last one. */
static int next_element(const xla_call *call, int64_t *at)
{
    for (int m = call->n_maps - 1; m >= 0; m--) {
        if (++at[m] < call->maps[m]) {
            return 1;
        }
        at[m] = 0;
    }
    return 0;
}

static ag_status run_element(const xla_call *call, const int64_t *at, void *workspace, size_t bytes)
{
    static const double zero[1];
    ag_args args = {.struct_size = sizeof args};
    core_xla_fill(call, at, &args);
    const int is_reverse = call->map == AG_MAP_VJP || call->map == AG_MAP_VJP_JVP;
    if (is_reverse && args.d_o.data == NULL) {
        args.d_o.data = (void *)(uintptr_t)zero; /* with strides of zero */
    }
    if (call->map == AG_MAP_JVP &&
        (args.o.data != NULL || args.lse.data != NULL || args.o_low.data != NULL)) {
        args.flags = AG_GIVEN_O;
    }
    const ag_exec exec = {
        .struct_size = sizeof exec, .ctx = (void *)(uintptr_t)call->frame, .run = core_xla_run_tasks};
    return map_of(call->map)(call->plan, &args, &exec, workspace, bytes);
}

/* Runs the map for each element of the mapped axes, of which there is at least one. */
static ag_status run_elements(xla_call *call, char *memory, size_t bytes)
{
    int64_t at[XLA_MAX_MAPS] = {0};
    core_xla_lay_out(call, memory + (bytes + 63) / 64 * 64);
    do {
        const ag_status status = run_element(call, at, memory, bytes);
        if (status != AG_OK) {
            return status;
        }
        core_xla_store(call, at);
    } while (next_element(call, at));
    return AG_OK;
}

static int has_elements(const xla_call *call)
{
    for (int m = 0; m < call->n_maps; m++) {
        if (call->maps[m] == 0) {
            return 0;
        }
    }
    return 1;
}

static xf_error *run(xla_call *call)
{
    if (!has_elements(call)) {
        core_xla_clear(call); /* sums of nothing */
        return NULL;
    }
    size_t bytes;
    ag_status status = ag_plan_workspace(call->plan, call->map, &bytes);
    if (status != AG_OK) {
        return core_xla_fail_status(call->frame, status);
    }
    const size_t all = (bytes + 63) / 64 * 64 + core_xla_lay_out(call, NULL);
    const core_scratch scratch = core_scratch_take(all);
    if (scratch.memory == NULL) {
        return core_xla_fail(call->frame, XF_RESOURCE_EXHAUSTED, "no memory for the workspace: %zu MiB",
                             (all >> 20) + 1);
    }
    status = run_elements(call, scratch.memory, bytes);
    xf_error *error = status == AG_OK ? NULL : core_xla_fail_status(call->frame, status);
    core_scratch_end(scratch);
    return error;
}

static xf_error *execute(const xf_frame *frame)
{
    xla_call call;
    call.frame = frame;
    call.n_items = 0;
    call.kept = NULL;
    xf_error *error = read_map(&call);
    error = error == NULL ? core_xla_read_items(&call) : error;
    error = error == NULL ? core_xla_find_plan(&call) : error;
    error = error == NULL ? core_xla_check_items(&call) : error;
    error = error == NULL ? run(&call) : error;
    if (call.kept != NULL) {
        core_xla_end_plan(call.kept);
    }
    return error;
}

/* ---- The handler ---- */

static xf_error *handle(xf_frame *frame)
{
    if (frame->extension != NULL && frame->extension->type == XF_EXTENSION_METADATA) {
        xf_metadata *metadata = ((xf_metadata_extension *)(void *)frame->extension)->metadata;
        const xf_version version = {sizeof version, NULL, XF_MAJOR, XF_MINOR};
        metadata->version = version;
        metadata->traits = 0;
        return NULL;
    }
    return frame->stage == XF_STAGE_EXECUTE ? execute(frame) : NULL;
}

PyObject *core_xla_capsule(void)
{
    return PyCapsule_New(__extension__(void *) handle, NULL, NULL);
}
