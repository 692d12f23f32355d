/* The kernels of a plan. */
#ifndef AGI_CUDA_FIND_KERNELS_H
#define AGI_CUDA_FIND_KERNELS_H

#include "cuda/plan.h"

/* Finds the kernels of the number format of dtype, and those that serve every format, with isa AG_ISA_SM90 those for
 * Hopper too, and lets them use as much shared memory as they need, if the device has it. Loads their images. */
ag_status agi_cuda_find_kernels(agi_cuda_plan *plan, ag_isa isa, ag_dtype dtype);

#endif
