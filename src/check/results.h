/* What checks report: a list of named residuals with their limits, and of checks that do not apply,
 * with the reason. */
#ifndef ATTNGRAD_CHECK_RESULTS_H
#define ATTNGRAD_CHECK_RESULTS_H

enum { RESULTS_MAX = 96 };

struct result {
    char name[40];
    double residual, limit;
    const char *not_applicable; /* the reason, or NULL */
};

struct results {
    struct result items[RESULTS_MAX];
    int count;
};

void results_add(struct results *list, double residual, double limit, const char *format, ...);
void results_not_applicable(struct results *list, const char *reason, const char *name);

int result_passed(const struct result *r); /* also where it does not apply; NaN fails */

/* How many passed, failed, do not apply. */
struct counts {
    int passed, failed, not_applicable;
};
struct counts results_count(const struct results *list);
int results_failed(const struct results *list); /* how many */

#endif
