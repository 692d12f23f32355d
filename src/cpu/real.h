/* The real of core/real.h, and names of this folder that still lack its suffix. */
#ifndef AGI_CPU_REAL_H
#define AGI_CPU_REAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/real.h"

#define REAL_NAME REAL
#define agi_load_panel REAL(agi_load_panel)
#define agi_kernels_avx2 REAL(agi_kernels_avx2)
#define agi_kernels_avx512 REAL(agi_kernels_avx512)
#define agi_kernels_of REAL(agi_kernels_of)
#define agi_kernels_neon REAL(agi_kernels_neon)
#define agi_kernels_scalar REAL(agi_kernels_scalar)

#endif
