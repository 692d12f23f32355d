/* The table of functions through which core calls a backend. Core knows no backend by name; the list of
 * backends is in src/attngrad.c. */
#ifndef AGI_BACKEND_H
#define AGI_BACKEND_H

#include "core/call.h"

struct agi_gemm_table; /* see gemm/gemm.h */

/* What not every backend can do. Core refuses it by name on behalf of a backend that cannot. */
enum {
    AGI_CAN_JVP_JVP = 1 << 0,          /* the map */
    AGI_CAN_GIVEN_O = 1 << 1,          /* AG_GIVEN_O */
    AGI_CAN_SEQUENCE_OFFSETS = 1 << 2, /* q_offsets, k_offsets */
    AGI_CAN_INVARIANT = 1 << 3,        /* AG_INVARIANT */
    AGI_CAN_DEVICE_LISTS = 1 << 4,     /* q_lengths_device and so on, seed_device */
    AGI_CAN_CHOOSE_DEVICE = 1 << 5,    /* options.device */

    /* It runs on a device, whose memory its tensors and workspace are in: it takes exec.stream instead of exec.run and
     * exec.poll, has no threads, and AG_BACKEND_AUTO never takes it. */
    AGI_ON_DEVICE = 1 << 6
};

/* An instruction set for which a backend has kernels. `id` is its value in ag_isa: no two backends share one. */
typedef struct {
    ag_isa id;
    const char *name;
    bool built_in;                /* compiled into this library */
    bool (*supported)(ag_isa id); /* can this machine run it? */
} agi_isa;

/* Returned by accept, with the reason set by agi_fail, if the machine lacks what the whole backend needs,
 * such as a device or a driver. Never returned to users: a backend requested by name is then refused with
 * AG_UNSUPPORTED, and AG_BACKEND_AUTO tries the next one. */
#define AGI_NOT_AVAILABLE ((ag_status)-1)

typedef struct agi_backend {
    ag_backend id;
    const char *name;
    uint32_t abilities; /* AGI_CAN_* */

    /* The backend's instruction sets, from the slowest to the fastest; NULL and 0 if it has none. */
    const agi_isa *isas;
    int n_isas;

    /* Can the backend run this plan's problem and options? On entry plan->isa is AG_ISA_AUTO or a value from
     * `isas` that is built in and that this machine can run. accept may decide what the options left open. */
    ag_status (*accept)(ag_plan *plan);

    /* Frees what accept stored in plan->backend_data; also called after accept has failed. NULL: accept
     * stores nothing. */
    void (*destroy)(ag_plan *plan);

    /* Number of bytes of workspace that the map needs, found by a dry run of its layout; SIZE_MAX if a size_t
     * cannot hold it. */
    size_t (*workspace)(const ag_plan *plan, agi_map map);

    /* Runs one map on a checked call. */
    ag_status (*run)(const agi_call *call, void *workspace);

    /* NULL: agi_specification's merge is used. A backend with AGI_ON_DEVICE has its own. */
    ag_status (*merge)(const ag_plan *plan, const ag_merge_args *args, agi_exec *exec);

    /* NULL if the backend never stores the matrices that a trace shows. */
    ag_status (*trace)(const agi_call *call, const ag_trace_args *trace, void *workspace);

    /* Computes the layer's matrix products. NULL: agi_gemm_portable does. */
    const struct agi_gemm_table *gemm;

    /* Fills in isa, tile_queries, tile_keys, compute_dtype and deterministic; core fills in the rest. */
    void (*info)(const ag_plan *plan, ag_plan_info *info);

    /* Refuses a pointer that is not in the memory of the plan's device. Core calls it for every tensor that has
     * elements, every list on the device and the workspace, after all other checks. NULL: not on a device. */
    ag_status (*check_pointer)(const ag_plan *plan, const char *name, const void *pointer);

    /* The opposite, for what the processor reads: refuses memory of a device that the processor cannot read. Only if
     * this process has opened the device's driver already; AG_OK otherwise. NULL: not on a device. */
    ag_status (*check_host_pointer)(const char *name, const void *pointer);

    /* Writes where the plan runs, for its description: "device 0, NVIDIA H200". NULL: on threads. */
    void (*describe_place)(const ag_plan *plan, char *text, size_t size);

    /* Writes the list of the devices of this machine for people; "" if there is none. NULL: not on a device. */
    void (*list_devices)(char *text, size_t size);
} agi_backend;

static inline bool agi_on_device(const agi_backend *backend)
{
    return (backend->abilities & AGI_ON_DEVICE) != 0;
}

/* agi_backends: all backends that are built in, the fastest first, ended by NULL. agi_specification: the
 * backend that defines what the others compute; it implements every function of the table. */
extern const agi_backend *const agi_backends[];
extern const agi_backend *const agi_specification;

#endif
