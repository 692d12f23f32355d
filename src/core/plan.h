/* The plan: a checked problem, the backend that will run it, and copies of the caller's arrays. It does not
 * change after ag_plan_create. */
#ifndef AGI_PLAN_H
#define AGI_PLAN_H

#include "core/problem.h"

typedef enum { AGI_FORWARD, AGI_VJP, AGI_JVP, AGI_VJP_JVP, AGI_JVP_JVP, AGI_N_MAPS } agi_map;

struct agi_backend;

struct ag_plan {
    ag_problem p; /* defaults filled in; its arrays belong to the plan */
    const struct agi_backend *backend;
    int32_t threads;
    ag_isa isa;               /* a value from the backend's list; AG_ISA_AUTO if that is empty */
    uint32_t flags;           /* of the options */
    int32_t device;           /* of the options */
    int32_t *buckets;         /* NULL: identity */
    double *slopes;           /* [heads]; NULL: no ALiBi */
    size_t bytes[AGI_N_MAPS]; /* of workspace, per map */
    void *backend_data;       /* made by the backend's accept, freed by its destroy */
    ag_plan_info info;
    char description[240];

    void *alloc_ctx;
    void *(*alloc)(void *ctx, size_t size);
    void (*release)(void *ctx, void *memory);
};

/* Does the plan's backend have the map? */
bool agi_can_run(const ag_plan *plan, agi_map map);

/* Allocates memory for `what` with the plan's allocator. On failure returns NULL and sets *status to AG_NO_MEMORY, with
 * its message. */
void *agi_plan_alloc(const ag_plan *plan, const char *what, size_t size, ag_status *status);

#endif
