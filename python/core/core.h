/* What the files of the extension module attngrad._core share: a thin skin over attngrad.h on Python's
 * stable ABI. Arrays come as addresses and strides; which array they belong to, and that it lives long
 * enough, is the affair of the Python files above. */
#ifndef ATTNGRAD_PYTHON_CORE_H
#define ATTNGRAD_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <attngrad.h>
#include <stddef.h>

/* Sets the exception that belongs to a failed status, with the library's message; returns NULL. */
PyObject *core_fail(ag_status status);

/* ---- Arguments ---- */

/* One tensor of a struct of arguments, by its name there. */
typedef struct {
    const char *name;
    size_t offset;
} core_slot;

/* Fills the tensors of a struct from {name: (address, strides)}; a value of None is absent. The slots
 * are in the order of strcmp. -1 and an exception on failure. */
int core_read_tensors(PyObject *dict, const core_slot *slots, size_t n_slots, void *base);

/* Likewise pointers to float64 from {name: address}. */
int core_read_pointers(PyObject *dict, const core_slot *slots, size_t n_slots, void *base);

/* The arguments of a map, with the buffers that its lists of int64 were given in. */
typedef struct {
    ag_args args;
    Py_buffer views[4];
    int n_views;
} core_call;

/* Reads the tensors and the keywords of Plan.run; core_call_end releases what it holds, in each case. */
int core_call_read(core_call *call, const ag_problem *p, PyObject *tensors, PyObject *keywords);
void core_call_end(core_call *call);

/* Copies numbers that the text of a problem cannot say into new memory of the caller (PyMem_Free): from a
 * sequence, or from a buffer of int32, of float64 or of their bytes. NULL and an exception on failure. */
int32_t *core_read_int32s(PyObject *source, const char *name, int64_t count);
double *core_read_doubles(PyObject *source, const char *name, int64_t count);

/* ---- Workspace ---- */

/* Memory for one call on this thread, which it keeps for the next one; NULL: none left. */
typedef struct {
    void *memory;
    int kept;
} core_scratch;

core_scratch core_scratch_take(size_t bytes);
void core_scratch_end(core_scratch scratch);

/* ---- Plan ---- */

extern PyType_Spec core_plan_spec;

/* plan(problem, *, ...): the module's function, with the type that it makes an object of. */
PyObject *core_plan_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* ---- Check ---- */

/* check(problem, *, seed=0, backend=0, threads=0). */
PyObject *core_check(PyObject *module, PyObject *args, PyObject *keywords);

#endif
