/* The library's own facts: its version, its backends. The only file that sees every backend. */
#include "attngrad.h"

#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "core/cpu_info.h"
#include "core/status.h"
#include "cpu/cpu.h"
#include "reference/reference.h"

const agi_backend *const agi_backends[] = {&agi_cpu_backend, &agi_reference_backend, NULL};

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

ag_status ag_info_get(ag_info *info)
{
    ag_info full;
    if (info == NULL || info->struct_size < 2 * sizeof(uint32_t)) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "info", "ag_info_get: %s",
                              info == NULL ? "info is NULL"
                                           : "struct_size is too small: set it to sizeof(ag_info)");
    }
    memset(&full, 0, sizeof full);
    full.threads = agi_processors();
    full.struct_size = info->struct_size;
    snprintf(full.version, sizeof full.version, "%s", ag_version_string());
    agi_cpu_name(full.cpu, sizeof full.cpu);
    agi_cpu_features(full.isa, sizeof full.isa);
    list_backends(full.backends, sizeof full.backends);
#if defined(__clang__)
    snprintf(full.compiler, sizeof full.compiler, "clang %s", __clang_version__);
#elif defined(__GNUC__)
    snprintf(full.compiler, sizeof full.compiler, "gcc %s", __VERSION__);
#else
    snprintf(full.compiler, sizeof full.compiler, "unknown");
#endif
    memcpy(info, &full, full.struct_size < sizeof full ? full.struct_size : sizeof full);
    return AG_OK;
}
