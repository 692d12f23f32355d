/* A machine on which CUDA cannot be used: cuda_absent REASON, with LD_LIBRARY_PATH at a folder whose libcuda.so.1 is no
 * driver, an old one or one without devices. Plans for CUDA are refused with the reason, from every thread, and nothing
 * else notices. */
#define _POSIX_C_SOURCE 200809L
#include "test.h"

#include <pthread.h>

enum { THREADS = 8 };

static const char *reason;

static void refuse(const ag_options *options)
{
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_OK(ag_problem_parse("h2 q8 d16 f32", &p));
    CHECK_STATUS(ag_plan_create(&plan, &p, options), AG_UNSUPPORTED);
    CHECK(plan == NULL, "a refused plan");
    CHECK(strcmp(ag_last_field(), "options.backend") == 0, "the field is '%s'", ag_last_field());
    CHECK(strstr(ag_last_message(), reason) != NULL, "'%s' does not say '%s'", ag_last_message(), reason);
}

/* Who names a table of kernels gets the same reason. */
static void with_a_table(void)
{
    ag_options options = AG_OPTIONS_INIT;
    options.isa = AG_ISA_SM80;
    refuse(&options);
    setenv("ATTNGRAD_ISA", "sm80", 1);
    refuse(NULL);
    unsetenv("ATTNGRAD_ISA");
}

static void *refuse_on_thread(void *arg)
{
    ag_options options = AG_OPTIONS_INIT;
    (void)arg;
    options.backend = AG_BACKEND_CUDA;
    refuse(&options);
    return NULL;
}

static void on_threads(void)
{
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++) {
        test_need(pthread_create(&threads[n], NULL, refuse_on_thread, NULL) == 0, "no thread");
    }
    for (int n = 0; n < THREADS; n++) {
        pthread_join(threads[n], NULL);
    }
}

static void others_notice_nothing(void)
{
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    ag_plan_info chosen = {.struct_size = sizeof chosen};
    CHECK_OK(ag_problem_parse("h2 q8 d16 f32", &p));
    CHECK_OK(ag_plan_create(&plan, &p, NULL));
    CHECK_OK(ag_plan_info_get(plan, &chosen));
    CHECK_INT(chosen.backend, AG_BACKEND_CPU);
    ag_plan_destroy(plan);
    ag_info info = {.struct_size = sizeof info};
    CHECK_STATUS(ag_plan_create(&plan, NULL, NULL), AG_INVALID_PROBLEM);
    CHECK_OK(ag_info_get(&info));
    CHECK(strstr(ag_last_message(), reason) == NULL, "a call that did not fail says '%s'", ag_last_message());
    CHECK(info.devices[0] == '\0', "devices is '%s'", info.devices);
    CHECK(strstr(info.backends, "cuda") != NULL, "backends is '%s'", info.backends);
}

/* No table is available; sm80 is built in, others if their images are. */
static void no_table_is_available(void)
{
    CHECK(ag_backend_isa_count(AG_BACKEND_CUDA) > 0, "no tables of kernels");
    for (int32_t n = 0; n < ag_backend_isa_count(AG_BACKEND_CUDA); n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        CHECK_OK(ag_backend_isa(AG_BACKEND_CUDA, n, &isa));
        CHECK_INT(isa.available, 0);
        CHECK(isa.built_in || isa.isa != AG_ISA_SM80, "sm80 is not built in");
    }
}

int main(int argc, char **argv)
{
    test_need(argc == 2, "usage: cuda_absent REASON");
    reason = argv[1];
    on_threads();
    setenv("ATTNGRAD_BACKEND", "cuda", 1);
    refuse(NULL);
    with_a_table();
    unsetenv("ATTNGRAD_BACKEND");
    others_notice_nothing();
    no_table_is_available();
    return test_summary();
}
