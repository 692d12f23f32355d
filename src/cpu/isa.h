/* The CPU backend's tables of kernels, one for each instruction set. */
#ifndef AGI_CPU_ISA_H
#define AGI_CPU_ISA_H

#include "core/backend.h"

enum { AGI_N_CPU_ISAS = 5 };
extern const agi_isa agi_cpu_isas[AGI_N_CPU_ISAS];

/* The one that the plan asks for, which this processor has; else the best that it has and that is built in. In either
 * case one that the plan's dtype can use. */
ag_isa agi_cpu_choose_isa(const ag_plan *plan);

#endif
