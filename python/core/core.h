/* Shared by the files of the extension module attngrad._core: a thin wrapper of attngrad.h, on Python's
 * stable ABI. Arrays are passed as addresses and strides; the Python files that call it keep the arrays
 * alive. */
#ifndef ATTNGRAD_PYTHON_CORE_H
#define ATTNGRAD_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <attngrad.h>
#include <stddef.h>

/* Sets the exception that belongs to a failed status, with the library's message and, as its attribute
 * `field`, ag_last_field(); returns NULL. */
PyObject *core_fail(ag_status status);
PyObject *core_fail_with(ag_status status, const char *message, const char *field);

/* ---- Calls without the interpreter's lock ---- */

typedef struct {
    ag_exec exec;
    PyThreadState *thread_state;
    int64_t next_check; /* when to look for signals next; 0: not begun */
} core_unlocked;

/* Releases the lock; returns what to call a map with, so that a signal whose handler raises cancels it. `call` must
 * stay in place until core_lock, which takes the lock again and returns None, or NULL with the exception that belongs
 * to the status. */
const ag_exec *core_unlock(core_unlocked *call);
PyObject *core_lock(core_unlocked *call, ag_status status);

/* ---- PyTorch's threads ---- */

typedef void core_run(void *ctx, int64_t n_tasks, ag_task task, void *arg);

/* Lets calls run on the threads of the OpenMP library in this process; returns whether there is one. */
int core_openmp_begin(void);

/* The loop for one call, NULL: the library's own pool. Each that is not NULL must be followed by core_openmp_leave. */
core_run *core_openmp_take(void);
void core_openmp_leave(void);

/* ---- Arguments ---- */

/* A member of a struct of arguments. */
typedef struct {
    const char *name;
    size_t offset;
} core_slot;

/* Fills in the tensors of a struct from {name: (address, strides)} or {name: PyTorch tensor}; None means absent. The
 * slots must be sorted by name. Returns -1, with an exception, on failure. */
int core_read_tensors(PyObject *dict, const core_slot *slots, size_t n_slots, void *base);

/* The same for pointers to float64, from {name: address}. */
int core_read_pointers(PyObject *dict, const core_slot *slots, size_t n_slots, void *base);

enum { CORE_LISTS = 6 }; /* the lists of int64 among the arguments of a map */

/* The arguments of a map, with the buffers that its lists were given in. */
typedef struct {
    ag_args args;
    void *workspace, *stream; /* of a plan on a device */
    Py_buffer views[CORE_LISTS];
    int n_views;
} core_call;

/* Reads the tensors and the keywords of Plan.run. Call core_call_end in any case: it releases
 * the buffers. */
int core_call_read(core_call *call, const ag_problem *p, PyObject *tensors, PyObject *keywords);
void core_call_end(core_call *call);

/* Reads an address: an int, or an array's __array_struct__; name: of the argument, for the exception. */
int core_read_address(PyObject *object, const char *name, void **address);

/* Copies arrays of a problem that its text cannot hold, from a sequence, or from a buffer of int32, of
 * float64 or of their bytes. Returns new memory (PyMem_Free), or NULL with an exception. */
int32_t *core_read_int32s(PyObject *source, const char *name, int64_t count);
double *core_read_doubles(PyObject *source, const char *name, int64_t count);

/* ---- Workspace ---- */

/* Workspace for one call on this thread. memory: NULL on failure; kept: core_scratch_end does not free it, so that the
 * next call can use it. */
typedef struct {
    void *memory;
    int kept;
} core_scratch;

core_scratch core_scratch_take(size_t bytes);
void core_scratch_end(core_scratch scratch);

/* ---- Plan ---- */

extern PyType_Spec core_plan_spec;

/* The module's function plan(problem, *, ...); type: the type of the object that it makes. */
PyObject *core_plan_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* Plan.view: the page of a call. */
PyObject *core_view(const ag_plan *plan, PyObject *args, PyObject *keywords);

/* ---- Check ---- */

/* check(problem, *, seed=0, backend=0, threads=0). */
PyObject *core_check(PyObject *module, PyObject *args, PyObject *keywords);

#endif
