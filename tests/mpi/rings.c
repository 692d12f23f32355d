/* The sharded maps with threads as ranks, against the error rule: random problems over all features and dtypes, on 1,
 * 2, 3, 4 and 7 ranks, each way and layout. */
#include "check/error_rule.h"
#include "check/random_case.h"
#include "mpi/plan.h"
#include "shards.h"
#include "test.h"
#include "thread_ranks.h"

#include <attngrad_check.h>

enum { PROBLEMS = 60, SEED = 32 }; /* make test-all runs 300 */

/* One problem on some ranks. */
struct trial {
    const struct arrays *x;
    struct arrays *y; /* collects the results; ranks write to rows of their own */
    ag_mpi_options options;
    ag_options plan;
    char label[256];
};

static void run_rank(const agi_mpi_transport *t, void *arg)
{
    struct trial *trial = arg;
    ag_mpi_plan *plan = NULL;
    struct shard s;
    const ag_status status = agi_mpi_plan_create(&plan, &trial->x->given, t, &trial->options);
    if (status != AG_OK) {
        CHECK(status == AG_UNSUPPORTED && trial->options.way == AG_MPI_RING_QUERIES, "%s: rank %d: %s",
              trial->label, (int)t->rank, ag_mpi_last_message());
        return;
    }
    CHECK_OK(shard_create(&s, plan, t->rank, trial->x));
    CHECK(shard_run_all(&s) == AG_OK, "%s: rank %d: %s", trial->label, (int)t->rank, ag_mpi_last_message());
    shard_collect(&s, trial->y, t->rank == 0);
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
}

static void check_rule(const struct trial *trial, struct error_truth *truth)
{
    struct error_entry entries[T_COUNT];
    int count = 0, failed = 0;
    agc_error_entries(truth, trial->y, entries, &count);
    for (int n = 0; n < count; n++) {
        failed += !agc_error_entry_passed(&entries[n]);
    }
    if (failed > 0 && CHECK_OK(agc_error_truth_complete(truth, trial->x))) {
        agc_error_entries(truth, trial->y, entries, &count);
    }
    for (int n = 0; n < count; n++) {
        CHECK(agc_error_entry_passed(&entries[n]), "%s: %s: error %.3g, limit %.3g", trial->label,
              agc_tensor_info[entries[n].t].name, entries[n].error, entries[n].limit);
    }
}

/* Queries do not travel if a bias or mask has rows. */
static bool is_refused(const struct trial *trial)
{
    const ag_problem *p = trial->x->p;
    const bool rows =
        ((p->flags & AG_BIAS) && p->bias_size[2] != 1) || ((p->flags & AG_MASK) && p->mask_size[2] != 1);
    return trial->options.way == AG_MPI_RING_QUERIES && rows && !(p->flags & AG_PACKED);
}

static void run_trial(const ag_check_case *c, const struct arrays *x, struct error_truth *truth,
                      int32_t ranks, ag_mpi_way way, ag_mpi_layout layout)
{
    struct arrays y;
    char command[200];
    struct trial trial = {.x = x, .y = &y, .options = AG_MPI_OPTIONS_INIT, .plan = AG_OPTIONS_INIT};
    trial.plan.threads = 1;
    trial.options.plan = &trial.plan;
    trial.options.way = way;
    trial.options.layout = layout;
    trial.options.progress = c->seed % 2 ? AG_MPI_PROGRESS_THREAD : AG_MPI_PROGRESS_AUTO;
    trial.options.timeout_s = 60;
    ag_check_command(c, command, sizeof command);
    snprintf(trial.label, sizeof trial.label, "%d ranks, way %d, layout %d: %s", (int)ranks, (int)way,
             (int)layout, command);
    if (!CHECK_OK(agc_arrays_clone_as(&y, x, x->given.dtype, &trial.plan))) {
        return;
    }
    for (enum tensor t = 0; t < T_COUNT; t++) { /* what no rank writes stays NaN */
        if (y.data[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT) {
            memset(y.data[t], 0xff, (size_t)y.count[t] * agc_element_size(&y, t));
        }
    }
    on_thread_ranks(ranks, run_rank, &trial);
    if (!is_refused(&trial)) {
        check_rule(&trial, truth);
    }
    agc_arrays_destroy(&y);
}

static void run_case(int n)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 7};
    ag_check_case c;
    struct arrays x;
    struct error_truth truth;
    ag_check_random(&c, SEED, (uint64_t)n, n % 20 == 10 ? AG_CHECK_LARGE : AG_CHECK_SMALL);
    if (!CHECK_OK(agc_arrays_of_case(&x, &c, NULL))) {
        return;
    }
    if (CHECK_OK(agc_error_truth_begin(&truth, &x, 1))) {
        const ag_mpi_layout layout = n / 5 % 2 ? AG_MPI_CONTIGUOUS : AG_MPI_ZIGZAG;
        for (ag_mpi_way way = AG_MPI_RING_KEYS; way <= AG_MPI_ALL_TO_ALL; way++) {
            run_trial(&c, &x, &truth, ranks[(n + way) % 5], way, layout);
        }
        run_trial(&c, &x, &truth, ranks[n % 5], AG_MPI_AUTO, layout);
        agc_error_truth_destroy(&truth);
    }
    agc_arrays_destroy(&x);
}

int main(int argc, char **argv)
{
    const int first = argc > 1 ? atoi(argv[1]) : 0, count = argc > 2 ? atoi(argv[2]) : test_count(PROBLEMS);
    for (int n = first; n < first + count; n++) {
        run_case(n);
    }
    printf("%d problems, each on 4 ways\n", count);
    return test_summary();
}
