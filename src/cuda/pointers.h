/* Whose memory a pointer is. */
#ifndef AGI_CUDA_POINTERS_H
#define AGI_CUDA_POINTERS_H

#include "cuda/plan.h"

/* Refuses a pointer that is not in the memory of the plan's device: host memory, pinned or not, or another device's.
 * Managed memory is allowed. `name` is that of the argument. */
ag_status agi_cuda_check_pointer(const ag_plan *plan, const char *name, const void *pointer);

/* The opposite: refuses memory of any device but managed one, if this process has opened the driver. */
ag_status agi_cuda_check_host_pointer(const char *name, const void *pointer);

#endif
