/* The layer's matrix products on the CPU: see gemm/gemm.h. */
#ifndef AGI_CPU_GEMM_H
#define AGI_CPU_GEMM_H

#include "gemm/gemm.h"

extern const agi_gemm_table agi_cpu_gemm;

#endif
