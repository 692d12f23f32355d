/* The version of the library and its list of backends. The only file that sees every backend. */
#include "attngrad.h"

#include <stdio.h>
#include <string.h>

#include "core/cpu_info.h"
#include "core/choose.h"
#include "core/status.h"
#include "core/structs.h"
#include "cpu/cpu.h"
#include "reference/reference.h"
#if defined(AGI_HAS_CUDA)
#include "cuda/cuda.h"
#endif

const agi_backend *const agi_backends[] = {&agi_cpu_backend, &agi_reference_backend,
#if defined(AGI_HAS_CUDA)
                                           &agi_cuda_backend,
#endif
                                           NULL};
const agi_backend *const agi_specification = &agi_reference_backend;

#define TEXT(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

int32_t ag_version(void)
{
    return AG_VERSION_MAJOR * 10000 + AG_VERSION_MINOR * 100 + AG_VERSION_PATCH;
}

const char *ag_version_string(void)
{
    return VERSION_TEXT(AG_VERSION_MAJOR, AG_VERSION_MINOR, AG_VERSION_PATCH);
}

static void list_backends(char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; agi_backends[i] != NULL; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", used ? " " : "", agi_backends[i]->name);
    }
}

/* Opens drivers, so only for a caller whose struct has the field. */
static void list_devices(char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; agi_backends[i] != NULL; i++) {
        if (agi_backends[i]->list_devices != NULL) {
            agi_backends[i]->list_devices(text, size);
        }
    }
}

static bool has_devices_field(const ag_info *info)
{
    return info != NULL && info->struct_size > offsetof(ag_info, devices);
}

ag_status ag_info_get(ag_info *info)
{
    ag_info full;
    memset(&full, 0, sizeof full);
    full.threads = agi_usable_cpus();
    snprintf(full.version, sizeof full.version, "%s", ag_version_string());
    agi_cpu_name(full.cpu, sizeof full.cpu);
    agi_cpu_features(full.isa, sizeof full.isa);
    list_backends(full.backends, sizeof full.backends);
    if (has_devices_field(info)) {
        list_devices(full.devices, sizeof full.devices);
    }
#if defined(__clang__)
    snprintf(full.compiler, sizeof full.compiler, "clang %s", __clang_version__);
#elif defined(__GNUC__)
    snprintf(full.compiler, sizeof full.compiler, "gcc %s", __VERSION__);
#else
    snprintf(full.compiler, sizeof full.compiler, "unknown");
#endif
    return agi_write_struct(info, &full, sizeof full, "info");
}

int32_t ag_backend_count(void)
{
    return sizeof agi_backends / sizeof agi_backends[0] - 1; /* without the NULL at its end */
}

ag_status ag_backend_info_get(int32_t index, ag_backend_info *info)
{
    const int32_t count = ag_backend_count();
    if (index < 0 || index >= count) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "index", "index is %d: there are %d backends", (int)index,
                              (int)count);
    }
    ag_backend_info full = {.backend = agi_backends[index]->id};
    snprintf(full.name, sizeof full.name, "%s", agi_backends[index]->name);
    return agi_write_struct(info, &full, sizeof full, "info");
}

int32_t ag_backend_isa_count(ag_backend backend)
{
    const agi_backend *found = agi_backend_by_id(agi_backends, backend);
    return found == NULL ? 0 : found->n_isas;
}

ag_status ag_backend_isa(ag_backend backend, int32_t index, ag_isa_info *info)
{
    const int32_t count = ag_backend_isa_count(backend);
    if (index < 0 || index >= count) {
        return agi_fail_field(AG_INVALID_ARGUMENT, count == 0 ? "backend" : "index",
                              "index is %d: backend %d has %d tables of kernels", (int)index, (int)backend,
                              (int)count);
    }
    const agi_isa *isa = &agi_backend_by_id(agi_backends, backend)->isas[index];
    ag_isa_info full = {.isa = isa->id, .built_in = isa->built_in};
    full.available = isa->built_in && isa->supported(isa->id);
    snprintf(full.name, sizeof full.name, "%s", isa->name);
    return agi_write_struct(info, &full, sizeof full, "info");
}
