/* The images of the kernels, one per kernel family: machine code for several architectures, embedded in the library by
 * the build (images.cmake). An image is loaded when one of its kernels is first asked for. */
#ifndef AGI_CUDA_IMAGES_H
#define AGI_CUDA_IMAGES_H

#include "cuda/driver.h"

/* A kernel by the name of its family and its own. The handle serves every device, context and thread. */
ag_status agi_cuda_find_kernel(const agi_cuda_driver *cu, const char *family, const char *name,
                               CUkernel *kernel);

#endif
