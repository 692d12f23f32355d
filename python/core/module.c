/* The extension module attngrad._core: its functions and constants. */
#include "core.h"
#include "xla.h"

#include <ctype.h>

PyObject *core_fail_with(ag_status status, const char *message, const char *field)
{
    PyObject *type = PyExc_RuntimeError;
    switch (status) {
    case AG_INVALID_PROBLEM:
    case AG_INVALID_ARGUMENT: type = PyExc_ValueError; break;
    case AG_UNSUPPORTED: type = PyExc_NotImplementedError; break;
    case AG_NO_MEMORY: type = PyExc_MemoryError; break;
    default: break;
    }
    PyObject *exception = PyObject_CallFunction(type, "s", message);
    PyObject *name = PyUnicode_FromString(field);
    if (exception != NULL && name != NULL && PyObject_SetAttrString(exception, "field", name) == 0) {
        PyErr_SetObject(type, exception);
    }
    Py_XDECREF(exception);
    Py_XDECREF(name);
    return NULL;
}

PyObject *core_fail(ag_status status)
{
    return core_fail_with(status, ag_last_message(), ag_last_field());
}

typedef struct {
    PyTypeObject *plan_type;
} module_state;

static PyObject *module_plan(PyObject *module, PyObject *args, PyObject *keywords)
{
    const module_state *state = PyModule_GetState(module);
    return core_plan_new(state->plan_type, args, keywords);
}

static PyObject *module_info(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    ag_info info = {.struct_size = sizeof info};
    const ag_status status = ag_info_get(&info);
    if (status != AG_OK) {
        return core_fail(status);
    }
    return Py_BuildValue("{s:s,s:i,s:s,s:s,s:s,s:s,s:s}", "version", info.version, "threads",
                         (int)info.threads, "cpu", info.cpu, "isa", info.isa, "backends", info.backends,
                         "compiler", info.compiler, "devices", info.devices);
}

static PyObject *module_backends(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *dict = PyDict_New();
    for (int32_t n = 0; n < ag_backend_count() && dict != NULL; n++) {
        ag_backend_info backend = {.struct_size = sizeof backend};
        const ag_status status = ag_backend_info_get(n, &backend);
        PyObject *number = status == AG_OK ? PyLong_FromLong(backend.backend) : core_fail(status);
        if (number == NULL || PyDict_SetItemString(dict, backend.name, number) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(number);
    }
    return dict;
}

/* The dict that describes an instruction set. */
static PyObject *isa_dict(const ag_isa_info *isa)
{
    return Py_BuildValue("{s:i,s:s,s:O,s:O}", "isa", (int)isa->isa, "name", isa->name, "built_in",
                         isa->built_in ? Py_True : Py_False, "available",
                         isa->available ? Py_True : Py_False);
}

static PyObject *module_isas(PyObject *module, PyObject *arg)
{
    (void)module;
    const long backend = PyLong_AsLong(arg);
    PyObject *list = backend == -1 && PyErr_Occurred() ? NULL : PyList_New(0);
    const int32_t count = ag_backend_isa_count((ag_backend)backend);
    for (int32_t n = 0; n < count && list != NULL; n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        const ag_status status = ag_backend_isa((ag_backend)backend, n, &isa);
        PyObject *dict = status == AG_OK ? isa_dict(&isa) : core_fail(status);
        if (dict == NULL || PyList_Append(list, dict) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(dict);
    }
    return list;
}

static PyObject *module_version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(ag_version_string());
}

static PyObject *module_xla_handler(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return core_xla_capsule();
}

static PyObject *module_xla_slots(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return core_xla_slots();
}

static PyObject *module_xla_plans(PyObject *module, PyObject *max)
{
    (void)module;
    const long long bound = PyLong_AsLongLong(max);
    if (bound < 0) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_ValueError, "max: %lld, must be 0 or more", bound);
    }
    const xla_plan_counts counts = core_xla_bound_plans(bound);
    return Py_BuildValue("(LLL)", (long long)counts.max, (long long)counts.kept, (long long)counts.made);
}

static PyObject *module_use_openmp(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyBool_FromLong(core_openmp_begin());
}

static PyMethodDef module_methods[] = {
    {"plan", (PyCFunction)(void (*)(void))module_plan, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("plan(problem, *, backend=0, isa=0, threads=0, flags=0, scale=None, buckets=None,\n"
               "    alibi_slopes=None, device=0)\n\n"
               "The plan of a problem in its text form, and what the text cannot say.")},
    {"check", (PyCFunction)(void (*)(void))core_check, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("check(problem, *, seed=0, backend=0, threads=0)\n\n"
               "All checks on a problem with random arrays:\n"
               "[(name, residual, limit, why it does not apply, tensor, (b, h, i, c))].")},
    {"info", module_info, METH_NOARGS, PyDoc_STR("info(): the library, and the processor.")},
    {"backends", module_backends, METH_NOARGS,
     PyDoc_STR("backends(): the number of each backend by its name, the fastest first.")},
    {"isas", module_isas, METH_O,
     PyDoc_STR("isas(backend, /): the backend's tables of kernels, each a dict of isa, name, built_in,\n"
               "available.")},
    {"xla_handler", module_xla_handler, METH_NOARGS,
     PyDoc_STR("xla_handler(): a capsule of the handler of XLA's custom calls, for jax.ffi.")},
    {"xla_slots", module_xla_slots, METH_NOARGS,
     PyDoc_STR("xla_slots(): the operands and results of that handler by name: (number, bits of the maps\n"
               "that read it, bits of those that write it).")},
    {"xla_plans", module_xla_plans, METH_O,
     PyDoc_STR("xla_plans(max, /): bounds how many plans the handler keeps beside those in use. Returns the\n"
               "bound before, how many it keeps now, and how many it has made.")},
    {"use_openmp", module_use_openmp, METH_NOARGS,
     PyDoc_STR(
         "use_openmp(): calls run on the threads of the OpenMP library that this process has loaded, if\n"
         "there is one; returns whether there is.")},
    {"version", module_version, METH_NOARGS, PyDoc_STR("version(): the library's.")},
    {NULL, NULL, 0, NULL}};

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"MAP_FORWARD", AG_MAP_FORWARD},
    {"MAP_VJP", AG_MAP_VJP},
    {"MAP_JVP", AG_MAP_JVP},
    {"MAP_VJP_JVP", AG_MAP_VJP_JVP},
    {"MAP_JVP_JVP", AG_MAP_JVP_JVP},
    {"GIVEN_O", AG_GIVEN_O},
    {"ACC_O", AG_ACC_O},
    {"ACC_LSE", AG_ACC_LSE},
    {"ACC_TO", AG_ACC_TO},
    {"ACC_MU", AG_ACC_MU},
    {"ACC_DQ", AG_ACC_DQ},
    {"ACC_DK", AG_ACC_DK},
    {"ACC_DV", AG_ACC_DV},
    {"ACC_DBIAS", AG_ACC_DBIAS},
    {"ACC_DTABLE", AG_ACC_DTABLE},
    {"ACC_DSINK", AG_ACC_DSINK},
    {"ACC_TDQ", AG_ACC_TDQ},
    {"ACC_TDK", AG_ACC_TDK},
    {"ACC_TDV", AG_ACC_TDV},
    {"ACC_TDBIAS", AG_ACC_TDBIAS},
    {"ACC_TDTABLE", AG_ACC_TDTABLE},
    {"ACC_TDSINK", AG_ACC_TDSINK},
    {"ACC_STO", AG_ACC_STO},
    {"ACC_NU", AG_ACC_NU},
    {"BACKEND_AUTO", AG_BACKEND_AUTO},
    {"BACKEND_CUDA", AG_BACKEND_CUDA},
    {"ISA_SM80", AG_ISA_SM80},
    {"ISA_SM90", AG_ISA_SM90},
    {"ISA_AUTO", AG_ISA_AUTO},
    {"ROUND_INTERMEDIATES", AG_ROUND_INTERMEDIATES},
    {"INVARIANT", AG_INVARIANT},
    {"XLA_VERSION", XLA_VERSION},
};

/* Adds ISA_AVX512 and so on, from the library's list of the backend. */
static int add_isas(PyObject *module, ag_backend backend)
{
    const int32_t count = ag_backend_isa_count(backend);
    for (int32_t n = 0; n < count; n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        char name[sizeof isa.name + 4] = "ISA_";
        const ag_status status = ag_backend_isa(backend, n, &isa);
        if (status != AG_OK) {
            core_fail(status);
            return -1;
        }
        for (size_t c = 0; isa.name[c] != '\0'; c++) {
            name[4 + c] = (char)toupper((unsigned char)isa.name[c]);
        }
        if (PyModule_AddIntConstant(module, name, isa.isa) != 0) {
            return -1;
        }
    }
    return 0;
}

static int add_every_isa(PyObject *module)
{
    for (int32_t n = 0; n < ag_backend_count(); n++) {
        ag_backend_info backend = {.struct_size = sizeof backend};
        const ag_status status = ag_backend_info_get(n, &backend);
        if (status != AG_OK) {
            core_fail(status);
            return -1;
        }
        if (add_isas(module, backend.backend) != 0) {
            return -1;
        }
    }
    return 0;
}

static int module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    state->plan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &core_plan_spec, NULL);
    if (state->plan_type == NULL || PyModule_AddType(module, state->plan_type) != 0) {
        return -1;
    }
    for (size_t n = 0; n < sizeof constants / sizeof constants[0]; n++) {
        if (PyModule_AddIntConstant(module, constants[n].name, constants[n].value) != 0) {
            return -1;
        }
    }
    return add_every_isa(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    const module_state *state = PyModule_GetState(module);
    Py_VISIT(state->plan_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->plan_type);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, __extension__(void *) module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "attngrad._core",
    .m_doc = PyDoc_STR("The C interface of attngrad: plans of problems, and their maps on addresses."),
    .m_size = sizeof(module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
