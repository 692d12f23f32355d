/* Status and message: how every function of the library says what went wrong. */
#ifndef AGI_STATUS_H
#define AGI_STATUS_H

#include "attngrad.h"

/* Keeps the message for this thread and returns status, so that a caller can `return agi_fail(...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
ag_status
agi_fail(ag_status status, const char *format, ...);

#endif
