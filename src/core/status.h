/* Status, message and field: how every function of the library says what went wrong. */
#ifndef AGI_STATUS_H
#define AGI_STATUS_H

#include "attngrad.h"

#if defined(__GNUC__)
#define AGI_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define AGI_PRINTF(at, first)
#endif

/* Stores, for this thread, the message and the field that it is about (see ag_last_field). Returns status, so
 * that a caller can `return agi_fail_field(...)`. */
AGI_PRINTF(3, 4) ag_status agi_fail_field(ag_status status, const char *field, const char *format, ...);

/* The same for a failure that no argument caused, such as a lack of memory. */
AGI_PRINTF(2, 3) ag_status agi_fail(ag_status status, const char *format, ...);

/* After a failure inside the struct that `field` points to: puts "field." before the stored field. Returns status. */
ag_status agi_fail_within(ag_status status, const char *field);

#endif
