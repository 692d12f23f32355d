/* The kernels of src/cuda as functions of the processor: see emulated_kernels.cpp. */
#ifndef ATTNGRAD_TEST_CUDA_KERNELS_H
#define ATTNGRAD_TEST_CUDA_KERNELS_H

#include "cuda/kernel_list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the threads of a block run: see src/cuda/emulate.h. */
void emulate_schedule(int late, int backwards);

/* Plants a fault, 0 to 6; returns its name, or NULL if there is none of this number. */
const char *emulate_plant(int fault);

/* How many kernels have run so far; prints the names of the others. */
int emulate_report(void);

/* Runs a launch; the images are tried one after another until one has its kernel. */
ag_status emulate_launch_kernel(void *ctx, const agi_cuda_entry *launch);

#ifdef __cplusplus
}
#endif

#endif
