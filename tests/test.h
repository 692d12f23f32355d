/* The macros and functions of every test program: checks that are counted and that print one line with the
 * numbers if they fail, and a closing summary that becomes the exit code. One test is one program, so the
 * counts are static. Checks may be made from several threads. */
#ifndef AG_TEST_H
#define AG_TEST_H

#include <attngrad.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_LINES = 50 }; /* failures printed at most; the others are only counted */

static atomic_int test_passed, test_failed;

#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static inline int
test_check(int holds, const char *file, int line, const char *format, ...)
{
    if (holds) {
        atomic_fetch_add(&test_passed, 1);
        return 1;
    }
    if (atomic_fetch_add(&test_failed, 1) < TEST_LINES) {
        char text[1024];
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        printf("%s:%d: %s\n", file, line, text);
    }
    return 0;
}

static inline int test_status(ag_status got, ag_status wanted, const char *file, int line, const char *call)
{
    return test_check(got == wanted, file, line, "%s: %s instead of %s: %s", call, ag_status_string(got),
                      ag_status_string(wanted), got == AG_OK ? "" : ag_last_message());
}

/* All return 1 if the check holds, else 0. The format says what was compared. */
#define CHECK(holds, ...) test_check((holds) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)
#define CHECK_OK(call) test_status((call), AG_OK, __FILE__, __LINE__, #call)
#define CHECK_STATUS(call, wanted) test_status((call), (wanted), __FILE__, __LINE__, #call)
#define CHECK_INT(got, wanted)                                                                               \
    test_check((int64_t)(got) == (int64_t)(wanted), __FILE__, __LINE__, "%s is %lld instead of %lld", #got,  \
               (long long)(got), (long long)(wanted))

/* Is the backend built into the library? */
static inline int test_has_backend(ag_backend wanted)
{
    for (int32_t n = 0; n < ag_backend_count(); n++) {
        ag_backend_info info = {.struct_size = sizeof info};
        if (ag_backend_info_get(n, &info) == AG_OK && info.backend == wanted) {
            return 1;
        }
    }
    return 0;
}

/* How often a long loop runs: `usual` times, or AG_TEST_COUNT times if the environment sets it and it is smaller. */
static inline int test_count(int usual)
{
    const char *text = getenv("AG_TEST_COUNT");
    int count = text != NULL ? atoi(text) : 0;
    return count > 0 && count < usual ? count : usual;
}

/* Is this an emulated processor or GPU, on which AG_TEST_COUNT asks for little? */
static inline int test_is_slow(void)
{
    return test_count(1000) < 500;
}

/* Does the environment force the reference? It has no tiles and is slow: few rows show as much as many. */
static inline int test_on_reference(void)
{
    const char *backend = getenv("ATTNGRAD_BACKEND");
    return backend != NULL && strcmp(backend, "reference") == 0;
}

/* Does the environment force the best of the vector instruction sets? Then the same test without that runs on it too,
 * but for bfloat16, which may use AMX. */
static inline int test_on_best_vectors(void)
{
    const char *forced = getenv("ATTNGRAD_ISA");
    int best = 0;
    for (int32_t n = 0; n < ag_backend_isa_count(AG_BACKEND_CPU) && forced != NULL; n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        if (ag_backend_isa(AG_BACKEND_CPU, n, &isa) == AG_OK && isa.available && isa.isa != AG_ISA_AMX) {
            best = strcmp(isa.name, forced) == 0;
        }
    }
    return best;
}

/* Ends the program if what the test itself needs, such as memory or threads, is missing. */
static inline void test_need(int holds, const char *what)
{
    if (!holds) {
        printf("cannot test: %s\n", what);
        exit(1);
    }
}

/* Memory of the test itself, to be freed by free(); never NULL. */
static inline void *test_alloc(int64_t count, size_t size)
{
    void *memory = malloc(count > 0 ? (size_t)count * size : 1);
    test_need(memory != NULL, "no memory");
    return memory;
}

/* Prints the closing line; main returns its result. A program that checked nothing has failed. */
static inline int test_summary(void)
{
    int passed = atomic_load(&test_passed), failed = atomic_load(&test_failed);
    printf("%d checks passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}

#endif
