/* Copies of host arrays on the device of a CUDA plan, for one call: the check engine and the command keep their arrays
 * in host memory, wherever a plan runs. */
#ifndef ATTNGRAD_CHECK_STAGE_H
#define ATTNGRAD_CHECK_STAGE_H

#include "check/arrays.h"

enum { AGC_MAX_STAGED = 64 };

/* Host memory that one or more tensors of a call lie in, and where its copy is. Tensors that share memory share a
 * region, so that interleaved outputs do not overwrite each other when they are copied back. */
struct agc_region {
    uintptr_t begin, end; /* in host memory */
    size_t offset;        /* of its copy */
    int written;          /* 1: it has an output */
};

struct agc_stage {
    struct agc_region regions[AGC_MAX_STAGED];
    int count;
    size_t bytes;              /* of all copies */
    unsigned long long memory; /* the device's address of the copies; 0: none */
};

/* Is the plan's memory a device's? */
int agc_on_device(const ag_plan *plan);

/* Makes the device's primary context current on this thread, as plan was made with these options (NULL: defaults);
 * nothing for a plan of the host. AG_OK or AG_DEVICE. */
ag_status agc_enter_device(const ag_plan *plan, const ag_options *options);

/* Copies the tensors of a map (one bit of AG_MAP_*), or of a merge, to the device, and lets args and *workspace point
 * there; *workspace becomes memory of `bytes` bytes. AG_OK, AG_NO_MEMORY or AG_DEVICE; agc_stage_end is called either
 * way. */
ag_status agc_stage_map(struct agc_stage *s, const ag_plan *plan, uint32_t map, ag_args *args,
                        void **workspace, size_t bytes);
ag_status agc_stage_merge(struct agc_stage *s, const ag_plan *plan, ag_merge_args *args);

/* Waits for all calls on the copies. AG_OK or AG_DEVICE. */
ag_status agc_stage_wait(const struct agc_stage *s);

/* Waits for the call, copies its outputs back if its status is AG_OK, and frees the copies. Returns status, or that of
 * what failed here. */
ag_status agc_stage_end(struct agc_stage *s, ag_status status);

/* One map, or a merge, of a plan on host arrays, wherever it runs. */
ag_status agc_run_map(const ag_plan *plan, uint32_t map, const ag_args *args, void *workspace, size_t bytes);
ag_status agc_run_merge(const ag_plan *plan, const ag_merge_args *args);

/* How many of these two the process has run on a device. */
long long agc_device_calls(void);

#endif
