/* Public structs begin with their own size, so that a program compiled against another version of the header
 * works with this library. */
#ifndef AGI_STRUCTS_H
#define AGI_STRUCTS_H

#include "attngrad.h"

/* Copies a caller's struct: what an older, shorter one lacks becomes zero, what a newer one has beyond ours
 * must be zero. `name` is the argument's, for the message; `status` is returned for a bad size. */
ag_status agi_read_struct(void *ours, size_t our_size, const void *theirs, const char *name,
                          ag_status status);

/* Writes as much of ours as the caller's struct has room for; its struct_size stays. */
ag_status agi_write_struct(void *theirs, void *ours, size_t our_size, const char *name);

#endif
