/* The implementations of the maps, for make_plan.c alone. */
#ifndef AGI_CPU_IMPLEMENTATIONS_H
#define AGI_CPU_IMPLEMENTATIONS_H

#include "cpu/plan.h"

/* The AMX implementation exists on x86-64 only, and its real is float. */
#if defined(__x86_64__) && !defined(AGI_REAL64)
#define AGI_HAS_AMX 1
#else
#define AGI_HAS_AMX 0
#endif

extern const agi_implementation REAL(agi_vec_implementation);

#if AGI_HAS_AMX
extern const agi_implementation agi_amx_implementation;
#endif

#endif
