/* Checks the options and reads the environment: see options.h. */
#include "core/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu_info.h"
#include "core/pool.h"
#include "core/status.h"
#include "core/structs.h"

static void *default_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return malloc(size);
}

static void default_release(void *ctx, void *memory)
{
    (void)ctx;
    free(memory);
}

/* Returns NULL if the variable is not set or empty. */
static const char *environment(const char *variable)
{
    const char *text = getenv(variable);
    return text == NULL || *text == '\0' ? NULL : text;
}

/* The meaning of threads = 0: ATTNGRAD_THREADS if it is set, else one thread per processor. */
static ag_status default_threads(int32_t *threads)
{
    const char *text = environment("ATTNGRAD_THREADS");
    if (text == NULL) {
        *threads = agi_usable_cpus();
        return AG_OK;
    }
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || n < 1 || n > AGI_MAX_THREADS) {
        return agi_fail_field(AG_INVALID_PROBLEM, "ATTNGRAD_THREADS",
                              "environment: ATTNGRAD_THREADS is '%.40s': must be from 1 to %d", text,
                              AGI_MAX_THREADS);
    }
    *threads = (int32_t)n;
    return AG_OK;
}

static ag_status refuse_backend_name(const char *name)
{
    char names[64] = "";
    size_t length = 0;
    for (int i = 0; agi_backends[i] != NULL && length < sizeof names; i++) {
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "",
                                   agi_backends[i]->name);
    }
    return agi_fail_field(AG_INVALID_PROBLEM, "ATTNGRAD_BACKEND",
                          "environment: ATTNGRAD_BACKEND is '%.40s': this library has %s", name, names);
}

/* Only the specification can round the intermediates. */
static ag_status default_backend(uint32_t flags, ag_backend *backend)
{
    const char *name = environment("ATTNGRAD_BACKEND");
    if (name != NULL) {
        const agi_backend *found = agi_backend_by_name(agi_backends, name);
        if (found == NULL) {
            return refuse_backend_name(name);
        }
        *backend = found->id;
    } else if (flags & AG_ROUND_INTERMEDIATES) {
        *backend = agi_specification->id;
    }
    return AG_OK;
}

static ag_status fill_from_environment(ag_options *o)
{
    ag_status status = AG_OK;
    if (o->backend == AG_BACKEND_AUTO) {
        status = default_backend(o->flags, &o->backend);
    }
    if (status == AG_OK && o->threads == 0) {
        status = default_threads(&o->threads);
    }
    return status;
}

static ag_status check_options(const ag_options *o)
{
    if (o->flags & ~(uint32_t)(AG_ROUND_INTERMEDIATES | AG_INVARIANT)) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.flags", "options: flags is 0x%lx: unknown bits",
                              (unsigned long)o->flags);
    }
    if (o->backend < AG_BACKEND_AUTO) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.backend",
                              "options: backend is %d: no such backend", (int)o->backend);
    }
    if (o->threads < 0 || o->threads > AGI_MAX_THREADS) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.threads",
                              "options: threads is %d: must be from 0 to %d", (int)o->threads,
                              AGI_MAX_THREADS);
    }
    if (o->device < 0) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.device",
                              "options: device is %d: must be 0 or the number of a device + 1",
                              (int)o->device);
    }
    if ((o->alloc == NULL) != (o->release == NULL)) {
        return agi_fail_field(AG_INVALID_PROBLEM, o->alloc == NULL ? "options.alloc" : "options.release",
                              "options: %s is NULL: give both alloc and release, or neither",
                              o->alloc == NULL ? "alloc" : "release");
    }
    return AG_OK;
}

ag_status agi_options_complete(ag_options *o, agi_request *request, const ag_options *given)
{
    const ag_options none = AG_OPTIONS_INIT;
    ag_status status =
        agi_read_struct(o, sizeof *o, given == NULL ? &none : given, "options", AG_INVALID_PROBLEM);
    if (status == AG_OK) {
        status = check_options(o);
    }
    if (status == AG_OK) {
        status = fill_from_environment(o);
    }
    if (status != AG_OK) {
        return status;
    }
    if (o->alloc == NULL) {
        o->alloc = default_alloc;
        o->release = default_release;
    }
    *request = (agi_request){o->backend, o->isa, environment("ATTNGRAD_ISA")};
    return AG_OK;
}
