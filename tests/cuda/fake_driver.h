/* A CUDA driver for tests, libcuda.so.1: two devices whose memory is the host's, every kernel that is asked for, and a
 * record of what was called. Of the kernels `upload` runs, the others do nothing; in the kind `computes` all run, by
 * emulation. The test program reads and writes this state; the library sees a driver like any other. */
#ifndef AG_TEST_FAKE_DRIVER_H
#define AG_TEST_FAKE_DRIVER_H

#include "cuda/driver.h"

#include <stdatomic.h>

enum {
    FAKE_DEVICES = 2,
    FAKE_NAMES = 64,
    FAKE_INVALID_VALUE = 1,
    FAKE_NO_DEVICE = 100,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_IMAGE = 200,
    FAKE_NOT_FOUND = 500,
    FAKE_ILLEGAL_ADDRESS = 700,
    FAKE_LAUNCH_FAILED = 719,
    FAKE_IN_CAPTURE = 900
};

struct fake_driver {
    /* The script. A function that `fails` names by its symbol returns `result` from now on. */
    atomic_int capability[FAKE_DEVICES]; /* 90: 9.0 */
    atomic_int processors;               /* of each device */
    atomic_int version;
    _Atomic(const char *) fails;
    atomic_int result;
    atomic_int lost; /* not 0: every call on a context returns this */

    /* The record. */
    atomic_int retained[FAKE_DEVICES], pushed, popped, wrong_context;
    atomic_int images, launches, uploads, allocations;
    atomic_int asked_after_fork; /* calls in a child of the process that called cuInit; they fail */
    char names[FAKE_NAMES][64];  /* of the kernels launched, launch n at n % FAKE_NAMES */
    atomic_int launched_on[FAKE_DEVICES];
    _Atomic(CUstream) last_stream;

    /* Functions that stand for what programs do with a driver. */
    CUresult (*begin_capture)(CUstream stream);
    CUresult (*end_capture)(void);
    CUresult (*replay)(void);                            /* what the last capture holds */
    CUcontext (*context_of)(CUdevice device, int which); /* 0: the primary one, 1: another */
    CUdeviceptr (*allocate)(CUdevice device, size_t bytes);
    void (*release)(CUdeviceptr memory);
};

#define FAKE_DRIVER_SYMBOL "ag_fake_driver"

#endif
