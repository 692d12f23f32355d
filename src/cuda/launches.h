/* The launches of a call: which kernels, in which order, with which parameters. A function of the call, of the plan, of
 * the device's limit of shared memory and, for nothing but the number of blocks, of its processors; knows no driver.
 * The backend hands each launch to the driver, the tests run each on the processor. */
#ifndef AGI_CUDA_LAUNCHES_H
#define AGI_CUDA_LAUNCHES_H

#include "core/call.h"
#include "cuda/kernel_list.h"

/* ---- The device as far as launches depend on it ---- */

typedef struct {
    int32_t
        shared_limit; /* bytes of shared memory that a block may have: 101,376 on sm_86, sm_89 and sm_120, 232,448
                               on sm_90 */
    int32_t processors; /* multiprocessors: what a kernel's blocks are spread over. No result depends on it */
    const int32_t *buckets; /* the plan's, in device memory; NULL if the plan has none */
    const double *slopes;   /* likewise */

    int32_t ring_most; /* blocks of a ring: AGI_HOPPER_RING_MOST, fewer in tests; bits depend on it */

    /* Makes a tensor map; ctx: what it needs for that. NULL: the table is sm80, whose kernels take none. */
    ag_status (*make_map)(const void *ctx, const agi_cuda_box_view *view, agi_cuda_tensor_map *map);
    const void *ctx;
} agi_cuda_setting;

/* ---- The launches ---- */

typedef struct {
    ag_status (*emit)(void *ctx, const agi_cuda_entry *launch);
    void *ctx;
} agi_cuda_emitter;

/* Emits the launches of one map, in order; stops at the first that fails and returns its status. Nothing in memory of
 * the device is read or written by it. */
ag_status agi_cuda_launch_map(const agi_call *call, const agi_cuda_setting *device, void *workspace,
                              agi_cuda_emitter stream);
ag_status agi_cuda_launch_merge(const ag_plan *plan, const ag_merge_args *args, agi_cuda_emitter stream);

/* Bytes of workspace that agi_cuda_launch_map uses; SIZE_MAX if a size_t cannot hold it. */
size_t agi_cuda_workspace(const ag_plan *plan, agi_map map);

#endif
