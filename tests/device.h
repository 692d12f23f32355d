/* The end of a test of the maps that runs on a GPU too. AG_TEST_ON_DEVICE, which `make test-gpu` sets: some of its maps
 * must have run there; else the test shows nothing of the GPU, whatever it checked. */
#ifndef AG_TEST_DEVICE_H
#define AG_TEST_DEVICE_H

#include "check/stage.h"
#include "test.h"

static inline int test_maps_summary(void)
{
    if (getenv("AG_TEST_ON_DEVICE") != NULL) {
        printf("%lld calls on a GPU\n", agc_device_calls());
        CHECK(agc_device_calls() > 0, "no map ran on a GPU: are its plans for another backend?");
    }
    return test_summary();
}

#endif
