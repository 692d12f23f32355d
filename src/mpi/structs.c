/* Reading and writing structs of other versions: see structs.h. */
#include "mpi/structs.h"

#include <string.h>

#include "mpi/message.h"

static ag_status check_size(uint32_t given, const void *from, size_t size, const char *name, ag_status wrong)
{
    const unsigned char *bytes = from;
    if (given < sizeof given) {
        return agi_mpi_fail(wrong, name, "%s: struct_size is %lu: must be the size of the struct", name,
                            (unsigned long)given);
    }
    for (size_t n = size; n < given; n++) {
        if (bytes[n] != 0) {
            return agi_mpi_fail(wrong, name,
                                "%s: struct_size is %lu, and fields that this version lacks are set", name,
                                (unsigned long)given);
        }
    }
    return AG_OK;
}

ag_status agi_mpi_read_struct(void *to, size_t size, const void *from, const char *name, ag_status wrong)
{
    uint32_t given;
    if (from == NULL) {
        return agi_mpi_fail(wrong, name, "%s is NULL", name);
    }
    memcpy(&given, from, sizeof given);
    const ag_status status = check_size(given, from, size, name, wrong);
    if (status != AG_OK) {
        return status;
    }
    const uint32_t own = (uint32_t)size;
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &own, sizeof own);
    return AG_OK;
}

ag_status agi_mpi_write_struct(void *to, const void *from, size_t size, const char *name)
{
    uint32_t given;
    if (to == NULL) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, name, "%s is NULL", name);
    }
    memcpy(&given, to, sizeof given);
    if (given < sizeof given) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, name,
                            "%s: struct_size is %lu: must be the size of the struct", name,
                            (unsigned long)given);
    }
    memcpy((char *)to + sizeof given, (const char *)from + sizeof given,
           (given < size ? given : size) - sizeof given);
    return AG_OK;
}
