/* The error rule: how far a result may be from the truth. Truth is the reference run as a float64 problem
 * on the same rounded inputs; the baseline is the reference in the problem's dtype with every
 * intermediate matrix rounded to it, as in an implementation without fusion. In Frobenius norms of one output,
 *     |x - truth| <= max(2 |baseline - truth|, 8 eps A, floor |truth|)
 * with A the norm of the same formula on the absolute values of all its terms. */
#ifndef ATTNGRAD_CHECK_ERROR_RULE_H
#define ATTNGRAD_CHECK_ERROR_RULE_H

#include "check/arrays.h"
#include "check/error_sizes.h"
#include "check/results.h"

struct error_entry {
    enum tensor t;
    double error;    /* |x - truth| */
    int64_t worst;   /* the element of x's data with the largest error; -1: all are exact */
    double baseline; /* |baseline - truth| */
    double size;     /* A */
    double truth;    /* |truth| */
    double limit;
};

/* What the results of one call are held against. It depends on the inputs and the dtype alone, so it serves every
 * backend and instruction set. */
struct error_truth {
    struct arrays truth, baseline; /* all maps run */
    struct error_sizes sizes;
    int32_t threads;
    int complete; /* 0: truth alone, as baseline and sizes are not computed yet */
};

/* threads: those of the reference plans. On failure there is nothing to destroy. */
ag_status agc_error_truth_create(struct error_truth *truth, const struct arrays *x, int32_t threads);
void agc_error_truth_destroy(struct error_truth *truth);

/* The same in two steps. After the first, entries have the limit floor |truth|, their baseline and size are 0:
 * results that pass then pass the whole rule too, and most do, which saves most of the time. The second adds the
 * baseline and A; x: the inputs of the first. On failure of the second the first still stands. */
ag_status agc_error_truth_begin(struct error_truth *truth, const struct arrays *x, int32_t threads);
ag_status agc_error_truth_complete(struct error_truth *truth, const struct arrays *x);

/* x: all maps run, on the inputs that truth was made of. Fills entries[T_COUNT] from the start, one for each
 * output that the problem has; count: their number. AG_OK or AG_NO_MEMORY. */
ag_status agc_error_entries(const struct error_truth *truth, const struct arrays *x,
                            struct error_entry *entries, int *count);

/* x: any dtype, any backend, all maps run. Truth and entries in one call. */
ag_status agc_error_rule(const struct arrays *x, int32_t threads, struct error_entry *entries, int *count);

/* The rule's floor for a dtype: 4e-3 for bfloat16. */
double agc_error_floor(ag_dtype dtype);

int agc_error_entry_passed(const struct error_entry *e);

/* The same as results: error against limit. */
ag_status agc_error_results(const struct error_truth *truth, const struct arrays *x,
                            ag_check_report *results);
ag_status agc_error_rule_results(const struct arrays *x, int32_t threads, ag_check_report *results);

#endif
