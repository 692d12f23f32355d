/* Functions of the CUDA driver that a plan has opened, for what the library itself does not do: copies of host
 * arrays, a probe of the tensor cores. */
#ifndef ATTNGRAD_CHECK_DRIVER_H
#define ATTNGRAD_CHECK_DRIVER_H

#include <attngrad.h>

/* A function by its name in the driver, and where its address goes. */
struct agc_driver_function {
    const char *symbol;
    size_t offset; /* in the caller's struct of functions */
};

/* Finds them all. AG_OK, or AG_DEVICE if no plan has opened the driver or it lacks one of them. */
ag_status agc_find_in_driver(void *to, const struct agc_driver_function *functions, size_t count);

#endif
