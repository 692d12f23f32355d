/* The list of emulated kernels: each image adds its own when the program starts. */
#pragma once
#include "cuda/kernel_list.h"

struct emulated_kernel {
    int32_t kernel;
    void (*run)(const agi_cuda_entry *launch);
};
struct emulated_image {
    emulated_image(const emulated_kernel *kernels, size_t count);
};
