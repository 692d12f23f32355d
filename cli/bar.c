/* Draws the line of bar.h, and a counter with it. */
#define _DEFAULT_SOURCE
#include "bar.h"

#include "style.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_SIZE = 256, MIN_BAR = 10, MAX_BAR = 40, DEFAULT_COLUMNS = 80 };
static const double first_seconds = 1, redraw_seconds = 0.1;

bool bar_possible(void)
{
    return isatty(STDERR_FILENO) != 0;
}

double bar_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void bar_time(double seconds, char *text, size_t size)
{
    const long long rounded = seconds < 1e9 ? (long long)(seconds + 0.5) : 1000000000;
    if (rounded >= 3600) {
        snprintf(text, size, "%lld:%02lld:%02lld", rounded / 3600, rounded / 60 % 60, rounded % 60);
    } else {
        snprintf(text, size, "%lld:%02lld", rounded / 60, rounded % 60);
    }
}

/* Number of usable columns. The last one is left empty, as a line that fills it may wrap. */
static int columns_of_terminal(void)
{
    struct winsize size;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return (known ? size.ws_col : DEFAULT_COLUMNS) - 1;
}

/* Removes parts from the end until the rest fits. */
static void shorten(char *text, int room)
{
    while ((int)strlen(text) > room) {
        char *gap = NULL;
        for (char *at = strstr(text, "  "); at != NULL; at = strstr(at + 2, "  ")) {
            gap = at;
        }
        text[gap != NULL ? gap - text : room > 0 ? room : 0] = '\0';
    }
}

void bar_draw(int64_t done, int64_t total, const char *text)
{
    char bar[MAX_BAR + 4] = "", line[TEXT_SIZE];
    const struct style style = style_of(stderr);
    const int columns = columns_of_terminal();
    snprintf(line, sizeof line, "%lld/%lld%s%s", (long long)done, (long long)total, *text != '\0' ? "  " : "",
             text);
    shorten(line, columns);
    int width = columns - (int)strlen(line) - 3; /* 3: the brackets and a space */
    width = width > MAX_BAR ? MAX_BAR : width;
    if (width >= MIN_BAR) {
        const double share = total > 0 ? (double)done / (double)total : 0;
        const int filled = (int)((double)width * (share < 0 ? 0 : share > 1 ? 1 : share));
        memset(bar, ' ', (size_t)width + 3);
        memset(bar + 1, '=', (size_t)filled);
        bar[0] = '[';
        bar[filled + 1] = filled < width ? '>' : ']';
        bar[width + 1] = ']';
        bar[width + 3] = '\0';
    }
    fprintf(stderr, "\r%s%s%s%s\033[K", style.strong, bar, line, style.reset);
    fflush(stderr);
}

void bar_clear(void)
{
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* ---- A counter ---- */

void counter_begin(struct counter *c, int64_t total)
{
    *c = (struct counter){.total = total, .started = bar_seconds()};
}

void counter_step(struct counter *c, int64_t done)
{
    char remaining[32], text[64];
    const double now = bar_seconds(), elapsed = now - c->started;
    if (!bar_possible() || elapsed < first_seconds || now - c->drawn < redraw_seconds) {
        return;
    }
    bar_time((double)(c->total - done) * elapsed / (double)(done > 0 ? done : 1), remaining,
             sizeof remaining);
    snprintf(text, sizeof text, "%s left", remaining);
    bar_draw(done, c->total, text);
    c->drawn = now;
}

void counter_clear(struct counter *c)
{
    if (c->drawn > 0) {
        bar_clear();
        c->drawn = 0;
    }
}
