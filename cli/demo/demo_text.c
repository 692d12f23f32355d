/* The worked example for people: 80 columns, one line about each variable, then its values. */
#include "demo_print.h"
#include "demo_steps.h"
#include "style.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NOTE_COLUMN = 41 };

static int print_shape(const struct step *step)
{
    int64_t shape[3];
    int axes = step_shape(step, shape), width = 0;
    for (int n = 0; n < axes; n++) {
        width += printf("%s%" PRId64, n ? ", " : " [", shape[n]);
    }
    return width + (axes ? printf("]") : 0);
}

static void print_headline(const struct step *step, const struct style *style)
{
    printf("\n%s", style->strong);
    int width = printf("%s", step->name);
    printf("%s", style->reset);
    width += print_shape(step);
    if (step->formula) {
        width += printf(" = %s", step->formula);
    }
    int gap = width < NOTE_COLUMN ? NOTE_COLUMN - width : 1;
    printf("%*s%s%s%s\n", gap, "", style->faint, step->note, style->reset);
}

static void print_row(const double *values, int count, bool by_head)
{
    for (int n = 0; n < count; n++) {
        printf("%s%9.5f", by_head && n > 0 && n % DIM == 0 ? " | " : " ", values[n]);
    }
}

static void print_matrix(const struct step *step, const double *values)
{
    const struct layout *l = step->layout;
    int rows = l->columns ? l->rows : 1;
    int columns = l->columns ? l->columns : l->rows ? l->rows : 1;
    for (int r = 0; r < rows; r++) {
        printf("   ");
        print_row(values + r * l->row_stride, columns, l->by_head);
        printf("\n");
    }
}

/* Prints the heads of one variable side by side. */
static void print_heads(const struct step *step, const double *values, const struct style *style)
{
    const struct layout *l = step->layout;
    printf("%s", style->faint);
    for (int h = 0; h < l->heads; h++) {
        /* 10 characters per value; - 8 puts the next label above its values */
        printf("      head %d:%*s", h, h + 1 < l->heads ? 10 * l->columns - 8 : 0, "");
    }
    printf("%s\n", style->reset);
    for (int r = 0; r < l->rows; r++) {
        for (int h = 0; h < l->heads; h++) {
            printf("%s", h ? "     " : "   ");
            print_row(values + h * l->head_stride + r * l->row_stride, l->columns, false);
        }
        printf("\n");
    }
}

static void print_steps(const struct step *steps, int count, const struct example *e,
                        const struct style *style)
{
    for (int n = 0; n < count; n++) {
        const double *values = step_values(&steps[n], e);
        if (steps[n].section) {
            printf("\n%s-- %s --%s\n", style->strong, steps[n].section, style->reset);
        }
        print_headline(&steps[n], style);
        if (steps[n].layout->heads) {
            print_heads(&steps[n], values, style);
        } else {
            print_matrix(&steps[n], values);
        }
    }
}

static void print_verdict(bool passed, const struct style *style)
{
    printf("%s%s%s\n", passed ? style->good : style->bad, passed ? "ok" : "FAIL", style->reset);
}

static void print_checks(const struct example *e, const struct style *style)
{
    printf("\n%s-- Checks --%s\n", style->strong, style->reset);
    printf("t, u: two directions for all inputs at once; H: the Hessian of f\n\n");
    printf("%-38s %9s %9s\n", "check", "residual", "limit");
    for (int n = 0; n < e->checks.count; n++) {
        const ag_check_result *check = &e->checks.results[n];
        printf("%-38s %9.1e %9.1e  ", check->name, check->residual, check->limit);
        print_verdict(ag_check_passed(check), style);
    }
}

void print_example_text(const struct example *e)
{
    struct style style = style_of(stdout);
    printf("%sOne self-attention layer, forward and backward, every number of it%s\n\n", style.strong,
           style.reset);
    printf("%d tokens, d_model = %d, %d heads with d_k = d_v = %d, float64.\n", TOKENS, MODEL, HEADS, DIM);
    printf("1 / sqrt(d_k) = %.5f. A bar parts the columns of head 0 and head 1.\n", 1 / sqrt(DIM));
    print_steps(demo_steps, demo_steps_count, e, &style);
    print_checks(e, &style);
    print_steps(demo_update, demo_update_count, e, &style);
    printf("\nloss before the step %.5f, after it %.5f: ", e->f, e->new_f);
    print_verdict(e->new_f < e->f, &style);
}
