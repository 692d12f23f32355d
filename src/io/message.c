/* The thread-local message of the I/O library. Prints nothing, allocates nothing. */
#include "io/io.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024] = "no call has failed on this thread";

ag_io_status agi_io_fail(ag_io_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

ag_io_status agi_io_no_memory(void)
{
    return agi_io_fail(AG_IO_NO_MEMORY, "out of memory");
}

ag_io_status agi_io_fail_errno(const char *what, const char *path)
{
    return agi_io_fail(AG_IO_SYSTEM, "cannot %s '%s': %s", what, path, strerror(errno));
}

ag_io_status agi_io_blame(ag_io_status status, const char *path)
{
    char text[sizeof message];
    memcpy(text, message, sizeof text);
    return agi_io_fail(status, "'%s': %s", path, text);
}

const char *ag_io_last_message(void)
{
    return message;
}
