/* A probe of a GPU's tensor cores: the operations per second that they do on numbers that stay in registers. */
#ifndef ATTNGRAD_CLI_PROBE_GPU_H
#define ATTNGRAD_CLI_PROBE_GPU_H

#include <attngrad.h>

/* Sets *rate to the operations per second of the products that maps of this dtype are made of, on the GPU of the
 * current context; multiply-adds count two. A product of float32 numbers takes three products of float16, and
 * counts once. Returns AG_OK or AG_DEVICE. */
ag_status probe_gpu_rate(ag_dtype dtype, double seconds, double *rate);

#endif
