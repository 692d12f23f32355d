/* Tensor maps by the driver. */
#ifndef AGI_CUDA_BOXES_H
#define AGI_CUDA_BOXES_H

#include "cuda/driver.h"
#include "cuda/hopper_params.h"

/* What the copy engine knows of a tensor. driver: a const agi_cuda_driver *. */
ag_status agi_cuda_make_map(const void *driver, const agi_cuda_box_view *view, agi_cuda_tensor_map *map);

#endif
