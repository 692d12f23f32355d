/* What a backend is to the rest of the library: one table. Core calls it and knows none by name; the list of
 * them is in src/attngrad.c. */
#ifndef AGI_BACKEND_H
#define AGI_BACKEND_H

#include "core/call.h"

struct agi_gemm_table; /* see gemm/gemm.h */

/* One of a backend's tables of kernels. The number is one of AG_ISA_*, and no other backend's. */
typedef struct {
    ag_isa number;
    const char *name;
    bool built_in;                    /* compiled into this library */
    bool (*supported)(ag_isa number); /* can this machine run it? */
} agi_isa;

/* What accept returns, with the reason by agi_fail, if the machine lacks what the whole backend needs: a
 * device, a driver. Internal: a backend that was asked for by name is then refused as AG_UNSUPPORTED, and
 * AG_BACKEND_AUTO goes on to the next one. */
#define AGI_NOT_HERE ((ag_status)-1)

typedef struct agi_backend {
    ag_backend id;
    const char *name;

    /* Its tables of kernels, the plainest first. None: NULL and 0. */
    const agi_isa *isas;
    int n_isas;

    /* Can it run this plan's problem and options? It may choose what the options left open: plan->isa is
     * AG_ISA_AUTO, or a number of its own list that is built in and that this machine can run. */
    ag_status (*accept)(ag_plan *plan);

    /* Frees what accept keeps in plan->backend_data, also after an accept that failed. NULL: nothing is kept. */
    void (*destroy)(ag_plan *plan);

    /* The dry run of the map's layout. SIZE_MAX: more than memory can be. */
    size_t (*workspace)(const ag_plan *plan, agi_map map);

    /* One map on a checked call. */
    ag_status (*run)(const agi_call *call, const ag_exec *exec, void *workspace);

    /* NULL: agi_specification's. */
    ag_status (*merge)(const ag_plan *plan, const ag_merge_args *args, const ag_exec *exec);

    /* NULL if the backend never has the matrices. */
    ag_status (*trace)(const agi_call *call, const ag_trace_args *trace, void *workspace);

    /* Computes the layer's matrix products. NULL: the portable implementation does. */
    const struct agi_gemm_table *gemm;

    /* Fills in isa, tile_queries, tile_keys, compute_dtype and deterministic; the others are core's. */
    void (*info)(const ag_plan *plan, ag_plan_info *info);
} agi_backend;

/* All that are built in, the fastest first, NULL after the last; and the one that defines what the others
 * compute, which has every function. */
extern const agi_backend *const agi_backends[];
extern const agi_backend *const agi_specification;

#endif
