/* Decides whether a stream gets colours. */
#define _POSIX_C_SOURCE 200809L
#include "style.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct style style_of(FILE *file)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    if (!isatty(fileno(file)) || (no_color && *no_color) || !term || strcmp(term, "dumb") == 0) {
        return (struct style){"", "", "", "", ""};
    }
    return (struct style){"\033[1m", "\033[2m", "\033[32m", "\033[1;31m", "\033[0m"};
}
