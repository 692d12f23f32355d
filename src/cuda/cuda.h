/* The CUDA backend: NVIDIA GPUs, through the driver that is found at run time. */
#ifndef AGI_CUDA_H
#define AGI_CUDA_H

#include "core/backend.h"

extern const agi_backend agi_cuda_backend;

#endif
