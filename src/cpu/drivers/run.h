/* The maps for one real, as the backend calls them. */
#ifndef AGI_CPU_MAPS_H
#define AGI_CPU_MAPS_H

#include "core/call.h"

/* With the kernels of an instruction set, which the plan has chosen. */
size_t agi_cpu_workspace_f32(const ag_plan *plan, agi_map map);
size_t agi_cpu_workspace_f64(const ag_plan *plan, agi_map map);
ag_status agi_cpu_run_f32(const agi_call *call, const ag_exec *exec, void *workspace);
ag_status agi_cpu_run_f64(const agi_call *call, const ag_exec *exec, void *workspace);

#endif
