/* The type Plan: an ag_plan and its maps. A map runs without the interpreter's lock; the caller's frame keeps
 * the plan alive meanwhile. */
#include "core.h"

typedef struct {
    PyObject_HEAD ag_plan *plan;
    int on_device; /* tensors and workspace are a GPU's memory, and a map only enqueues */
} plan_object;

static const ag_plan *plan_of(PyObject *self)
{
    return ((plan_object *)(void *)self)->plan;
}

/* ---- Creating and destroying ---- */

typedef struct {
    const char *text;
    ag_options options;
    PyObject *scale, *buckets, *slopes;
} plan_request;

static int read_request(plan_request *request, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"problem", "backend", "isa",          "threads", "flags",
                            "scale",   "buckets", "alibi_slopes", "device",  NULL};
    const plan_request blank = {NULL, AG_OPTIONS_INIT, Py_None, Py_None, Py_None};
    *request = blank;
    int backend = 0, isa = 0, threads = 0, device = 0;
    unsigned flags = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|$iiiIOOOi:plan", names, &request->text, &backend,
                                     &isa, &threads, &flags, &request->scale, &request->buckets,
                                     &request->slopes, &device)) {
        return -1;
    }
    request->options.backend = backend;
    request->options.isa = isa;
    request->options.threads = threads;
    request->options.flags = flags;
    request->options.device = device;
    return 0;
}

/* Adds what is given besides the text of the problem. The caller frees buckets and slopes. */
static int add_constants(const plan_request *request, ag_problem *p, int32_t **buckets, double **slopes)
{
    if (request->scale != Py_None) {
        p->flags |= AG_SCALE;
        p->scale = PyFloat_AsDouble(request->scale);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    if (request->buckets != Py_None) {
        p->buckets = *buckets = core_read_int32s(request->buckets, "buckets", 2 * p->table_radius + 1);
    }
    if (request->slopes != Py_None && !PyErr_Occurred()) {
        p->alibi_slopes = *slopes = core_read_doubles(request->slopes, "alibi_slopes", p->heads);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static ag_plan *make_plan(const plan_request *request)
{
    ag_problem problem = AG_PROBLEM_INIT;
    int32_t *buckets = NULL;
    double *slopes = NULL;
    ag_plan *plan = NULL;
    ag_status status = ag_problem_parse(request->text, &problem);
    if (status == AG_OK && add_constants(request, &problem, &buckets, &slopes) == 0) {
        status = ag_plan_create(&plan, &problem, &request->options);
    }
    PyMem_Free(buckets);
    PyMem_Free(slopes);
    if (status != AG_OK) {
        core_fail(status);
    }
    return plan;
}

PyObject *core_plan_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    plan_request request;
    if (read_request(&request, args, keywords) != 0) {
        return NULL;
    }
    ag_plan *plan = make_plan(&request);
    if (plan == NULL) {
        return NULL;
    }
    const allocfunc allocate = __extension__(allocfunc) PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self = allocate(type, 0);
    if (self == NULL) {
        ag_plan_destroy(plan);
        return NULL;
    }
    ag_plan_info info = {.struct_size = sizeof info};
    ((plan_object *)(void *)self)->plan = plan;
    ((plan_object *)(void *)self)->on_device =
        ag_plan_info_get(plan, &info) == AG_OK && info.backend == AG_BACKEND_CUDA;
    return self;
}

static void plan_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    const freefunc release = __extension__(freefunc) PyType_GetSlot(type, Py_tp_free);
    ag_plan_destroy(((plan_object *)(void *)self)->plan);
    release(self);
    Py_DECREF(type);
}

/* ---- Information ---- */

static PyObject *plan_describe(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyUnicode_FromString(ag_plan_describe(plan_of(self)));
}

static PyObject *plan_info(PyObject *self, PyObject *unused)
{
    (void)unused;
    ag_plan_info info = {.struct_size = sizeof info};
    const ag_status status = ag_plan_info_get(plan_of(self), &info);
    if (status != AG_OK) {
        return core_fail(status);
    }
    return Py_BuildValue("{s:s,s:s,s:i,s:(LL),s:s,s:O}", "backend", info.backend_name, "isa", info.isa_name,
                         "threads", (int)info.threads, "tile", (long long)info.tile_queries,
                         (long long)info.tile_keys, "compute_dtype", ag_dtype_name(info.compute_dtype),
                         "deterministic", info.deterministic ? Py_True : Py_False);
}

static PyObject *plan_problem(PyObject *self, PyObject *unused)
{
    (void)unused;
    const ag_problem *p = ag_plan_problem(plan_of(self));
    char text[1024];
    size_t length;
    const ag_status status = ag_problem_format(p, text, sizeof text, &length);
    return status == AG_OK ? PyUnicode_FromStringAndSize(text, (Py_ssize_t)length) : core_fail(status);
}

static PyObject *plan_workspace(PyObject *self, PyObject *maps)
{
    const unsigned long bits = PyLong_AsUnsignedLong(maps);
    size_t bytes;
    if (PyErr_Occurred()) {
        return NULL;
    }
    const ag_status status = ag_plan_workspace(plan_of(self), (uint32_t)bits, &bytes);
    return status == AG_OK ? PyLong_FromSize_t(bytes) : core_fail(status);
}

/* ---- Running ---- */

typedef ag_status (*map_function)(const ag_plan *plan, const ag_args *args, const ag_exec *exec,
                                  void *workspace, size_t bytes);

static map_function map_of(unsigned map_bit)
{
    switch (map_bit) {
    case AG_MAP_FORWARD: return ag_forward;
    case AG_MAP_VJP: return ag_vjp;
    case AG_MAP_JVP: return ag_jvp;
    case AG_MAP_VJP_JVP: return ag_vjp_jvp;
    case AG_MAP_JVP_JVP: return ag_jvp_jvp;
    default: PyErr_Format(PyExc_ValueError, "map is %u: must be one of MAP_*", map_bit); return NULL;
    }
}

/* Runs a map, or traces it if trace is not NULL, in this thread's workspace. */
static PyObject *run_map(const ag_plan *plan, unsigned map_bit, const ag_args *args,
                         const ag_trace_args *trace)
{
    const map_function map = map_of(map_bit);
    size_t bytes;
    if (map == NULL) {
        return NULL;
    }
    ag_status status = ag_plan_workspace(plan, map_bit, &bytes);
    if (status != AG_OK) {
        return core_fail(status);
    }
    const core_scratch scratch = core_scratch_take(bytes);
    if (scratch.memory == NULL) {
        return PyErr_Format(PyExc_MemoryError, "no memory for the workspace: %zu MiB", (bytes >> 20) + 1);
    }
    core_unlocked call;
    const ag_exec *exec = core_unlock(&call);
    status = trace == NULL ? map(plan, args, exec, scratch.memory, bytes)
                           : ag_trace(plan, map_bit, args, trace, scratch.memory, bytes);
    core_scratch_end(scratch);
    return core_lock(&call, status);
}

/* Enqueues a map on the caller's stream, in the caller's workspace. */
static PyObject *enqueue_map(const ag_plan *plan, unsigned map_bit, const core_call *call)
{
    const ag_exec exec = {.struct_size = sizeof exec, .stream = call->stream};
    const map_function map = map_of(map_bit);
    size_t bytes;
    if (map == NULL) {
        return NULL;
    }
    ag_status status = ag_plan_workspace(plan, map_bit, &bytes);
    if (status == AG_OK) {
        PyThreadState *unlocked = PyEval_SaveThread();
        status = map(plan, &call->args, &exec, call->workspace, bytes);
        PyEval_RestoreThread(unlocked);
    }
    return status == AG_OK ? Py_NewRef(Py_None) : core_fail(status);
}

/* Runs a map where the plan runs. */
static PyObject *run_or_enqueue(PyObject *self, unsigned map_bit, const core_call *call)
{
    if (((plan_object *)(void *)self)->on_device) {
        return enqueue_map(plan_of(self), map_bit, call);
    }
    if (call->workspace != NULL || call->stream != NULL) {
        PyErr_Format(PyExc_ValueError, "%s: given, but the plan runs on the processor",
                     call->stream != NULL ? "stream" : "workspace");
        return NULL;
    }
    return run_map(plan_of(self), map_bit, &call->args, NULL);
}

static PyObject *plan_run(PyObject *self, PyObject *args, PyObject *keywords)
{
    const ag_plan *plan = plan_of(self);
    unsigned map_bit;
    PyObject *tensors, *result = NULL;
    if (!PyArg_ParseTuple(args, "IO!:run", &map_bit, &PyDict_Type, &tensors)) {
        return NULL;
    }
    core_call call;
    if (core_call_read(&call, ag_plan_problem(plan), tensors, keywords) == 0) {
        result = run_or_enqueue(self, map_bit, &call);
    }
    core_call_end(&call);
    return result;
}

/* ---- Merge ---- */

#define AT(member)                                                                                           \
    {                                                                                                        \
#member, offsetof(ag_merge_args, member)                                                             \
    }

static const core_slot merge_slots[] = {
    AT(lse),  AT(lse1), AT(lse2), AT(mu),     AT(mu1),     AT(mu2),    AT(nu),     AT(nu1),
    AT(nu2),  AT(o),    AT(o1),   AT(o2),     AT(o_low),   AT(o_low1), AT(o_low2), AT(smu),
    AT(smu1), AT(smu2), AT(so),   AT(so1),    AT(so2),     AT(sto),    AT(sto1),   AT(sto2),
    AT(to),   AT(to1),  AT(to2),  AT(to_low), AT(to_low1), AT(to_low2)};

#undef AT

static PyObject *plan_merge(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"", "stream", NULL};
    ag_merge_args args = {.struct_size = sizeof args};
    ag_exec on_stream = AG_EXEC_INIT;
    PyObject *tensors, *stream = NULL;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|$O:merge", names, &PyDict_Type, &tensors,
                                     &stream) ||
        core_read_tensors(tensors, merge_slots, sizeof merge_slots / sizeof merge_slots[0], &args) != 0 ||
        (stream != NULL && core_read_address(stream, "stream", &on_stream.stream) != 0)) {
        return NULL;
    }
    core_unlocked call;
    const ag_exec *exec = core_unlock(&call);
    if (((plan_object *)(void *)self)->on_device || on_stream.stream != NULL) {
        exec = &on_stream; /* which the processor refuses */
    }
    return core_lock(&call, ag_merge(plan_of(self), &args, exec));
}

/* ---- Trace ---- */

#define AT(member)                                                                                           \
    {                                                                                                        \
#member, offsetof(ag_trace_args, member)                                                             \
    }

static const core_slot trace_slots[] = {AT(B),    AT(D),  AT(J),  AT(L),  AT(M),   AT(P),   AT(Ps),  AT(R),
                                        AT(S),    AT(Z),  AT(dP), AT(dS), AT(dZ),  AT(mu),  AT(nu),  AT(phi1),
                                        AT(phi2), AT(sP), AT(sS), AT(sZ), AT(smu), AT(stP), AT(stS), AT(stZ),
                                        AT(tD),   AT(tP), AT(tS), AT(tZ), AT(tdP), AT(tdS), AT(tdZ)};

#undef AT

static PyObject *plan_trace(PyObject *self, PyObject *args, PyObject *keywords)
{
    ag_trace_args trace = {.struct_size = sizeof trace};
    unsigned map_bit;
    PyObject *tensors, *arrays, *result = NULL;
    long long batch, head, row = 0;
    if (!PyArg_ParseTuple(args, "IO!O!LL|L:trace", &map_bit, &PyDict_Type, &tensors, &PyDict_Type, &arrays,
                          &batch, &head, &row) ||
        core_read_pointers(arrays, trace_slots, sizeof trace_slots / sizeof trace_slots[0], &trace) != 0) {
        return NULL;
    }
    trace.batch = batch;
    trace.head = head;
    trace.jacobian_row = row;
    core_call call;
    if (core_call_read(&call, ag_plan_problem(plan_of(self)), tensors, keywords) == 0) {
        result = run_map(plan_of(self), map_bit, &call.args, &trace);
    }
    core_call_end(&call);
    return result;
}

static PyObject *plan_view(PyObject *self, PyObject *args, PyObject *keywords)
{
    return core_view(plan_of(self), args, keywords);
}

/* ---- The type ---- */

/* A function with keywords has another signature than the field of PyMethodDef; ml_flags tells Python. */
#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef plan_methods[] = {
    {"run", WITH_KEYWORDS(plan_run),
     PyDoc_STR(
         "run(map, tensors, /, *, accumulate=0, flags=0, q_offset=0, k_offset=0, batch_offset=0,\n"
         "    seed=0, q_lengths=None, kv_lengths=None, q_packed=None, k_packed=None, q_offsets=None,\n"
         "    k_offsets=None, q_lengths_device=None, kv_lengths_device=None, q_packed_device=None,\n"
         "    k_packed_device=None, q_offsets_device=None, k_offsets_device=None, seed_device=None,\n"
         "    workspace=None, stream=None)\n\n"
         "Runs one map (MAP_*) on tensors {name: (address, strides in elements of the 4 axes)} or\n"
         "{name: PyTorch tensor}. On a GPU it enqueues it on the stream, in workspace(map) bytes at the\n"
         "address workspace; *_device are addresses there too.")},
    {"merge", WITH_KEYWORDS(plan_merge),
     PyDoc_STR("merge(tensors, /, *, stream=0): ag_merge on {name: (address, strides)}.")},
    {"trace", WITH_KEYWORDS(plan_trace),
     PyDoc_STR("trace(map, tensors, arrays, batch, head, jacobian_row=0, /, **as run)\n\n"
               "ag_trace into float64 arrays {name: address}.")},
    {"view", WITH_KEYWORDS(plan_view),
     PyDoc_STR(
         "view(tensors, maps, sequences, heads, rows, keys, title, facts, /, **as run)\n\n"
         "The bytes of a page that shows these heads of the call; maps 0, empty lists and (0, 0): chosen by\n"
         "size; rows and keys: (first, last + 1).")},
    {"workspace", plan_workspace, METH_O,
     PyDoc_STR("workspace(maps, /): bytes that serve each of the maps.")},
    {"describe", plan_describe, METH_NOARGS, PyDoc_STR("describe(): what the plan runs on, for people.")},
    {"info", plan_info, METH_NOARGS,
     PyDoc_STR("info(): the same for programs: backend, isa, threads, tile, compute_dtype, deterministic.")},
    {"problem", plan_problem, METH_NOARGS, PyDoc_STR("problem(): the text of the problem.")},
    {NULL, NULL, 0, NULL}};

static PyType_Slot plan_slots[] = {
    {Py_tp_dealloc, __extension__(void *) plan_dealloc},
    {Py_tp_methods, plan_methods},
    {Py_tp_doc, PyDoc_STR("A plan, made by plan().")},
    {0, NULL},
};

PyType_Spec core_plan_spec = {
    "attngrad._core.Plan",
    sizeof(plan_object),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    plan_slots,
};
