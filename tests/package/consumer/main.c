/* A program outside the project's tree: one query against two keys through the installed library. The two
 * scores are 0 and 0, so both keys weigh one half and the result is the mean of the values. */
#include <attngrad.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const double q[1] = {0.0}, k[2] = {1.0, 2.0}, v[2] = {3.0, 5.0};
    double o[1] = {0.0};
    size_t bytes = 0;
    ag_plan *plan = NULL;
    ag_problem problem = AG_PROBLEM_INIT;
    ag_args args = {.struct_size = sizeof(ag_args)};

    if (ag_problem_parse("q1 k2 d1 f64", &problem) != AG_OK ||
        ag_plan_create(&plan, &problem, NULL) != AG_OK ||
        ag_plan_workspace(plan, AG_MAP_FORWARD, &bytes) != AG_OK) {
        printf("%s\n", ag_last_message());
        return 1;
    }
    args.q = ag_bhnd(q, 1, 1, 1);
    args.k = ag_bhnd(k, 1, 2, 1);
    args.v = ag_bhnd(v, 1, 2, 1);
    args.o = ag_bhnd(o, 1, 1, 1);

    void *workspace = malloc(bytes + 1);
    ag_status status = workspace == NULL ? AG_NO_MEMORY : ag_forward(plan, &args, NULL, workspace, bytes);
    free(workspace);
    ag_plan_destroy(plan);
    printf("attngrad %s: o = %g\n", ag_version_string(), o[0]);
    return status == AG_OK && fabs(o[0] - 4.0) < 1e-15 ? 0 : 1;
}
