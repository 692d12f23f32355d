/* Plan.view(): the page of a call (src/view/view.h), as bytes. */
#include "core.h"

#include "view/view.h"

#include <stdlib.h>

/* The arguments of Plan.view besides the call. */
typedef struct {
    unsigned maps;
    PyObject *tensors, *sequences, *heads, *facts;
    long long rows[2], keys[2];
    const char *title;
} view_request;

static int read_request(view_request *r, PyObject *args)
{
    return PyArg_ParseTuple(args, "O!IOO(LL)(LL)sO:view", &PyDict_Type, &r->tensors, &r->maps, &r->sequences,
                            &r->heads, &r->rows[0], &r->rows[1], &r->keys[0], &r->keys[1], &r->title,
                            &r->facts)
               ? 0
               : -1;
}

/* A list of ints; *list is PyMem_Free's. */
static int read_ints(PyObject *source, int64_t **list, int64_t *count)
{
    const Py_ssize_t size = PySequence_Size(source);
    *list = size >= 0 ? PyMem_Malloc((size_t)size * sizeof **list + 1) : NULL;
    if (*list == NULL) {
        return -1;
    }
    for (Py_ssize_t n = 0; n < size && !PyErr_Occurred(); n++) {
        PyObject *item = PySequence_GetItem(source, n);
        (*list)[n] = item != NULL ? PyLong_AsLongLong(item) : -1;
        Py_XDECREF(item);
    }
    *count = size;
    return PyErr_Occurred() ? -1 : 0;
}

static int add_facts(agv_page *page, PyObject *facts)
{
    const Py_ssize_t size = PySequence_Size(facts);
    for (Py_ssize_t n = 0; n < size; n++) {
        PyObject *item = PySequence_GetItem(facts, n);
        const char *text = item != NULL ? PyUnicode_AsUTF8AndSize(item, NULL) : NULL;
        if (text != NULL) {
            agv_add_line(&page->facts, "%s", text);
        }
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int is_interrupted(void *ctx, double share)
{
    const ag_exec *exec = ctx;
    (void)share;
    return exec->poll(exec->ctx);
}

/* Runs without the interpreter's lock. A signal whose handler raises stops it. */
static PyObject *make_page(const ag_plan *plan, const ag_args *args, const agv_request *what, agv_page *page)
{
    agv_request request = *what;
    char message[AGV_LINE_SIZE];
    char *bytes = NULL;
    size_t size = 0;
    core_unlocked call;
    ag_exec exec = *core_unlock(&call);
    request.progress = is_interrupted;
    request.ctx = &exec;
    ag_status status = agv_page_of_call(page, plan, args, &request, message);
    if (status == AG_OK) {
        status = agv_page_write(page, &bytes, &size);
    }
    PyObject *none = core_lock(&call, status == AG_CANCELLED ? status : AG_OK);
    if (none == NULL) {
        return NULL;
    }
    Py_DECREF(none);
    if (status != AG_OK) {
        return core_fail_with(status, message, "");
    }
    PyObject *result = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    free(bytes);
    return result;
}

static PyObject *view_call(const ag_plan *plan, const view_request *r, PyObject *keywords)
{
    agv_request request = {
        .maps = r->maps, .rows = {r->rows[0], r->rows[1]}, .keys = {r->keys[0], r->keys[1]}};
    int64_t *sequences = NULL, *heads = NULL;
    agv_page *page = PyMem_Calloc(1, sizeof *page);
    PyObject *result = NULL;
    core_call call;
    if (core_call_read(&call, ag_plan_problem(plan), r->tensors, keywords) == 0 && page != NULL &&
        read_ints(r->sequences, &sequences, &request.n_batches) == 0 &&
        read_ints(r->heads, &heads, &request.n_heads) == 0 && add_facts(page, r->facts) == 0) {
        request.batches = sequences;
        request.heads = heads;
        agv_copy_text(page->title, r->title);
        result = make_page(plan, &call.args, &request, page);
    }
    if (page != NULL) {
        agv_page_free(page);
    }
    PyMem_Free(page);
    PyMem_Free(sequences);
    PyMem_Free(heads);
    core_call_end(&call);
    return result == NULL && !PyErr_Occurred() ? PyErr_NoMemory() : result;
}

PyObject *core_view(const ag_plan *plan, PyObject *args, PyObject *keywords)
{
    view_request request;
    return read_request(&request, args) == 0 ? view_call(plan, &request, keywords) : NULL;
}
