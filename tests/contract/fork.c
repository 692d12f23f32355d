/* fork(): a child may use and destroy the plans it inherits and make new ones, whatever the parent's
 * threads were doing at that moment, even if they were inside a call. Children that hang are ended
 * by an alarm. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 60, CHILDREN = 8 };

static const char problem[] = EVERY_FEATURE "f32";

/* AddressSanitizer takes a lock of its own while a thread starts, and a child that is forked meanwhile waits for it
 * for ever: there, threads get the time to start. */
static void let_threads_start(void)
{
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifdef SANITIZED
    const struct timespec long_enough = {0, 300000000};
    nanosleep(&long_enough, NULL);
#endif
}

static ag_options four_threads(void)
{
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 4;
    return options;
}

/* In a child: the inherited plan gives the inherited bits. Returns 0, or a number that tells what went wrong. */
static int use_inherited(struct arrays *x)
{
    void *wanted[T_COUNT];
    int wrong = 0;
    keep_outputs(x, wanted);
    for (int map = 0; map < MAPS; map++) {
        if (call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes) != AG_OK) {
            wrong = 1;
        }
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (wanted[t] != NULL && memcmp(wanted[t], x->data[t], tensor_bytes(x, t)) != 0) {
            wrong = 2;
        }
    }
    free_outputs(wanted);
    return wrong;
}

static int make_new(void)
{
    struct arrays x;
    const ag_options options = four_threads();
    make_arrays(&x, problem, &options, 5);
    const ag_status status = agc_arrays_run_all(&x);
    agc_arrays_destroy(&x);
    return status == AG_OK ? 0 : 3;
}

/* What a child does; it leaves by _exit, so that no output is written twice. */
static void child(struct arrays *x, int kind)
{
    int wrong = 0;
    alarm(SECONDS);
    if (kind % 2 == 0) {
        wrong = use_inherited(x);
    }
    if (wrong == 0 && kind % 3 != 2) {
        ag_plan_destroy(x->plan);
    }
    if (wrong == 0 && kind % 3 != 1) {
        wrong = make_new();
    }
    if (wrong == 0 && kind == 6) { /* a child of the child */
        let_threads_start();
        const pid_t pid = fork();
        if (pid == 0) {
            _exit(make_new());
        }
        int status = 0;
        wrong = pid < 0 || waitpid(pid, &status, 0) != pid || status != 0 ? 4 : 0;
    }
    _exit(wrong);
}

static void wait_for(pid_t pid, int kind, const char *when)
{
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid, "no child %d", (int)pid);
    CHECK(!WIFSIGNALED(status), "%s, child of kind %d: ended by signal %d%s", when, kind, WTERMSIG(status),
          WTERMSIG(status) == SIGALRM ? ": it hung" : "");
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "%s, child of kind %d: error %d", when, kind,
          WEXITSTATUS(status));
}

/* All children at once; then the parent's own plan must still work. */
static void fork_children(struct arrays *x, const char *when)
{
    pid_t pids[CHILDREN];
    fflush(stdout);
    for (int n = 0; n < CHILDREN; n++) {
        pids[n] = fork();
        test_need(pids[n] >= 0, "a child");
        if (pids[n] == 0) {
            child(x, n);
        }
    }
    for (int n = 0; n < CHILDREN; n++) {
        wait_for(pids[n], n, when);
    }
    CHECK(use_inherited(x) == 0, "%s: the parent's own call went wrong", when);
}

/* ---- While other threads are busy --------------------------------------------------------------- */

struct busy {
    const ag_plan *plan;
    struct arrays own;
    atomic_int stop;
    pthread_t thread;
};

static void *keep_busy(void *arg)
{
    struct busy *b = arg;
    while (!atomic_load(&b->stop)) {
        for (int map = 0; map < MAPS; map++) {
            CHECK_OK(call_map(map, b->plan, &b->own.args, NULL, b->own.workspace, b->own.workspace_bytes));
        }
    }
    return NULL;
}

static void fork_while_threads_call(struct arrays *x)
{
    static struct busy busy[2];
    const ag_options options = four_threads();
    for (int n = 0; n < 2; n++) {
        busy[n].plan = x->plan;
        make_arrays(&busy[n].own, problem, &options, 9);
        test_need(pthread_create(&busy[n].thread, NULL, keep_busy, &busy[n]) == 0, "a thread");
    }
    let_threads_start();
    for (int n = 0; n < test_count(20); n++) {
        fork_children(x, "while threads call");
    }
    for (int n = 0; n < 2; n++) {
        atomic_store(&busy[n].stop, 1);
        pthread_join(busy[n].thread, NULL);
        agc_arrays_destroy(&busy[n].own);
    }
}

int main(void)
{
    struct arrays x;
    const ag_options options = four_threads();
    alarm(4 * SECONDS);
    fflush(stdout);
    const pid_t early = fork(); /* before any plan */
    if (early == 0) {
        alarm(SECONDS);
        _exit(make_new());
    }
    wait_for(early, 0, "before any plan");
    make_arrays(&x, problem, &options, 7);
    CHECK_OK(agc_arrays_run_all(&x));
    let_threads_start();
    fork_children(&x, "after calls");
    fork_while_threads_call(&x);
    agc_arrays_destroy(&x);
    fflush(stdout);
    const pid_t late = fork(); /* the last plan is gone */
    if (late == 0) {
        alarm(SECONDS);
        _exit(make_new());
    }
    wait_for(late, 0, "after the last plan");
    return test_summary();
}
