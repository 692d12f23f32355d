/* The instruction sets of the CPU backend, and which of them a plan uses. */
#ifndef AGI_CPU_ISA_H
#define AGI_CPU_ISA_H

#include "core/backend.h"

enum { AGI_N_CPU_ISAS = 5 }; /* lines of the list in isa.c */
extern const agi_isa agi_cpu_isas[AGI_N_CPU_ISAS];

/* Returns the instruction set that the plan names or, if it names none, the best one that is built in and
 * that this processor has. If the plan's dtype cannot use it, the best one that it can use. */
ag_isa agi_cpu_choose_isa(const ag_plan *plan);

#endif
