/* The devices of the machine: their names, and which tables of kernels they can run. */
#ifndef AGI_CUDA_DEVICE_H
#define AGI_CUDA_DEVICE_H

#include "core/backend.h"
#include "cuda/driver.h"

/* The backend's tables of kernels, from the slowest to the fastest. */
enum { AGI_N_CUDA_ISAS = 2 };
extern const agi_isa agi_cuda_isas[AGI_N_CUDA_ISAS];

typedef struct {
    char name[64];
    int capability;   /* 90: compute capability 9.0 */
    int shared_limit; /* bytes of shared memory that a block may have */
    int processors;   /* streaming multiprocessors */
} agi_cuda_device;

/* Shared memory of a block: LARGE on devices of compute capability 9.0 and 10.0, where every kernel fits; 163 KB on 8.0
 * and 8.7; SMALL on 8.6, 8.9 and 12.0. Where a kernel does not fit, the table sm80 has another one, whose bits
 * differ. */
enum { AGI_CUDA_SHARED_LARGE = 227 * 1024, AGI_CUDA_SHARED_SMALL = 99 * 1024 };
ag_status agi_cuda_describe_device(const agi_cuda_driver *cu, CUdevice number, agi_cuda_device *device);

/* Lowers the device's limit of shared memory to ATTNGRAD_CUDA_SHARED bytes, if the environment sets it: so the
 * kernels of a smaller GPU run on a larger one. */
ag_status agi_cuda_lower_limit(agi_cuda_device *device);

/* Can the device run the table of kernels, and has this library code for it? */
bool agi_cuda_device_runs(const agi_cuda_device *device, ag_isa isa);

/* Refuses the device because it cannot run the table; AG_ISA_AUTO: any table. */
ag_status agi_cuda_refuse_device(const agi_cuda_device *device, CUdevice number, ag_isa isa);

/* The devices as text, "0: NVIDIA H200, sm90, 140 GiB; 1: ..."; "" if there is no driver or no device. */
void agi_cuda_list_devices(char *text, size_t size);

#endif
