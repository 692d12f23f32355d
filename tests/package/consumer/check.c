/* A program outside the tree that checks a problem with the installed check library. */
#include <attngrad_check.h>
#include <stdio.h>

static ag_check_report report;

int main(void)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 1};
    if (ag_problem_parse("h4 kv2 q9 d8 f32 causal softcap=5", &c.problem) != AG_OK ||
        ag_check_problem(&c, NULL, &report) != AG_OK) {
        fprintf(stderr, "%s\n", ag_last_message());
        return 1;
    }
    printf("%d checks, %d failed\n", (int)report.count, (int)ag_check_failures(&report));
    return report.count == 0 || ag_check_failures(&report) > 0;
}
