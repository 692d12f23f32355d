/* --backend and --device: see backend.h. */
#include "backend.h"

#include "usage.h"

#include <stdio.h>
#include <string.h>

/* "cpu, reference" */
static void list_names(char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t n = 0; n < ag_backend_count() && used < size; n++) {
        ag_backend_info info = {.struct_size = sizeof info};
        if (ag_backend_info_get(n, &info) == AG_OK) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", n > 0 ? ", " : "", info.name);
        }
    }
}

/* AG_BACKEND_AUTO if there is none of this name. */
static ag_backend backend_named(const char *name)
{
    for (int32_t n = 0; n < ag_backend_count(); n++) {
        ag_backend_info info = {.struct_size = sizeof info};
        if (ag_backend_info_get(n, &info) == AG_OK && strcmp(info.name, name) == 0) {
            return info.backend;
        }
    }
    return AG_BACKEND_AUTO;
}

int choose_backend(const char *command, const struct backend_choice *choice, ag_options *options)
{
    options->device = (int32_t)(choice->device + 1);
    if (choice->name == NULL) {
        return 0;
    }
    options->backend = backend_named(choice->name);
    if (options->backend == AG_BACKEND_AUTO) {
        char names[64];
        list_names(names, sizeof names);
        return usage_error(command, "--backend: '%s' is not built into this command: it has %s", choice->name,
                           names);
    }
    return 0;
}
