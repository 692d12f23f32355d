/* Functions of the CUDA driver: see driver.h. */
#include "check/driver.h"

#include "check/message.h"

#include <dlfcn.h>
#include <string.h>

ag_status agc_find_in_driver(void *to, const struct agc_driver_function *functions, size_t count)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; i < count; i++) {
        void *address = library == NULL ? NULL : dlsym(library, functions[i].symbol);
        if (address == NULL) {
            return agc_fail(AG_DEVICE, "", "the CUDA driver has no %s", functions[i].symbol);
        }
        memcpy((char *)to + functions[i].offset, &address, sizeof address);
    }
    return AG_OK;
}
