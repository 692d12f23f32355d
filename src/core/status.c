/* The thread-local message and the names of the status values. Prints nothing, allocates nothing. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[256] = "no call has failed on this thread";
static _Thread_local char field[64];

static void store_message(const char *about, const char *format, va_list args)
{
    vsnprintf(message, sizeof message, format, args);
    snprintf(field, sizeof field, "%s", about);
}

ag_status agi_fail_field(ag_status status, const char *about, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    store_message(about, format, args);
    va_end(args);
    return status;
}

ag_status agi_fail(ag_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    store_message("", format, args);
    va_end(args);
    return status;
}

ag_status agi_fail_within(ag_status status, const char *outer)
{
    char inner[sizeof field];
    memcpy(inner, field, sizeof inner);
    snprintf(field, sizeof field, "%.20s.%.40s", outer, inner);
    return status;
}

const char *ag_last_message(void)
{
    return message;
}

const char *ag_last_field(void)
{
    return field;
}

const char *ag_status_string(ag_status status)
{
    switch (status) {
    case AG_OK: return "ok";
    case AG_INVALID_PROBLEM: return "invalid problem";
    case AG_INVALID_ARGUMENT: return "invalid argument";
    case AG_UNSUPPORTED: return "unsupported";
    case AG_NO_MEMORY: return "out of memory";
    case AG_WORKSPACE: return "workspace too small";
    case AG_CANCELLED: return "cancelled";
    default: return "unknown status";
    }
}
