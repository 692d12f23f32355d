/* The estimates of progress.h. */
#include "check/progress.h"

#include <math.h>
#include <string.h>

/* Measured with 2,000 queries and keys and 64 channels on two cores with AVX-512. In the order of the bits AG_MAP_*. */
enum { MAPS = 5 };
static const double cpu_work[MAPS] = {1, 3, 3, 6, 5}, reference_work[MAPS] = {16, 22, 32, 60, 60};
static const double sizes_work = 115;

static _Thread_local struct {
    const ag_check_options *options; /* NULL: nobody asks */
    const char *part;
    double total, start, work,
        done; /* of all parts; where this part starts; its work; what of that is done */
} now;

static void report(void)
{
    if (now.options != NULL) {
        const double done = now.start + fmin(now.done, now.work);
        now.options->progress(now.options->ctx, now.part, now.total > 0 ? fmin(done / now.total, 1) : 1);
    }
}

void agc_progress_begin(const ag_check_options *options, double total)
{
    memset(&now, 0, sizeof now);
    now.options = options != NULL && options->progress != NULL ? options : NULL;
    now.total = total;
}

void agc_progress_end(void)
{
    now.options = NULL;
}

void agc_progress_part(const char *name, double work)
{
    now.start += now.work;
    now.part = name;
    now.work = work;
    now.done = 0;
    report();
}

void agc_progress_add(double work)
{
    now.done += work;
    report();
}

static double pairs_of(const ag_problem *p)
{
    return (double)p->q_len * (double)p->kv_len;
}

static double sum_of(const double work[MAPS], const ag_problem *p, uint32_t maps)
{
    double sum = 0;
    for (int n = 0; n < MAPS; n++) {
        sum += maps & (1U << n) ? work[n] : 0;
    }
    return sum * pairs_of(p);
}

double agc_work_of_reference(const ag_problem *p, uint32_t maps)
{
    return sum_of(reference_work, p, maps);
}

double agc_work_of_plan(const ag_plan *plan, uint32_t maps)
{
    ag_plan_info info = {.struct_size = sizeof info};
    const ag_problem *p = ag_plan_problem(plan);
    ag_plan_info_get(plan, &info);
    return info.backend == AG_BACKEND_REFERENCE ? agc_work_of_reference(p, maps) : sum_of(cpu_work, p, maps);
}

double agc_work_of_sizes(const ag_problem *p)
{
    return sizes_work * pairs_of(p);
}
