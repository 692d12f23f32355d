/* The implementations of the maps, for plan.c alone. */
#ifndef AGI_CPU_IMPLEMENTATIONS_H
#define AGI_CPU_IMPLEMENTATIONS_H

#include "cpu/plan.h"

extern const agi_implementation agi_vec_implementation;

#if AGI_HAS_AMX
extern const agi_implementation agi_amx_implementation;
#endif

#endif
