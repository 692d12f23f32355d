/* The parallel loop on the threads of the OpenMP library that PyTorch has loaded. After each loop of PyTorch's
 * they spin for some milliseconds, so that threads of ours would compete with them for the processors. GNU
 * OpenMP's function that runs a parallel region exists in Intel's and LLVM's libraries too. One call at a time
 * uses them: the others take the library's own pool, which gives several callers fewer threads each; so does the
 * child of a fork, which has none of OpenMP's threads. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "core.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

static struct {
    void (*parallel)(void (*region)(void *), void *data, unsigned threads,
                     unsigned flags); /* NULL: not used */
    int (*max_threads)(void);
    atomic_flag taken;
} openmp = {.taken = ATOMIC_FLAG_INIT};

typedef struct {
    pthread_t caller;
    atomic_llong next;
    int64_t n_tasks;
    ag_task task;
    void *arg;
} loop;

/* The first task is the caller's: only in a task does it poll, for pending signals. */
static void take_tasks(void *data)
{
    loop *l = data;
    if (pthread_equal(pthread_self(), l->caller)) {
        l->task(l->arg, 0);
    }
    for (int64_t i = atomic_fetch_add(&l->next, 1); i < l->n_tasks; i = atomic_fetch_add(&l->next, 1)) {
        l->task(l->arg, i);
    }
}

/* All of OpenMP's threads take part, even if there are fewer tasks: it ends those that a smaller region leaves out, and
 * would have to start them again for PyTorch's next loop. */
static void run(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    loop l = {.caller = pthread_self(), .next = 1, .n_tasks = n_tasks, .task = task, .arg = arg};
    (void)ctx;
    if (n_tasks == 1) {
        take_tasks(&l);
        return;
    }
    openmp.parallel(take_tasks, &l, n_tasks > openmp.max_threads() ? (unsigned)n_tasks : 0, 0);
}

core_run *core_openmp_take(void)
{
    return openmp.parallel != NULL && !atomic_flag_test_and_set(&openmp.taken) ? run : NULL;
}

void core_openmp_leave(void)
{
    atomic_flag_clear(&openmp.taken);
}

static void forget(void)
{
    openmp.parallel = NULL;
    atomic_flag_clear(&openmp.taken);
}

/* Sets both functions, from the same library. */
static int find_functions(void *library)
{
    *(void **)&openmp.max_threads = dlsym(library, "omp_get_max_threads");
    *(void **)&openmp.parallel = dlsym(library, "GOMP_parallel");
    if (openmp.max_threads == NULL) {
        openmp.parallel = NULL;
    }
    return openmp.parallel != NULL;
}

/* The symbols of libraries that PyTorch has loaded for itself alone, as its wheels for ARM do, are found only in the
 * library, which stays open. A library that is not loaded yet is not loaded here. */
static int find_openmp(void)
{
    static const char *const names[] = {"libgomp.so.1", "libomp.so", "libomp.so.5", "libiomp5.so"};
    int found = find_functions(RTLD_DEFAULT);
    for (size_t n = 0; n < sizeof names / sizeof names[0] && !found; n++) {
        void *library = dlopen(names[n], RTLD_LAZY | RTLD_NOLOAD);
        found = library != NULL && find_functions(library);
    }
    return found;
}

int core_openmp_begin(void)
{
    static int watches_forks;
    if (openmp.parallel == NULL && !watches_forks) {
        watches_forks = pthread_atfork(NULL, NULL, forget) == 0;
    }
    if (openmp.parallel == NULL && watches_forks) {
        find_openmp();
    }
    return openmp.parallel != NULL;
}
