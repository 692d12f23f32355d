/* Converts Python objects to the structs of attngrad.h. If an object has a wrong type or form, the exception
 * names it; wrong values are left to the library's checks. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

/* ---- Tensors ---- */

static int compare_name(const void *name, const void *slot)
{
    return strcmp(name, ((const core_slot *)slot)->name);
}

static const core_slot *find_slot(PyObject *name, const core_slot *slots, size_t n_slots)
{
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "tensors: the key %R is not a name", name);
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL) {
        return NULL;
    }
    const core_slot *slot = bsearch(text, slots, n_slots, sizeof *slots, compare_name);
    if (slot == NULL) {
        PyErr_Format(PyExc_ValueError, "tensors: there is none called %R", name);
    }
    return slot;
}

/* What an array's __array_struct__ points to: version 3 of NumPy's array interface. */
typedef struct {
    int two; /* always 2 */
    int nd;
    char typekind;
    int itemsize, flags;
    Py_ssize_t *shape, *strides;
    void *data;
} array_struct;

/* Reads an address, given as an int or as an __array_struct__, which is many times faster to get from an
 * array than its address, and which keeps the array alive. */
int core_read_address(PyObject *object, const char *name, void **address)
{
    if (PyCapsule_CheckExact(object)) {
        const array_struct *array = PyCapsule_GetPointer(object, NULL);
        if (array == NULL || array->two != 2) {
            PyErr_Format(PyExc_TypeError, "%s: the capsule is no __array_struct__", name);
            return -1;
        }
        *address = array->data;
        return 0;
    }
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: the address is %R, neither int nor __array_struct__", name,
                     object);
        return -1;
    }
    *address = PyLong_AsVoidPtr(object);
    return *address == NULL && PyErr_Occurred() ? -1 : 0;
}

static int read_strides(PyObject *strides, const int *axes, ag_tensor *tensor)
{
    const Py_ssize_t n = PyTuple_Size(strides);
    for (Py_ssize_t i = 0; i < n; i++) {
        const long long stride = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
        if (stride == -1 && PyErr_Occurred()) {
            return -1;
        }
        tensor->strides[axes[i]] = stride;
    }
    return 0;
}

/* By the number of axes, which of [batch, head, position, channel] each of them is in attngrad.torch: a sink [head], a
 * table [head, bucket], row statistics [batch, head, position], and all other tensors. */
static const int torch_axes[5][4] = {{0}, {1}, {1, 3}, {0, 1, 2}, {0, 1, 2, 3}};

/* Reads a PyTorch tensor by its methods data_ptr() and stride(). */
static int read_torch(PyObject *object, const char *name, ag_tensor *tensor)
{
    PyObject *address = PyObject_CallMethod(object, "data_ptr", NULL);
    PyObject *strides = address != NULL ? PyObject_CallMethod(object, "stride", NULL) : NULL;
    int status = -1;
    if (strides != NULL && PyTuple_Check(strides) && PyTuple_Size(strides) >= 1 &&
        PyTuple_Size(strides) <= 4) {
        memset(tensor->strides, 0, sizeof tensor->strides);
        status = read_strides(strides, torch_axes[PyTuple_Size(strides)], tensor);
    } else if (strides != NULL) {
        PyErr_Format(PyExc_TypeError, "%s: the strides are %R, must be those of 1 to 4 axes", name, strides);
    }
    if (status == 0) {
        status = core_read_address(address, name, &tensor->data);
    }
    Py_XDECREF(address);
    Py_XDECREF(strides);
    return status;
}

/* Reads a tensor: (address, (stride, stride, stride, stride)), or one of PyTorch. */
static int read_tensor(PyObject *object, const char *name, ag_tensor *tensor)
{
    PyObject *strides = NULL;
    if (!PyTuple_Check(object) && PyObject_HasAttrString(object, "data_ptr")) {
        return read_torch(object, name, tensor);
    }
    if (PyTuple_Check(object) && PyTuple_Size(object) == 2) {
        strides = PyTuple_GetItem(object, 1);
    }
    if (strides == NULL || !PyTuple_Check(strides) || PyTuple_Size(strides) != 4) {
        PyErr_Format(PyExc_TypeError, "%s is %R, not (address, (stride, stride, stride, stride))", name,
                     object);
        return -1;
    }
    if (read_strides(strides, torch_axes[4], tensor) != 0) {
        return -1;
    }
    return core_read_address(PyTuple_GetItem(object, 0), name, &tensor->data);
}

int core_read_tensors(PyObject *dict, const core_slot *slots, size_t n_slots, void *base)
{
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &name, &value)) {
        const core_slot *slot = find_slot(name, slots, n_slots);
        if (slot == NULL) {
            return -1;
        }
        ag_tensor *tensor = (ag_tensor *)(void *)((char *)base + slot->offset);
        if (value != Py_None && read_tensor(value, slot->name, tensor) != 0) {
            return -1;
        }
    }
    return 0;
}

int core_read_pointers(PyObject *dict, const core_slot *slots, size_t n_slots, void *base)
{
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &name, &value)) {
        const core_slot *slot = find_slot(name, slots, n_slots);
        void *address = NULL;
        if (slot == NULL || core_read_address(value, slot->name, &address) != 0) {
            return -1;
        }
        *(double **)(void *)((char *)base + slot->offset) = address;
    }
    return 0;
}

/* ---- The call ---- */

#define AT(member)                                                                                           \
    {                                                                                                        \
#member, offsetof(ag_args, member)                                                                   \
    }

/* In the order of strcmp. */
static const core_slot tensor_slots[] = {
    AT(bias),  AT(d_lse),  AT(d_o),    AT(dbias),  AT(dk),    AT(dq),     AT(dsink),  AT(dtable),  AT(dv),
    AT(k),     AT(lse),    AT(mask),   AT(mu),     AT(nu),    AT(o),      AT(o_low),  AT(q),       AT(sbias),
    AT(sink),  AT(sk),     AT(smu),    AT(sq),     AT(ssink), AT(stable), AT(sto),    AT(sv),      AT(table),
    AT(tbias), AT(td_lse), AT(td_o),   AT(tdbias), AT(tdk),   AT(tdq),    AT(tdsink), AT(tdtable), AT(tdv),
    AT(tk),    AT(to),     AT(to_low), AT(tq),     AT(tsink), AT(ttable), AT(tv),     AT(v),
};

enum { N_TENSORS = sizeof tensor_slots / sizeof tensor_slots[0] };

/* Is the format of the elements one of `letters` (of Python's struct module), in the machine's byte order? */
static int is_format(const Py_buffer *view, const char *letters)
{
    const char *format = view->format != NULL ? view->format : "B";
    format += *format == '@' || *format == '=' || *format == '<';
    return format[0] != '\0' && format[1] == '\0' && strchr(letters, format[0]) != NULL;
}

/* Reads a list of int64: None, its address, or a buffer of `count` of them, which stays open until the call ends. */
static int read_list(core_call *call, PyObject *object, const char *name, int64_t count, const int64_t **list)
{
    if (object == NULL || object == Py_None) {
        return 0;
    }
    if (PyLong_Check(object)) {
        void *address = NULL;
        const int status = core_read_address(object, name, &address);
        *list = address;
        return status;
    }
    Py_buffer *view = &call->views[call->n_views];
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) != 0) {
        PyErr_Format(PyExc_TypeError, "%s: neither an address nor a contiguous buffer of int64", name);
        return -1;
    }
    call->n_views++;
    if (view->itemsize != 8 || !is_format(view, "lq") || view->ndim != 1) {
        PyErr_Format(PyExc_TypeError, "%s: must be one axis of int64", name);
        return -1;
    }
    if (view->shape[0] != count) {
        PyErr_Format(PyExc_ValueError, "%s: has %zd entries instead of %lld", name, view->shape[0],
                     (long long)count);
        return -1;
    }
    *list = view->buf;
    return 0;
}

/* A converter of PyArg_ParseTupleAndKeywords: returns 1, or 0 with an exception. */
static int read_seed(PyObject *object, void *seed)
{
    const unsigned long long value = PyLong_Check(object) ? PyLong_AsUnsignedLongLong(object) : 0;
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "seed is %R, not an int", object);
        return 0;
    }
    if (PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "seed is %R: must be from 0 to 2^64 - 1", object);
        return 0;
    }
    *(uint64_t *)seed = value;
    return 1;
}

/* The keywords of Plan.run that are lists, with a place in ag_args each. */
enum { Q_LENGTHS, KV_LENGTHS, Q_PACKED, K_PACKED, Q_OFFSETS, K_OFFSETS };

/* Those that are addresses in a device's memory, or a stream, in the order of read_keywords. */
static const core_slot pointer_slots[] = {
    {"q_lengths_device", offsetof(core_call, args.q_lengths_device)},
    {"kv_lengths_device", offsetof(core_call, args.kv_lengths_device)},
    {"q_packed_device", offsetof(core_call, args.q_packed_device)},
    {"k_packed_device", offsetof(core_call, args.k_packed_device)},
    {"q_offsets_device", offsetof(core_call, args.q_offsets_device)},
    {"k_offsets_device", offsetof(core_call, args.k_offsets_device)},
    {"seed_device", offsetof(core_call, args.seed_device)},
    {"workspace", offsetof(core_call, workspace)},
    {"stream", offsetof(core_call, stream)},
};
enum { N_POINTERS = sizeof pointer_slots / sizeof pointer_slots[0] };

static int read_pointers(core_call *call, PyObject *const objects[N_POINTERS])
{
    for (int n = 0; n < N_POINTERS; n++) {
        const core_slot *slot = &pointer_slots[n];
        void *address = NULL;
        if (objects[n] != NULL && objects[n] != Py_None &&
            core_read_address(objects[n], slot->name, &address) != 0) {
            return -1;
        }
        memcpy((char *)call + slot->offset, &address, sizeof address);
    }
    return 0;
}

static int read_keywords(core_call *call, PyObject *keywords, PyObject *lists[CORE_LISTS])
{
    static char *names[] = {"accumulate",       "flags",
                            "q_offset",         "k_offset",
                            "batch_offset",     "seed",
                            "q_lengths",        "kv_lengths",
                            "q_packed",         "k_packed",
                            "q_offsets",        "k_offsets",
                            "q_lengths_device", "kv_lengths_device",
                            "q_packed_device",  "k_packed_device",
                            "q_offsets_device", "k_offsets_device",
                            "seed_device",      "workspace",
                            "stream",           NULL};
    long long q_offset = 0, k_offset = 0, batch_offset = 0;
    unsigned accumulate = 0, flags = 0;
    PyObject *no_args = PyTuple_New(0), *p[N_POINTERS] = {NULL};
    const int parsed =
        no_args != NULL &&
        PyArg_ParseTupleAndKeywords(no_args, keywords, "|$IILLLO&OOOOOOOOOOOOOOO", names, &accumulate, &flags,
                                    &q_offset, &k_offset, &batch_offset, read_seed, &call->args.seed,
                                    &lists[Q_LENGTHS], &lists[KV_LENGTHS], &lists[Q_PACKED], &lists[K_PACKED],
                                    &lists[Q_OFFSETS], &lists[K_OFFSETS], &p[0], &p[1], &p[2], &p[3], &p[4],
                                    &p[5], &p[6], &p[7], &p[8]);
    Py_XDECREF(no_args);
    call->args.accumulate = accumulate;
    call->args.flags = flags;
    call->args.q_offset = q_offset;
    call->args.k_offset = k_offset;
    call->args.batch_offset = batch_offset;
    return parsed ? read_pointers(call, p) : -1;
}

static int read_lists(core_call *call, int64_t batch, PyObject *const lists[CORE_LISTS])
{
    ag_args *a = &call->args;
    return read_list(call, lists[Q_LENGTHS], "q_lengths", batch, &a->q_lengths) != 0 ||
                   read_list(call, lists[KV_LENGTHS], "kv_lengths", batch, &a->kv_lengths) != 0 ||
                   read_list(call, lists[Q_PACKED], "q_packed", batch + 1, &a->q_packed) != 0 ||
                   read_list(call, lists[K_PACKED], "k_packed", batch + 1, &a->k_packed) != 0 ||
                   read_list(call, lists[Q_OFFSETS], "q_offsets", batch, &a->q_offsets) != 0 ||
                   read_list(call, lists[K_OFFSETS], "k_offsets", batch, &a->k_offsets) != 0
               ? -1
               : 0;
}

int core_call_read(core_call *call, const ag_problem *p, PyObject *tensors, PyObject *keywords)
{
    PyObject *lists[CORE_LISTS] = {NULL};
    memset(call, 0, sizeof *call);
    call->args.struct_size = sizeof call->args;
    if (core_read_tensors(tensors, tensor_slots, N_TENSORS, &call->args) != 0) {
        return -1;
    }
    if (keywords == NULL) {
        return 0;
    }
    return read_keywords(call, keywords, lists) != 0 ? -1 : read_lists(call, p->batch, lists);
}

void core_call_end(core_call *call)
{
    for (int n = 0; n < call->n_views; n++) {
        PyBuffer_Release(&call->views[n]);
    }
}

/* ---- Constants of a problem ---- */

static void *out_of_memory(void)
{
    PyErr_NoMemory();
    return NULL;
}

static int check_count(const char *name, Py_ssize_t count, int64_t wanted)
{
    if (count < 0) {
        PyErr_Format(PyExc_TypeError, "%s: must be a sequence of numbers or a buffer", name);
        return -1;
    }
    if (count != wanted) {
        PyErr_Format(PyExc_ValueError, "%s: has %zd entries instead of %lld", name, count, (long long)wanted);
        return -1;
    }
    return 0;
}

/* Copies a buffer whose format is one of `letters`, or that is bytes. Returns 1 if it was copied, 0 if it is
 * not such a buffer, -1 with an exception if it is wrong. */
static int copy_buffer(PyObject *source, const char *name, const char *letters, Py_ssize_t itemsize,
                       int64_t count, void *into)
{
    Py_buffer view;
    if (!PyObject_CheckBuffer(source)) {
        return 0;
    }
    if (PyObject_GetBuffer(source, &view, PyBUF_ND | PyBUF_FORMAT) != 0) {
        PyErr_Clear();
        return 0;
    }
    int status = 0;
    if (is_format(&view, "Bbc") || (view.itemsize == itemsize && is_format(&view, letters))) {
        status = check_count(name, view.len / itemsize, count) == 0 ? 1 : -1;
    }
    if (status == 1) {
        memcpy(into, view.buf, (size_t)(count * itemsize));
    }
    PyBuffer_Release(&view);
    return status;
}

static int copy_int32s(PyObject *source, const char *name, int64_t count, int32_t *into)
{
    if (check_count(name, PySequence_Size(source), count) != 0) {
        return -1;
    }
    for (int64_t n = 0; n < count; n++) {
        PyObject *item = PySequence_GetItem(source, n);
        const long value = item != NULL ? PyLong_AsLong(item) : -1;
        Py_XDECREF(item);
        if (value == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (value < INT32_MIN || value > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "%s: entry %lld is %ld: no int32", name, (long long)n, value);
            return -1;
        }
        into[n] = (int32_t)value;
    }
    return 0;
}

static int copy_doubles(PyObject *source, const char *name, int64_t count, double *into)
{
    if (check_count(name, PySequence_Size(source), count) != 0) {
        return -1;
    }
    for (int64_t n = 0; n < count; n++) {
        PyObject *item = PySequence_GetItem(source, n);
        into[n] = item != NULL ? PyFloat_AsDouble(item) : -1;
        Py_XDECREF(item);
        if (into[n] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

int32_t *core_read_int32s(PyObject *source, const char *name, int64_t count)
{
    int32_t *into = PyMem_Malloc((size_t)count * sizeof *into);
    if (into == NULL) {
        return out_of_memory();
    }
    int status = copy_buffer(source, name, "il", sizeof *into, count, into);
    status = status == 0 ? copy_int32s(source, name, count, into) : status;
    if (status < 0) {
        PyMem_Free(into);
        return NULL;
    }
    return into;
}

double *core_read_doubles(PyObject *source, const char *name, int64_t count)
{
    double *into = PyMem_Malloc((size_t)count * sizeof *into);
    if (into == NULL) {
        return out_of_memory();
    }
    int status = copy_buffer(source, name, "d", sizeof *into, count, into);
    status = status == 0 ? copy_doubles(source, name, count, into) : status;
    if (status < 0) {
        PyMem_Free(into);
        return NULL;
    }
    return into;
}
