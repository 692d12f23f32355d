/* Problems in processes of their own, several at a time: a kernel that faults leaves the others alone, and most of the
 * time goes into the truth, which the processor computes. The parent never opens the driver, which its children then
 * could not use. */
#ifndef AG_TEST_PROCESSES_H
#define AG_TEST_PROCESSES_H

#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* Waits for one process; its exit status, 1 if it has none. */
static inline int collect_process(void)
{
    int status = 0;
    test_need(wait(&status) > 0, "wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Begins a process for check(number); it ends with 1 if a check failed. */
static inline void begin_process(void (*check)(int number), int number)
{
    fflush(stdout);
    const pid_t child = fork();
    test_need(child >= 0, "fork");
    if (child == 0) {
        check(number);
        fflush(stdout);
        _exit(atomic_load(&test_failed) != 0);
    }
}

/* check(0) to check(count - 1), so many jobs at a time. Returns how many failed. */
static inline int run_processes(void (*check)(int number), int count, int jobs)
{
    int running = 0, failed = 0;
    for (int n = 0; n < count; n++) {
        for (; running >= jobs; running--) {
            failed += collect_process() != 0;
        }
        begin_process(check, n);
        running++;
    }
    for (; running > 0; running--) {
        failed += collect_process() != 0;
    }
    printf("%d problems, %d with failures\n", count, failed);
    return failed;
}

#endif
