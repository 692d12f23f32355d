/* The thread-local message of libattngrad_mpi. Prints nothing, allocates nothing. */
#include "mpi/message.h"

#include <stdarg.h>
#include <stdio.h>

#include "mpi/public.h"

static _Thread_local char message[256] = "no call has failed on this thread";
static _Thread_local char field_name[64];

ag_status agi_mpi_fail(ag_status status, const char *field, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    snprintf(field_name, sizeof field_name, "%s", field);
    return status;
}

ag_status agi_mpi_fail_inside(ag_status status)
{
    return agi_mpi_fail(status, ag_last_field(), "%s", ag_last_message());
}

const char *ag_mpi_last_message(void)
{
    return message;
}

const char *ag_mpi_last_field(void)
{
    return field_name;
}
