/* check(): the library's check engine on a problem in its text form (attngrad_check.h). */
#include "core.h"

#include <attngrad_check.h>

static PyObject *worst_of(const ag_check_result *r)
{
    if (r->tensor == NULL) {
        return Py_NewRef(Py_None);
    }
    return Py_BuildValue("(LLLL)", (long long)r->worst[0], (long long)r->worst[1], (long long)r->worst[2],
                         (long long)r->worst[3]);
}

/* Returns [(name, residual, limit, why it does not apply, tensor, (b, h, i, c))], with None for what is absent. */
static PyObject *results_of(const ag_check_report *report)
{
    PyObject *list = PyList_New(0);
    for (int n = 0; list != NULL && n < report->count; n++) {
        const ag_check_result *r = &report->results[n];
        PyObject *item = Py_BuildValue("(sddzzN)", r->name, r->residual, r->limit, r->not_applicable,
                                       r->tensor, worst_of(r));
        if (item == NULL || PyList_Append(list, item) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

PyObject *core_check(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"problem", "seed", "backend", "threads", NULL};
    ag_check_case c = {.problem = AG_PROBLEM_INIT};
    ag_options plan_options = AG_OPTIONS_INIT;
    ag_check_report report = {.count = 0};
    const char *text;
    unsigned long long seed = 0;
    int backend = 0, threads = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$Kii:check", names, &text, &seed, &backend,
                                     &threads)) {
        return NULL;
    }
    c.seed = seed;
    plan_options.backend = backend;
    plan_options.threads = threads;
    const ag_check_options options = {.plan = &plan_options};
    ag_status status = ag_problem_parse(text, &c.problem);
    if (status != AG_OK) {
        return core_fail(status);
    }
    PyThreadState *thread_state = PyEval_SaveThread();
    status = ag_check_problem(&c, &options, &report);
    PyEval_RestoreThread(thread_state);
    return status == AG_OK ? results_of(&report)
                           : core_fail_with(status, ag_check_last_message(), ag_check_last_field());
}
