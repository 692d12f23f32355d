/* The probe of tensor cores: see probe_gpu.h. The kernel is text in the GPU's assembly language, PTX, which the driver
 * compiles, so that no CUDA compiler is needed. The driver is the one that the plan has opened. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "probe_gpu.h"

#include "check/driver.h"
#include "check/message.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { CHAINS = 8, THREADS = 256, BLOCKS_EACH = 8, TEXT_SIZE = 8192 };
enum { SM_COUNT = 16, MAJOR = 75, MINOR = 76 }; /* attributes of a device */

/* ---- The driver ---- */

struct driver {
    int (*get_device)(int *device);
    int (*get_attribute)(int *value, int attribute, int device);
    int (*load)(void **module, const void *text);
    int (*find)(void **function, void *module, const char *name);
    int (*unload)(void *module);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                  void **extra);
    int (*wait)(void);
};

static const struct agc_driver_function functions[] = {
    {"cuCtxGetDevice", offsetof(struct driver, get_device)},
    {"cuDeviceGetAttribute", offsetof(struct driver, get_attribute)},
    {"cuModuleLoadData", offsetof(struct driver, load)},
    {"cuModuleGetFunction", offsetof(struct driver, find)},
    {"cuModuleUnload", offsetof(struct driver, unload)},
    {"cuLaunchKernel", offsetof(struct driver, launch)},
    {"cuCtxSynchronize", offsetof(struct driver, wait)}};

static ag_status driver_status(int result, const char *what)
{
    return result == 0 ? AG_OK : agc_fail(AG_DEVICE, "", "the probe failed to %s: error %d", what, result);
}

/* ---- The kernel ---- */

struct text {
    char bytes[TEXT_SIZE];
    size_t used;
};

static void add(struct text *t, const char *line)
{
    const int n = snprintf(t->bytes + t->used, TEXT_SIZE - t->used, "%s\n", line);
    t->used += n > 0 ? (size_t)n : 0;
}

/* One product, c += a b, of chain n. */
static void add_product(struct text *t, int n, int is_double, int capability)
{
    const int c = 4 * n;
    char line[256];
    if (!is_double) {
        snprintf(line, sizeof line,
                 "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {c%d,c%d,c%d,c%d}, {a,a,a,a}, {a,a}, "
                 "{c%d,c%d,c%d,c%d};",
                 c, c + 1, c + 2, c + 3, c, c + 1, c + 2, c + 3);
    } else if (capability >= 90) {
        snprintf(line, sizeof line,
                 "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {c%d,c%d,c%d,c%d}, {a,a,a,a}, {a,a}, "
                 "{c%d,c%d,c%d,c%d};",
                 c, c + 1, c + 2, c + 3, c, c + 1, c + 2, c + 3);
    } else {
        snprintf(line, sizeof line,
                 "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {c%d,c%d}, {a}, {a}, {c%d,c%d};", c, c + 1,
                 c, c + 1);
    }
    add(t, line);
}

/* `rounds` times CHAINS products that do not wait for each other. The results would be stored if there were none. */
static void write_kernel(struct text *t, int is_double, int capability)
{
    char line[128];
    t->used = 0;
    add(t, capability >= 90 ? ".version 8.0\n.target sm_90" : ".version 8.0\n.target sm_80");
    add(t, ".address_size 64\n.visible .entry probe(.param .u32 rounds)\n{");
    add(t, ".reg .pred p;\n.reg .b32 n;\n.reg .b64 nowhere;");
    add(t, is_double ? ".reg .f64 a, c<32>;\nmov.f64 a, 0d0000000000000000;"
                     : ".reg .b32 a;\n.reg .f32 c<32>;\nmov.b32 a, 0;");
    for (int c = 0; c < 4 * CHAINS; c++) {
        snprintf(line, sizeof line,
                 is_double ? "mov.f64 c%d, 0d3FF0000000000000;" : "mov.f32 c%d, 0f3F800000;", c);
        add(t, line);
    }
    add(t, "ld.param.u32 n, [rounds];\nLOOP:");
    for (int n = 0; n < CHAINS; n++) {
        add_product(t, n, is_double, capability);
    }
    add(t, "sub.u32 n, n, 1;\nsetp.ne.u32 p, n, 0;\n@p bra LOOP;\nmov.u64 nowhere, 0;");
    for (int c = 0; c < 4 * CHAINS; c++) { /* never true: ones stay ones */
        const char *const kind = is_double ? "f64" : "f32";
        snprintf(line, sizeof line, "setp.lt.%s p, c%d, 0%s;\n@p st.global.%s [nowhere], c%d;", kind, c,
                 is_double ? "d0000000000000000" : "f00000000", kind, c);
        add(t, line);
    }
    add(t, "ret;\n}");
}

/* Of one product of a warp; multiply-adds count two. */
static double product_operations(int is_double, int capability)
{
    return 2.0 * (!is_double ? 16 * 8 * 16 : capability >= 90 ? 16 * 8 * 8 : 8 * 8 * 4);
}

/* ---- Timing ---- */

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Doubles the rounds until they take long enough; sets the seconds of one round. */
static int time_rounds(const struct driver *d, void *function, unsigned blocks, double seconds, double *each)
{
    int result = 0;
    for (unsigned rounds = 1024; result == 0; rounds *= 2) {
        void *parameters[] = {&rounds};
        const double begin = now_seconds();
        result = d->launch(function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        result = result == 0 ? d->wait() : result;
        const double elapsed = now_seconds() - begin;
        *each = elapsed / rounds;
        if (elapsed >= seconds || rounds >= 1u << 30) {
            break;
        }
    }
    return result;
}

ag_status probe_gpu_rate(ag_dtype dtype, double seconds, double *rate)
{
    struct driver d;
    struct text text;
    void *module = NULL, *function = NULL;
    int device = 0, sms = 0, major = 0, minor = 0;
    double each = 0;
    const int is_double = dtype == AG_F64;
    const ag_status status = agc_find_in_driver(&d, functions, sizeof functions / sizeof functions[0]);
    if (status != AG_OK) {
        return status;
    }
    int result = d.get_device(&device);
    result = result == 0 ? d.get_attribute(&sms, SM_COUNT, device) : result;
    result = result == 0 ? d.get_attribute(&major, MAJOR, device) : result;
    result = result == 0 ? d.get_attribute(&minor, MINOR, device) : result;
    const int capability = 10 * major + minor;
    write_kernel(&text, is_double, capability);
    result = result == 0 ? d.load(&module, text.bytes) : result;
    result = result == 0 ? d.find(&function, module, "probe") : result;
    const unsigned blocks = (unsigned)(BLOCKS_EACH * sms);
    result = result == 0 ? time_rounds(&d, function, blocks, seconds, &each) : result;
    if (module != NULL) {
        d.unload(module);
    }
    const double products = (double)blocks * (THREADS / 32) * CHAINS;
    *rate = products * product_operations(is_double, capability) / each / (dtype == AG_F32 ? 3 : 1);
    return driver_status(result, "run");
}
