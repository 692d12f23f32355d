/* Structs of other versions: see structs.h. */
#include "core/structs.h"

#include <string.h>

#include "core/status.h"

#define MAX_STRUCT (UINT32_C(1) << 16) /* a larger struct_size was not initialised */

ag_status agi_read_struct(void *ours, size_t our_size, const void *theirs, const char *name, ag_status status)
{
    uint32_t size;
    if (theirs == NULL) {
        return agi_fail_field(status, name, "%s is NULL", name);
    }
    memcpy(&size, theirs, sizeof size);
    if (size < 2 * sizeof size || size % sizeof(void *) != 0 || size > MAX_STRUCT) {
        return agi_fail_field(status, name, "%s: struct_size is %lu: set it to sizeof the struct", name,
                              (unsigned long)size);
    }
    for (size_t i = our_size; i < size; i++) {
        if (((const unsigned char *)theirs)[i] != 0) {
            return agi_fail_field(status, name,
                                  "%s: struct_size is %lu, ours %zu, and byte %zu, unknown here, is not zero",
                                  name, (unsigned long)size, our_size, i);
        }
    }
    memset(ours, 0, our_size);
    memcpy(ours, theirs, size < our_size ? size : our_size);
    return AG_OK;
}

ag_status agi_write_struct(void *theirs, void *ours, size_t our_size, const char *name)
{
    uint32_t size = 0;
    if (theirs != NULL) {
        memcpy(&size, theirs, sizeof size);
    }
    if (size < 2 * sizeof size) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s%s", name,
                              theirs == NULL ? " is NULL"
                                             : ": struct_size is too small: set it to sizeof the struct");
    }
    memcpy(ours, &size, sizeof size);
    memcpy(theirs, ours, size < our_size ? size : our_size);
    return AG_OK;
}
