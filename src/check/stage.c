/* Arrays on a device for one call: see stage.h. The driver is the one that the plan has opened. */
#include "check/stage.h"

#include "check/driver.h"
#include "check/message.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, OUT_OF_MEMORY = 2 };

/* ---- The driver ---- */

typedef unsigned long long device_pointer;

struct driver {
    int (*retain)(void **context, int device);
    int (*get_current)(void **context);
    int (*get_device)(int *device);
    int (*set_current)(void *context);
    int (*alloc)(device_pointer *memory, size_t bytes);
    int (*release)(device_pointer memory);
    int (*to_device)(device_pointer to, const void *from, size_t bytes);
    int (*to_host)(void *to, device_pointer from, size_t bytes);
    int (*wait)(void);
};

static const struct agc_driver_function functions[] = {
    {"cuDevicePrimaryCtxRetain", offsetof(struct driver, retain)},
    {"cuCtxGetCurrent", offsetof(struct driver, get_current)},
    {"cuCtxGetDevice", offsetof(struct driver, get_device)},
    {"cuCtxSetCurrent", offsetof(struct driver, set_current)},
    {"cuMemAlloc_v2", offsetof(struct driver, alloc)},
    {"cuMemFree_v2", offsetof(struct driver, release)},
    {"cuMemcpyHtoD_v2", offsetof(struct driver, to_device)},
    {"cuMemcpyDtoH_v2", offsetof(struct driver, to_host)},
    {"cuCtxSynchronize", offsetof(struct driver, wait)}};

static ag_status open_driver(struct driver *driver)
{
    return agc_find_in_driver(driver, functions, sizeof functions / sizeof functions[0]);
}

static ag_status driver_status(int result, const char *what)
{
    return result == 0 ? AG_OK
                       : agc_fail(result == OUT_OF_MEMORY ? AG_NO_MEMORY : AG_DEVICE, "",
                                  "the CUDA driver failed to %s: error %d", what, result);
}

/* ---- Contexts ---- */

int agc_on_device(const ag_plan *plan)
{
    ag_plan_info info = {.struct_size = sizeof info};
    return ag_plan_info_get(plan, &info) == AG_OK && info.backend == AG_BACKEND_CUDA;
}

/* The device of the options: that of the current context if they leave it open, else device 0. */
static ag_status enter(const struct driver *driver, int32_t option)
{
    void *context = NULL;
    int current = -1;
    int result = driver->get_current(&context);
    if (result == 0 && context != NULL) {
        result = driver->get_device(&current);
    }
    const int wanted = option > 0 ? option - 1 : current >= 0 ? current : 0;
    if (result == 0 && current != wanted) {
        result = driver->retain(&context, wanted);
        result = result == 0 ? driver->set_current(context) : result;
    }
    return driver_status(result, "enter a context");
}

ag_status agc_enter_device(const ag_plan *plan, const ag_options *options)
{
    struct driver driver;
    if (!agc_on_device(plan)) {
        return AG_OK;
    }
    const ag_status status = open_driver(&driver);
    return status == AG_OK ? enter(&driver, options == NULL ? 0 : options->device) : status;
}

/* ---- Regions ---- */

_Static_assert((int)T_COUNT <= AGC_MAX_STAGED, "a call has more tensors");

/* A tensor of the call; NULL or without elements: nothing to copy. */
static void add_tensor(struct agc_stage *s, const ag_tensor *t, const int64_t size[4], size_t element,
                       int written)
{
    int64_t below = 0, above = 0; /* the elements before and after the one at data */
    for (int axis = 0; axis < 4; axis++) {
        const int64_t distance = size[axis] > 1 ? t->strides[axis] * (size[axis] - 1) : 0;
        *(distance < 0 ? &below : &above) += distance;
    }
    if (t->data == NULL || size[0] * size[1] * size[2] * size[3] == 0) {
        return;
    }
    const uintptr_t data = (uintptr_t)t->data;
    s->regions[s->count++] = (struct agc_region){.begin = data - (uintptr_t)-below * element,
                                                 .end = data + (uintptr_t)(above + 1) * element,
                                                 .written = written};
}

static int by_begin(const void *a, const void *b)
{
    const uintptr_t x = ((const struct agc_region *)a)->begin, y = ((const struct agc_region *)b)->begin;
    return (x > y) - (x < y);
}

/* Joins regions that overlap, and gives each its place. A copy is aligned as its original is. */
static void place_regions(struct agc_stage *s)
{
    int n = 0;
    qsort(s->regions, (size_t)s->count, sizeof s->regions[0], by_begin);
    for (int i = 0; i < s->count; i++) {
        const struct agc_region r = s->regions[i];
        struct agc_region *last = n > 0 ? &s->regions[n - 1] : NULL;
        if (last != NULL && r.begin < last->end) {
            last->end = r.end > last->end ? r.end : last->end;
            last->written |= r.written;
        } else {
            s->regions[n++] = r;
        }
    }
    s->count = n;
    for (int i = 0; i < n; i++) {
        struct agc_region *r = &s->regions[i];
        r->offset = s->bytes + r->begin % ALIGNMENT;
        s->bytes = (r->offset + (r->end - r->begin) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
}

/* Lets the tensor point to its copy. */
static void redirect(const struct agc_stage *s, ag_tensor *t)
{
    const uintptr_t data = (uintptr_t)t->data;
    for (int i = 0; i < s->count; i++) {
        const struct agc_region *r = &s->regions[i];
        if (data >= r->begin && data < r->end) {
            t->data = (void *)(uintptr_t)(s->memory + r->offset + (data - r->begin));
            return;
        }
    }
}

/* ---- Copying ---- */

/* All copies of a small call go through one buffer, so that it waits for the device twice and not once per tensor:
 * among several processes on a device each wait takes its turn. */
enum { MAX_BUFFER = 1 << 22 };

static ag_status to_device(const struct agc_stage *s, const struct driver *driver)
{
    int result = 0;
    for (int i = 0; i < s->count && result == 0; i++) {
        const struct agc_region *r = &s->regions[i];
        result = driver->to_device(s->memory + r->offset, (const void *)r->begin, r->end - r->begin);
    }
    return driver_status(result, "copy to the device");
}

static ag_status to_host(const struct agc_stage *s, const struct driver *driver)
{
    int result = 0;
    for (int i = 0; i < s->count && result == 0; i++) {
        const struct agc_region *r = &s->regions[i];
        if (r->written) {
            result = driver->to_host((void *)r->begin, s->memory + r->offset, r->end - r->begin);
        }
    }
    return driver_status(result, "copy to the host");
}

static ag_status buffer_to_device(const struct agc_stage *s, const struct driver *driver)
{
    char *buffer = calloc(1, s->bytes);
    if (buffer == NULL) {
        return to_device(s, driver);
    }
    for (int i = 0; i < s->count; i++) {
        const struct agc_region *r = &s->regions[i];
        memcpy(buffer + r->offset, (const void *)r->begin, r->end - r->begin);
    }
    const int result = driver->to_device(s->memory, buffer, s->bytes);
    free(buffer);
    return driver_status(result, "copy to the device");
}

static ag_status buffer_to_host(const struct agc_stage *s, const struct driver *driver)
{
    char *buffer = calloc(1, s->bytes);
    if (buffer == NULL) {
        return to_host(s, driver);
    }
    const int result = driver->to_host(buffer, s->memory, s->bytes);
    for (int i = 0; i < s->count && result == 0; i++) {
        const struct agc_region *r = &s->regions[i];
        if (r->written) {
            memcpy((void *)r->begin, buffer + r->offset, r->end - r->begin);
        }
    }
    free(buffer);
    return driver_status(result, "copy to the host");
}

static int fits_buffer(const struct agc_stage *s)
{
    return s->bytes > 0 && s->bytes <= MAX_BUFFER;
}

/* Places and copies the regions, with `more` bytes after them. */
static ag_status copy_to_device(struct agc_stage *s, size_t more)
{
    struct driver driver;
    place_regions(s);
    ag_status status = open_driver(&driver);
    if (status == AG_OK) {
        status = enter(&driver, 0);
    }
    if (status == AG_OK) {
        status = driver_status(driver.alloc(&s->memory, s->bytes + more + ALIGNMENT), "allocate memory");
    }
    if (status == AG_OK) {
        status = fits_buffer(s) ? buffer_to_device(s, &driver) : to_device(s, &driver);
    }
    return status;
}

ag_status agc_stage_wait(const struct agc_stage *s)
{
    struct driver driver;
    (void)s;
    const ag_status status = open_driver(&driver);
    return status == AG_OK ? driver_status(driver.wait(), "wait for the device") : status;
}

ag_status agc_stage_end(struct agc_stage *s, ag_status status)
{
    struct driver driver;
    if (s->memory == 0 || open_driver(&driver) != AG_OK) {
        return status;
    }
    if (status == AG_OK) {
        status = fits_buffer(s) ? buffer_to_host(s, &driver) : to_host(s, &driver);
    }
    driver.release(s->memory);
    s->memory = 0;
    return status;
}

/* ---- Maps ---- */

static ag_tensor *tensor_of(ag_args *args, enum tensor t)
{
    return (ag_tensor *)(void *)((char *)args + agc_tensor_info[t].offset);
}

static size_t bytes_of(const ag_problem *p, enum tensor t)
{
    const ag_dtype dtype = agc_tensor_dtype(p, t);
    return dtype == 0 ? 1 : ag_dtype_size(dtype); /* the mask has bytes */
}

ag_status agc_stage_map(struct agc_stage *s, const ag_plan *plan, uint32_t map, ag_args *args,
                        void **workspace, size_t bytes)
{
    const ag_problem *p = ag_plan_problem(plan);
    int64_t size[4];
    *s = (struct agc_stage){.count = 0};
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_size(p, t, size)) {
            add_tensor(s, tensor_of(args, t), size, bytes_of(p, t), (agc_tensor_info[t].writers & map) != 0);
        }
    }
    const ag_status status = copy_to_device(s, bytes);
    for (enum tensor t = 0; t < T_COUNT && status == AG_OK; t++) {
        redirect(s, tensor_of(args, t));
    }
    *workspace = (void *)(uintptr_t)(s->memory + s->bytes);
    return status;
}

/* ---- Merges ---- */

/* ag_merge_args consists of tensors from o1 on. A letter for each, in their order, a group per line of the struct: is
 * it shaped as o or as lse (r: one number per row), an input or an output? */
enum { MERGE_TENSORS = (sizeof(ag_merge_args) - offsetof(ag_merge_args, o1)) / sizeof(ag_tensor) };
static const char merge_shapes[] = "oror"
                                   "oror"
                                   "oror"
                                   "oooooo"
                                   "oror"
                                   "oror"
                                   "oror";
static const char merge_roles[] = "iiii"
                                  "iiii"
                                  "oooo"
                                  "iiiioo"
                                  "iiii"
                                  "iiii"
                                  "oooo";
_Static_assert(sizeof merge_shapes == MERGE_TENSORS + 1 && sizeof merge_roles == MERGE_TENSORS + 1,
               "a letter each");
_Static_assert((int)MERGE_TENSORS <= AGC_MAX_STAGED, "a merge has more tensors");

ag_status agc_stage_merge(struct agc_stage *s, const ag_plan *plan, ag_merge_args *args)
{
    const ag_problem *p = ag_plan_problem(plan);
    *s = (struct agc_stage){.count = 0};
    ag_tensor *tensors = (ag_tensor *)(void *)((char *)args + offsetof(ag_merge_args, o1));
    for (int n = 0; n < MERGE_TENSORS; n++) {
        const enum tensor like = merge_shapes[n] == 'r' ? T_LSE : T_O;
        int64_t size[4];
        agc_tensor_size(p, like, size);
        add_tensor(s, &tensors[n], size, bytes_of(p, like), merge_roles[n] == 'o');
    }
    const ag_status status = copy_to_device(s, 0);
    for (int n = 0; n < MERGE_TENSORS && status == AG_OK; n++) {
        redirect(s, &tensors[n]);
    }
    return status;
}

/* ---- Calls ---- */

static atomic_llong device_calls;

long long agc_device_calls(void)
{
    return atomic_load(&device_calls);
}

static ag_status call_map(const ag_plan *plan, uint32_t map, const ag_args *args, void *workspace,
                          size_t bytes)
{
    switch (map) {
    case AG_MAP_FORWARD: return ag_forward(plan, args, NULL, workspace, bytes);
    case AG_MAP_VJP: return ag_vjp(plan, args, NULL, workspace, bytes);
    case AG_MAP_JVP: return ag_jvp(plan, args, NULL, workspace, bytes);
    case AG_MAP_VJP_JVP: return ag_vjp_jvp(plan, args, NULL, workspace, bytes);
    case AG_MAP_JVP_JVP: return ag_jvp_jvp(plan, args, NULL, workspace, bytes);
    default: return AG_INVALID_ARGUMENT;
    }
}

ag_status agc_run_map(const ag_plan *plan, uint32_t map, const ag_args *args, void *workspace, size_t bytes)
{
    struct agc_stage stage;
    if (args == NULL || !agc_on_device(plan)) {
        return call_map(plan, map, args, workspace, bytes);
    }
    ag_args there = *args;
    atomic_fetch_add(&device_calls, 1);
    ag_status status = agc_stage_map(&stage, plan, map, &there, &workspace, bytes);
    if (status == AG_OK) {
        status = call_map(plan, map, &there, workspace, bytes);
    }
    return agc_stage_end(&stage, status);
}

ag_status agc_run_merge(const ag_plan *plan, const ag_merge_args *args)
{
    struct agc_stage stage;
    if (args == NULL || !agc_on_device(plan)) {
        return ag_merge(plan, args, NULL);
    }
    ag_merge_args there = *args;
    atomic_fetch_add(&device_calls, 1);
    ag_status status = agc_stage_merge(&stage, plan, &there);
    if (status == AG_OK) {
        status = ag_merge(plan, &there, NULL);
    }
    return agc_stage_end(&stage, status);
}
