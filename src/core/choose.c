/* The choice of a backend: see choose.h. */
#include "core/choose.h"

#include <string.h>

#include "core/status.h"

const agi_backend *agi_backend_by_id(const agi_backend *const list[], ag_backend id)
{
    int i = 0;
    while (list[i] != NULL && list[i]->id != id) {
        i++;
    }
    return list[i];
}

const agi_backend *agi_backend_by_name(const agi_backend *const list[], const char *name)
{
    int i = 0;
    while (list[i] != NULL && strcmp(list[i]->name, name) != 0) {
        i++;
    }
    return list[i];
}

/* ---- Instruction sets ---- */

static bool names_isa(const agi_request *request)
{
    return request->isa != AG_ISA_AUTO || request->isa_name != NULL;
}

static const char *isa_field(const agi_request *request)
{
    return request->isa != AG_ISA_AUTO ? "options.isa" : "ATTNGRAD_ISA";
}

/* The instruction set that the request names; NULL if this backend does not have it. */
static const agi_isa *find_isa(const agi_backend *backend, const agi_request *request)
{
    for (int i = 0; i < backend->n_isas; i++) {
        const agi_isa *isa = &backend->isas[i];
        if (request->isa != AG_ISA_AUTO ? isa->id == request->isa
                                        : strcmp(isa->name, request->isa_name) == 0) {
            return isa;
        }
    }
    return NULL;
}

/* The first backend in the list that has the named instruction set; NULL if none has. */
static const agi_backend *owner_of_isa(const agi_backend *const list[], const agi_request *request)
{
    int i = 0;
    while (list[i] != NULL && find_isa(list[i], request) == NULL) {
        i++;
    }
    return list[i];
}

static ag_status refuse_unknown_isa(const agi_request *request)
{
    if (request->isa != AG_ISA_AUTO) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.isa", "options: isa is %d: no backend has it",
                              (int)request->isa);
    }
    return agi_fail_field(AG_INVALID_PROBLEM, "ATTNGRAD_ISA",
                          "environment: ATTNGRAD_ISA is '%.40s': no such name", request->isa_name);
}

static ag_status refuse_isa_of(const agi_backend *owner, const agi_backend *backend,
                               const agi_request *request)
{
    return agi_fail_field(AG_UNSUPPORTED, isa_field(request), "isa %s is the %s backend's: the %s has %s",
                          find_isa(owner, request)->name, owner->name, backend->name,
                          backend->n_isas == 0 ? "none" : "others");
}

/* AG_BACKEND_AUTO stays on the host, also if the instruction set is a device's. */
static ag_status refuse_isa_of_device(const agi_backend *owner, const agi_request *request)
{
    return agi_fail_field(
        AG_UNSUPPORTED, isa_field(request),
        "isa %s is the %s backend's, which runs only if options or ATTNGRAD_BACKEND name it",
        find_isa(owner, request)->name, owner->name);
}

/* A device's backend says by itself what the machine lacks: a driver, a device, or one of that kind. */
static ag_status check_isa(const agi_backend *backend, const agi_isa *isa, const agi_request *request)
{
    if (!isa->built_in) {
        return agi_fail_field(AG_UNSUPPORTED, isa_field(request), "isa %s is not built into this library",
                              isa->name);
    }
    if (!agi_on_device(backend) && !isa->supported(isa->id)) {
        return agi_fail_field(AG_UNSUPPORTED, isa_field(request), "isa %s: this machine does not have it",
                              isa->name);
    }
    return AG_OK;
}

/* ---- Backends ---- */

/* Refuses options that the backend cannot follow. */
static ag_status check_abilities(const ag_plan *plan, const agi_backend *backend)
{
    if (plan->flags & AG_INVARIANT && !(backend->abilities & AGI_CAN_INVARIANT)) {
        return agi_fail_field(AG_UNSUPPORTED, "options.flags",
                              "options: flags has AG_INVARIANT, which the %s backend lacks", backend->name);
    }
    if (plan->device != 0 && !(backend->abilities & AGI_CAN_CHOOSE_DEVICE)) {
        return agi_fail_field(AG_UNSUPPORTED, "options.device",
                              "options: device is %d: the %s backend has no devices", (int)plan->device,
                              backend->name);
    }
    return AG_OK;
}

/* isa NULL: the backend chooses. If this returns AGI_NOT_AVAILABLE, the backend has left nothing in the plan. */
static ag_status try_backend(ag_plan *plan, const agi_backend *backend, const agi_isa *isa)
{
    plan->backend = backend;
    plan->isa = isa == NULL ? AG_ISA_AUTO : isa->id;
    ag_status status = check_abilities(plan, backend);
    if (status == AG_OK) {
        status = backend->accept(plan);
    }
    if (status == AGI_NOT_AVAILABLE) {
        if (backend->destroy != NULL) {
            backend->destroy(plan);
        }
        plan->backend = NULL;
        plan->backend_data = NULL;
    }
    return status;
}

/* Sets *isa to the backend's instruction set that the request names, or to NULL: the backend chooses. A backend
 * without instruction sets ignores ATTNGRAD_ISA if another backend has one of that name. */
static ag_status named_isa(const agi_backend *const list[], const agi_backend *backend,
                           const agi_request *request, const agi_isa **isa)
{
    *isa = NULL;
    if (!names_isa(request)) {
        return AG_OK;
    }
    *isa = find_isa(backend, request);
    if (*isa != NULL) {
        return check_isa(backend, *isa, request);
    }
    const agi_backend *owner = owner_of_isa(list, request);
    if (owner == NULL) {
        return refuse_unknown_isa(request);
    }
    const bool ignored = request->isa == AG_ISA_AUTO && backend->n_isas == 0;
    return ignored ? AG_OK : refuse_isa_of(owner, backend, request);
}

static ag_status refuse_unknown_backend(ag_backend backend)
{
    return agi_fail_field(AG_UNSUPPORTED, "options.backend",
                          "options: backend is %d%s: not built into this library", (int)backend,
                          backend == AG_BACKEND_CUDA ? ", cuda" : "");
}

static ag_status choose_named(ag_plan *plan, const agi_backend *const list[], const agi_request *request)
{
    const agi_backend *backend = agi_backend_by_id(list, request->backend);
    const agi_isa *isa;
    if (backend == NULL) {
        return refuse_unknown_backend(request->backend);
    }
    const ag_status status = named_isa(list, backend, request, &isa);
    return status == AG_OK ? try_backend(plan, backend, isa) : status;
}

static ag_status choose_first(ag_plan *plan, const agi_backend *const list[], const agi_request *request)
{
    ag_status status = AGI_NOT_AVAILABLE;
    bool tried = false;
    for (int i = 0; list[i] != NULL && status == AGI_NOT_AVAILABLE; i++) {
        const agi_isa *isa = names_isa(request) ? find_isa(list[i], request) : NULL;
        if (agi_on_device(list[i]) || (names_isa(request) && isa == NULL)) {
            continue;
        }
        status = isa == NULL ? AG_OK : check_isa(list[i], isa, request);
        status = status == AG_OK ? try_backend(plan, list[i], isa) : status;
        tried = true;
    }
    if (tried) {
        return status;
    }
    if (!names_isa(request)) {
        return agi_fail(AG_UNSUPPORTED, "no backend is built into this library");
    }
    const agi_backend *owner = owner_of_isa(list, request);
    return owner == NULL ? refuse_unknown_isa(request) : refuse_isa_of_device(owner, request);
}

/* A program may have plans for the host and for a device: ATTNGRAD_ISA with the name of a device's instruction set says
 * nothing about plans for the host, and the other way round. */
static agi_request without_names_of_others(const agi_backend *const list[], agi_request request)
{
    const bool by_name = request.isa == AG_ISA_AUTO && request.isa_name != NULL;
    const agi_backend *owner = by_name ? owner_of_isa(list, &request) : NULL;
    const agi_backend *backend = agi_backend_by_id(list, request.backend);
    if (owner != NULL && agi_on_device(owner) != (backend != NULL && agi_on_device(backend))) {
        request.isa_name = NULL;
    }
    return request;
}

ag_status agi_choose_backend(ag_plan *plan, const agi_backend *const list[], const agi_request *asked)
{
    const agi_request heeded = without_names_of_others(list, *asked), *request = &heeded;
    const ag_status status = request->backend == AG_BACKEND_AUTO ? choose_first(plan, list, request)
                                                                 : choose_named(plan, list, request);
    return status == AGI_NOT_AVAILABLE ? AG_UNSUPPORTED : status;
}
