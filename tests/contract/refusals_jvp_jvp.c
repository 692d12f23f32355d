/* Wrong calls of jvp_jvp, of a jvp that is given o, and with offsets per sequence; and what a backend lacks. Each is
 * refused with the name of the field, and nothing is written. */
#include "outputs.h"

enum { PATTERN = 0x5A };

typedef ag_status (*map_function)(const ag_plan *, const ag_args *, const ag_exec *, void *, size_t);

static const struct {
    const char *name;
    map_function run;
} every_map[MAPS] = {{"forward", ag_forward},
                     {"vjp", ag_vjp},
                     {"jvp", ag_jvp},
                     {"vjp_jvp", ag_vjp_jvp},
                     {"jvp_jvp", ag_jvp_jvp}};

static void *outputs_of(const struct arrays *x, size_t *bytes)
{
    *bytes = 0;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        *bytes += agc_tensor_info[t].role == ROLE_OUTPUT && x->data[t] != NULL ? tensor_bytes(x, t) : 0;
    }
    char *copy = test_alloc((int64_t)*bytes, 1), *at = copy;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_info[t].role == ROLE_OUTPUT && x->data[t] != NULL) {
            memcpy(at, x->data[t], tensor_bytes(x, t));
            at += tensor_bytes(x, t);
        }
    }
    return copy;
}

/* The call fails with this status and this field, and writes no output. */
static void refuse(const struct arrays *x, map_function run, ag_status status, const char *field,
                   const char *what)
{
    size_t bytes;
    void *before = outputs_of(x, &bytes);
    const ag_status got = run(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes);
    if (CHECK(got == status, "%s: %s instead of %s", what, ag_status_string(got), ag_status_string(status))) {
        CHECK(strcmp(ag_last_field(), field) == 0, "%s: the field is '%s' instead of '%s'", what,
              ag_last_field(), field);
        CHECK(strstr(ag_last_message(), strrchr(field, '.') != NULL ? strrchr(field, '.') + 1 : field) !=
                  NULL,
              "%s: '%s' does not name %s", what, ag_last_message(), field);
    }
    void *after = outputs_of(x, &bytes);
    CHECK(memcmp(before, after, bytes) == 0, "%s: an output was written", what);
    free(before);
    free(after);
}

static void make_reference(struct arrays *x, const char *text)
{
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(x, text, &reference, 3);
    CHECK_OK(agc_arrays_add_low_halves(x));
    CHECK_OK(agc_arrays_run_all(x));
    for (enum tensor t = T_STO; t <= T_NU; t++) {
        memset(x->data[t], PATTERN, tensor_bytes(x, t));
    }
}

/* ---- jvp_jvp ---- */

static const enum tensor required[] = {T_Q,    T_K, T_V,   T_BIAS, T_MASK, T_TABLE,
                                       T_SINK, T_O, T_LSE, T_MU,   T_SMU,  T_STO};
static const enum tensor optional[] = {T_TQ, T_TK, T_TV,    T_TBIAS,  T_TTABLE, T_TSINK, T_SQ,
                                       T_SK, T_SV, T_SBIAS, T_STABLE, T_SSINK,  T_O_LOW, T_NU};
enum { N_REQUIRED = sizeof required / sizeof required[0], N_OPTIONAL = sizeof optional / sizeof optional[0] };

static void misaligned(struct arrays *x, enum tensor t)
{
    const ag_args good = x->args;
    ag_tensor *tensor = agc_arrays_tensor(x, t);
    if (element_size(x, t) > 1) {
        tensor->data = (char *)tensor->data + 1;
        refuse(x, ag_jvp_jvp, AG_INVALID_ARGUMENT, agc_tensor_info[t].name, "a misaligned pointer");
    }
    x->args = good;
}

static void pointers(struct arrays *x)
{
    const ag_args good = x->args;
    for (int n = 0; n < N_REQUIRED; n++) {
        agc_arrays_tensor(x, required[n])->data = NULL;
        refuse(x, ag_jvp_jvp, AG_INVALID_ARGUMENT, agc_tensor_info[required[n]].name, "a missing pointer");
        x->args = good;
        misaligned(x, required[n]);
    }
    for (int n = 0; n < N_OPTIONAL; n++) {
        misaligned(x, optional[n]);
    }
}

/* sto and nu at the address of each other tensor of the map, and in the workspace. */
static void overlaps(struct arrays *x)
{
    static const enum tensor outputs[] = {T_STO, T_NU};
    const ag_args good = x->args;
    for (int o = 0; o < 2; o++) {
        const char *name = agc_tensor_info[outputs[o]].name;
        ag_tensor *output = agc_arrays_tensor(x, outputs[o]);
        for (int n = 0; n < N_REQUIRED + N_OPTIONAL; n++) {
            const enum tensor other = n < N_REQUIRED ? required[n] : optional[n - N_REQUIRED];
            output->data = agc_arrays_tensor(x, other)->data;
            if (x->data[other] != NULL && other != T_STO && other != T_NU) {
                refuse(x, ag_jvp_jvp, AG_INVALID_ARGUMENT, name, "an output over an input");
            }
            x->args = good;
        }
        output->data = x->workspace;
        refuse(x, ag_jvp_jvp, AG_INVALID_ARGUMENT, name, "an output in the workspace");
        x->args = good;
    }
    x->args.sto.data = x->args.nu.data;
    refuse(x, ag_jvp_jvp, AG_INVALID_ARGUMENT, "sto", "two outputs at one address");
    x->args = good;
    x->args.sto.strides[3] = 0;
    refuse(x, ag_jvp_jvp, AG_INVALID_ARGUMENT, "sto", "an output whose elements overlap");
    x->args = good;
    CHECK_STATUS(ag_jvp_jvp(x->plan, &x->args, NULL, x->workspace, 1), AG_WORKSPACE);
}

static void features(void)
{
    static const enum tensor of_features[] = {T_SBIAS, T_STABLE, T_SSINK};
    struct arrays plain;
    make_reference(&plain, "b3 h4 kv2 q7 k9 d5 dv3 f32");
    for (int n = 0; n < 3; n++) {
        *agc_arrays_tensor(&plain, of_features[n]) = plain.args.q;
        refuse(&plain, ag_jvp_jvp, AG_INVALID_ARGUMENT, agc_tensor_info[of_features[n]].name,
               "a tensor without its feature");
        agc_arrays_tensor(&plain, of_features[n])->data = NULL;
    }
    plain.args.o_low = plain.args.o;
    refuse(&plain, ag_jvp_jvp, AG_INVALID_ARGUMENT, "o_low", "a low half of float32");
    agc_arrays_destroy(&plain);
}

/* ---- Flags and given o ---- */

static void flags(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        x->args.flags = 2;
        refuse(x, every_map[map].run, AG_INVALID_ARGUMENT, "flags", "an unknown flag");
        x->args = good;
        x->args.reserved2 = 1;
        refuse(x, every_map[map].run, AG_INVALID_ARGUMENT, "reserved2", "a reserved field");
        x->args = good;
    }
    x->args.flags = AG_GIVEN_O;
    x->args.o.data = NULL;
    refuse(x, ag_jvp, AG_INVALID_ARGUMENT, "o", "given o without o");
    x->args = good;
    x->args.flags = AG_GIVEN_O;
    x->args.lse.data = NULL;
    refuse(x, ag_jvp, AG_INVALID_ARGUMENT, "lse", "given o without lse");
    x->args = good;
    x->args.flags = AG_GIVEN_O;
    x->args.to.data = x->args.o.data;
    refuse(x, ag_jvp, AG_INVALID_ARGUMENT, "to", "given o: to over o");
    x->args = good;
}

/* Low halves of outputs that are added to are refused. Given o, o_low is an input: AG_ACC_O is not about it. */
static void low_halves(struct arrays *x)
{
    const ag_args good = x->args;
    x->args.accumulate = AG_ACC_O;
    refuse(x, ag_forward, AG_INVALID_ARGUMENT, "o_low", "a low half and AG_ACC_O");
    refuse(x, ag_jvp, AG_INVALID_ARGUMENT, "o_low", "a low half and AG_ACC_O");
    x->args.accumulate = AG_ACC_TO;
    refuse(x, ag_jvp, AG_INVALID_ARGUMENT, "to_low", "a low half and AG_ACC_TO");
    x->args.flags = AG_GIVEN_O;
    refuse(x, ag_jvp, AG_INVALID_ARGUMENT, "to_low", "given o: a low half and AG_ACC_TO");
    x->args.accumulate = AG_ACC_O | AG_ACC_DQ;
    CHECK_OK(ag_jvp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
    x->args = good;
    x->args.accumulate =
        AG_ACC_DQ | AG_ACC_STO | AG_ACC_NU; /* gradients and second tangents may accumulate */
    CHECK_OK(ag_vjp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
    x->args = good;
}

/* ---- Offsets per sequence, lists in a device's memory ---- */

static void offsets(ag_backend backend)
{
    struct arrays x, right;
    const int64_t far[3] = {0, 1, INT64_MAX}, fine[3] = {-1, 0, 1};
    ag_options options = AG_OPTIONS_INIT;
    options.backend = backend;
    make_arrays(&x, "b3 h2 q7 k9 d4 f32 causal", &options, 1);
    make_arrays(&right, "b3 h2 q7 k9 d4 f32 causal align=bottom-right", &options, 1);
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_arrays_run_all(&right));
    for (int map = 0; map < MAPS; map++) {
        right.args.q_offsets = fine;
        refuse(&right, every_map[map].run, AG_INVALID_ARGUMENT, "q_offsets", "bottom-right with offsets");
        right.args.q_offsets = NULL;
        right.args.k_offsets = fine;
        refuse(&right, every_map[map].run, AG_INVALID_ARGUMENT, "k_offsets", "bottom-right with offsets");
        right.args.k_offsets = NULL;
        x.args.q_offsets = far;
        refuse(&x, every_map[map].run, AG_INVALID_ARGUMENT, "q_offsets", "a far offset");
        x.args.q_offsets = fine;
        x.args.q_offset = 1;
        refuse(&x, every_map[map].run, AG_INVALID_ARGUMENT, "q_offsets", "two kinds of offsets");
        x.args.q_offset = 0;
        x.args.k_offsets = far;
        refuse(&x, every_map[map].run, AG_INVALID_ARGUMENT, "k_offsets", "a far offset");
        x.args.k_offsets = fine;
        x.args.k_offset = -1;
        refuse(&x, every_map[map].run, AG_INVALID_ARGUMENT, "k_offsets", "two kinds of offsets");
        x.args.k_offset = 0;
        CHECK_OK(agc_arrays_run(&x, map_bit[map]));
        x.args.q_offsets = x.args.k_offsets = NULL;
    }
    agc_arrays_destroy(&x);
    agc_arrays_destroy(&right);
}

static void device_lists(ag_backend backend)
{
    static const int64_t list[4] = {0, 0, 0, 0};
    static const uint64_t seed = 1;
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"q_lengths_device", offsetof(ag_args, q_lengths_device)},
                  {"kv_lengths_device", offsetof(ag_args, kv_lengths_device)},
                  {"q_packed_device", offsetof(ag_args, q_packed_device)},
                  {"k_packed_device", offsetof(ag_args, k_packed_device)},
                  {"q_offsets_device", offsetof(ag_args, q_offsets_device)},
                  {"k_offsets_device", offsetof(ag_args, k_offsets_device)},
                  {"seed_device", offsetof(ag_args, seed_device)}};
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = backend;
    make_arrays(&x, "b3 h2 q7 k9 d4 f32", &options, 1);
    CHECK_OK(agc_arrays_run_all(&x));
    const ag_args good = x.args;
    for (int map = 0; map < MAPS; map++) {
        for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++) {
            const void *pointer = n == 6 ? (const void *)&seed : list;
            memcpy((char *)&x.args + fields[n].offset, &pointer, sizeof pointer);
            refuse(&x, every_map[map].run, AG_UNSUPPORTED, fields[n].name, "a list on a device");
            x.args = good;
        }
    }
    agc_arrays_destroy(&x);
}

/* ---- Devices, which the backends of the host lack ---- */

static void refuse_device(ag_backend backend, int32_t device)
{
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = backend;
    options.device = device;
    CHECK_OK(ag_problem_parse("q4 d4 f32", &p));
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    CHECK(strcmp(ag_last_field(), "options.device") == 0, "the field is '%s'", ag_last_field());
    CHECK(plan == NULL, "a refused plan");
}

static void devices(void)
{
    refuse_device(AG_BACKEND_CPU, 1);
    refuse_device(AG_BACKEND_REFERENCE, 1);
}

/* ---- Callers of an older header ---- */

/* What lies after the end of an older struct is neither read nor written. */
static void older_callers(void)
{
    struct arrays x;
    make_arrays(&x, EVERY_FEATURE "f32", NULL, 2);
    CHECK_OK(agc_arrays_run_all(&x));
    memset((char *)&x.args + offsetof(ag_args, flags), PATTERN, sizeof x.args - offsetof(ag_args, flags));
    x.args.struct_size = offsetof(ag_args, flags);
    for (int map = 0; map < 4; map++) {
        CHECK_OK(agc_arrays_run(&x, map_bit[map]));
    }
    CHECK_STATUS(ag_jvp_jvp(x.plan, &x.args, NULL, x.workspace, x.workspace_bytes), AG_INVALID_ARGUMENT);
    ag_merge_args m;
    memset(&m, PATTERN, sizeof m);
    memset(&m, 0, offsetof(ag_merge_args, so1));
    m.struct_size = offsetof(ag_merge_args, so1);
    m.o1 = m.o2 = x.args.o, m.lse1 = m.lse2 = x.args.lse;
    m.o = x.args.to, m.lse = x.args.mu;
    CHECK_OK(ag_merge(x.plan, &m, NULL));
    ag_info info;
    memset(&info, PATTERN, sizeof info);
    info.struct_size = offsetof(ag_info, devices);
    CHECK_OK(ag_info_get(&info));
    CHECK(info.devices[0] == PATTERN, "devices was written");
    info.struct_size = sizeof info;
    CHECK_OK(ag_info_get(&info));
    CHECK(memchr(info.devices, '\0', sizeof info.devices) != NULL, "devices has no end");
    CHECK(info.devices[0] == '\0' || test_has_backend(AG_BACKEND_CUDA), "devices is '%.255s'", info.devices);
    agc_arrays_destroy(&x);
}

int main(void)
{
    struct arrays x, narrow;
    make_reference(&x, EVERY_FEATURE "f32");
    pointers(&x);
    overlaps(&x);
    flags(&x);
    features();
    make_reference(&narrow, EVERY_FEATURE "bf16");
    pointers(&narrow);
    low_halves(&narrow);
    offsets(AG_BACKEND_REFERENCE);
    offsets(AG_BACKEND_CPU);
    device_lists(AG_BACKEND_REFERENCE);
    device_lists(AG_BACKEND_CPU);
    devices();
    older_callers();
    agc_arrays_destroy(&x);
    agc_arrays_destroy(&narrow);
    return test_summary();
}
