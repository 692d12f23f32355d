/* Public structs begin with their own size, so that a program compiled against another version of the header
 * works with this library. */
#ifndef AGI_STRUCTS_H
#define AGI_STRUCTS_H

#include "attngrad.h"

/* Copies a caller's struct. Fields that an older, shorter struct lacks become zero; fields that a newer one
 * has beyond ours must be zero. `name` is the name of the argument, for the message; `status` is returned for
 * a bad size. */
ag_status agi_read_struct(void *ours, size_t our_size, const void *theirs, const char *name,
                          ag_status status);

/* Writes as much of our struct as the caller's has room for, but not its struct_size. */
ag_status agi_write_struct(void *theirs, void *ours, size_t our_size, const char *name);

#endif
