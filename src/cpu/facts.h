/* What the backend's table calls, in the versions for float32 and float64. */
#ifndef AGI_CPU_FACTS_H
#define AGI_CPU_FACTS_H

#include "core/call.h"

/* The first member of a plan's backend data, the same for float32 and float64. */
typedef struct {
    ag_isa isa; /* the instruction set of the maps; may be below plan->isa if that cannot run the problem */
    int64_t tile_queries, tile_keys;
} agi_cpu_facts;

/* Makes plan->backend_data; the instruction set has been chosen. */
ag_status agi_cpu_plan_make_f32(ag_plan *plan);
ag_status agi_cpu_plan_make_f64(ag_plan *plan);

size_t agi_cpu_workspace_f32(const ag_plan *plan, agi_map map);
size_t agi_cpu_workspace_f64(const ag_plan *plan, agi_map map);

ag_status agi_cpu_run_f32(const agi_call *call, void *workspace);
ag_status agi_cpu_run_f64(const agi_call *call, void *workspace);

#endif
