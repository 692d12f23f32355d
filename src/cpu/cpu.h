/* The fused CPU backend: forward, vjp, jvp and vjp_jvp in memory proportional to the sequence. */
#ifndef AGI_CPU_H
#define AGI_CPU_H

#include "core/backend.h"

extern const agi_backend agi_cpu_backend;

#endif
