/* What a backend is to the rest of the library: one table. Core calls it and knows none by name; the
 * list of them is in src/attngrad.c. */
#ifndef AGI_BACKEND_H
#define AGI_BACKEND_H

#include "call.h"

struct agi_gemm_table; /* see gemm/gemm.h */

typedef struct agi_backend {
    ag_backend id;
    const char *name;

    /* Can it run this plan's problem and options? It may choose what the options left open. */
    ag_status (*accept)(ag_plan *plan);

    /* Frees what accept keeps in plan->backend_data, also after an accept that failed. NULL: nothing is kept. */
    void (*destroy)(ag_plan *plan);

    /* The dry run of the map's layout. SIZE_MAX: more than memory can be. */
    size_t (*workspace)(const ag_plan *plan, agi_map map);

    /* One map on a checked call. */
    ag_status (*run)(const agi_call *call, const ag_exec *exec, void *workspace);

    /* NULL: the specification's, which is the last of the list. */
    ag_status (*merge)(const ag_plan *plan, const ag_merge_args *args, const ag_exec *exec);

    /* NULL where the backend never has the matrices. */
    ag_status (*trace)(const agi_call *call, const ag_trace_args *trace, void *workspace);

    /* Computes the layer's matrix products. NULL: the portable implementation does. */
    const struct agi_gemm_table *gemm;

    /* What follows the name in ag_plan_describe, for example "tile 64x128". May be empty. */
    void (*describe)(const ag_plan *plan, char *text, size_t size);
} agi_backend;

/* All that are built in, the fastest first; NULL behind the last. */
extern const agi_backend *const agi_backends[];

#endif
