/* The display of progress.h. */
#define _DEFAULT_SOURCE
#include "progress.h"

#include "style.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 512, MEAN_STEPS = 50, MIN_BAR = 10, MAX_BAR = 40, USUAL_COLUMNS = 80 };
static const double redraw_seconds = 0.1;

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_begin(struct progress *p)
{
    p->terminal = isatty(STDERR_FILENO) != 0;
    p->started = now_seconds();
    p->drawn = 0;
    p->loss = p->right = 0;
    p->seen = 0;
}

/* A plain mean over the first values, then one that forgets. */
static void add_values(struct progress *p, struct progress_values now)
{
    p->seen++;
    const double share = p->terminal && p->seen > MEAN_STEPS ? 1.0 / MEAN_STEPS : 1.0 / (double)p->seen;
    p->loss += (now.loss - p->loss) * share;
    p->right += (now.right - p->right) * share;
}

/* "1:02:03", "2:03" */
static void print_time(double seconds, char *text, size_t size)
{
    const long long whole = seconds < 1e9 ? (long long)(seconds + 0.5) : 1000000000;
    if (whole >= 3600) {
        snprintf(text, size, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        snprintf(text, size, "%lld:%02lld", whole / 60, whole % 60);
    }
}

static void print_values(const struct progress *p, int64_t step, double elapsed, char *text, size_t size)
{
    const double done = (double)(step - p->first), seconds = elapsed > 1e-9 ? elapsed : 1e-9;
    char right[32] = "", left[32];
    if (!isnan(p->right)) {
        snprintf(right, sizeof right, "  recall %5.1f%%", 100 * p->right);
    }
    print_time((double)(p->steps - step) * seconds / done, left, sizeof left);
    snprintf(text, size, "loss %.4f%s  %.0f tokens/s  %s left", p->loss, right,
             done * (double)p->tokens / seconds, left);
}

static int columns_of_terminal(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : USUAL_COLUMNS;
}

/* "[=====>    ] 120/1500  " of what the line has room for. */
static void draw_bar(const struct progress *p, int64_t step, const char *values)
{
    char bar[MAX_BAR + 1], count[48];
    const struct style style = style_of(stderr);
    snprintf(count, sizeof count, "%lld/%lld", (long long)step, (long long)p->steps);
    int room = columns_of_terminal() - (int)(strlen(values) + strlen(count)) - 8;
    room = room > MAX_BAR ? MAX_BAR : room < MIN_BAR ? 0 : room;
    const int filled = (int)((double)room * (double)step / (double)p->steps);
    for (int n = 0; n < room; n++) {
        bar[n] = n < filled ? '=' : n == filled ? '>' : ' ';
    }
    bar[room] = '\0';
    fprintf(stderr, "\r%s%s%s%s%s  %s\033[K", style.strong, room > 0 ? "[" : "", bar, room > 0 ? "] " : "",
            count, values);
    fputs(style.reset, stderr);
    fflush(stderr);
}

void progress_step(struct progress *p, int64_t step, struct progress_values now)
{
    char values[LINE_SIZE];
    const double elapsed = now_seconds() - p->started;
    add_values(p, now);
    if (p->terminal && (elapsed - p->drawn >= redraw_seconds || step == p->steps)) {
        print_values(p, step, elapsed, values, sizeof values);
        draw_bar(p, step, values);
        p->drawn = elapsed;
    } else if (!p->terminal && (step % p->log_every == 0 || step == p->steps)) {
        print_values(p, step, elapsed, values, sizeof values);
        fprintf(stderr, "step %*lld  %s\n", snprintf(NULL, 0, "%lld", (long long)p->steps), (long long)step,
                values);
        p->loss = p->right = 0;
        p->seen = 0;
    }
}

void progress_end(struct progress *p)
{
    if (p->terminal && p->drawn > 0) {
        fputc('\n', stderr);
    }
}
