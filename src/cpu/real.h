/* The real of core/real.h, and names of this folder that still lack its suffix. */
#ifndef AGI_CPU_REAL_H
#define AGI_CPU_REAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/real.h"

#define REAL_NAME REAL
#define agi_get_panel REAL(agi_get_panel)
#define agi_kernels_of REAL(agi_kernels_of)

#endif
