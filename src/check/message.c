/* The thread-local message of the check engine. Prints nothing, allocates nothing. */
#include "check/message.h"

#include <attngrad_check.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static _Thread_local char own_message[256], own_field[64];
static _Thread_local bool is_own;

void agc_message_begin(void)
{
    is_own = false;
}

ag_status agc_fail(ag_status status, const char *field, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(own_message, sizeof own_message, format, values);
    va_end(values);
    snprintf(own_field, sizeof own_field, "%s", field);
    is_own = true;
    return status;
}

const char *ag_check_last_message(void)
{
    return is_own ? own_message : ag_last_message();
}

const char *ag_check_last_field(void)
{
    return is_own ? own_field : ag_last_field();
}
