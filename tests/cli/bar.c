/* The progress bar: how much of it is filled, also if more is done than was announced. */
#define _DEFAULT_SOURCE
#include "bar.h"

#include "test.h"

#include <unistd.h>

enum { LINE_SIZE = 200, WIDTH = 40 };

/* What bar_draw writes to standard error, which is then a file and has 80 columns. */
static void draw(int64_t done, int64_t total, char line[LINE_SIZE])
{
    FILE *file = tmpfile();
    const int before = dup(STDERR_FILENO);
    test_need(file != NULL && before >= 0, "no file for standard error");
    test_need(dup2(fileno(file), STDERR_FILENO) >= 0, "standard error cannot be redirected");
    bar_draw(done, total, "text");
    test_need(dup2(before, STDERR_FILENO) >= 0, "standard error cannot be restored");
    rewind(file);
    line[fread(line, 1, LINE_SIZE - 1, file)] = '\0';
    close(before);
    fclose(file);
}

/* filled: the columns with '=' */
static void check_bar(int64_t done, int64_t total, int filled)
{
    char line[LINE_SIZE], bar[WIDTH + 1], wanted[LINE_SIZE];
    memset(bar, ' ', WIDTH);
    memset(bar, '=', (size_t)filled);
    bar[WIDTH] = '\0';
    if (filled < WIDTH) {
        bar[filled] = '>';
    }
    snprintf(wanted, sizeof wanted, "\r[%s] %lld/%lld  text\033[K", bar, (long long)done, (long long)total);
    draw(done, total, line);
    CHECK(strcmp(line, wanted) == 0, "%lld of %lld: '%s' instead of '%s'", (long long)done, (long long)total,
          line + 1, wanted + 1);
}

int main(void)
{
    check_bar(0, 10, 0);
    check_bar(5, 10, WIDTH / 2);
    check_bar(10, 10, WIDTH);
    check_bar(11, 10, WIDTH);
    check_bar(1000, 10, WIDTH);
    check_bar(-1, 10, 0);
    check_bar(3, 0, 0);
    return test_summary();
}
