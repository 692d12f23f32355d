/* Prints one line per output of whole maps and layers in bfloat16, with a hash of its bits; with --unit only
 * the name of the AMX unit. amx_maps.sh compares what this program prints with the processor's AMX and with
 * the emulated one. */
#include "layer/nn.h"
#include "outputs.h"

/* Several tiles in each direction, plain and with features, grouped kv heads, split keys, packed sequences. */
static const char *const problems[] = {
    "b2 h2 q200 k300 d64 bf16",
    "h2 q70 k300 d128 bf16 causal",
    "h4 kv2 q150 k130 d40 dv72 bf16 grad=f32 window=40,10",
    "h2 q130 k200 d64 bf16 softcap=2 dropout=0.2",
    "b2 h2 q100 k90 d32 bf16 bias=11qk mask=b11k sink",
    "b2 h2 q90 k100 d64 bf16 table=5,shared alibi",
    "h2 q3 k3000 d64 bf16",
    "h3 kv1 q65 k129 d256 bf16 causal align=bottom-right sink scale=-0.7",
    "b5 h2 q150 k200 packed=200,300 d64 bf16 causal",
    "b2 h2 q200 k300 d64 bf16 out=f32",
    "h2 q90 k100 d40 dv56 bf16 out=f32 grad=f32 sink alibi",
};

static const nn_config layers[] = {
    {"bf16 b3 h4 q50 d32", AG_LAYER_SELF, 128, 0, 0, 0, 0},
    {"bf16 b2 h4 kv2 q60 k90 d40 dv24 causal grad=f32", AG_LAYER_BIASES, 100, 70, 60, 110, 1},
    {"bf16 b2 h2 q33 d64 out=f32", AG_LAYER_SELF | AG_LAYER_BIASES, 300, 0, 0, 0, 1},
};

static uint64_t hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t n = 0; n < bytes; n++) {
        h = (h ^ p[n]) * 1099511628211u;
    }
    return h;
}

/* The outputs of these maps; how: how they were called. */
static void print_outputs(const struct arrays *x, const char *text, const char *how, uint32_t maps)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, maps)) {
            printf("%s%s: %s %016llx\n", text, how, agc_tensor_info[t].name,
                   (unsigned long long)hash(x->data[t], tensor_bytes(x, t)));
        }
    }
}

/* jvp given o and lse, and jvp_jvp with both directions the same and with tangents absent: they take other products. */
static void print_other_calls(struct arrays *x, const char *text)
{
    const ag_args kept = x->args;
    ag_args *a = &x->args;
    run_given_jvp(x);
    print_outputs(x, text, " given o", AG_MAP_JVP);
    a->sq = a->tq, a->sk = a->tk, a->sv = a->tv, a->smu = a->mu;
    CHECK_OK(agc_arrays_run(x, AG_MAP_JVP_JVP));
    print_outputs(x, text, " one direction", AG_MAP_JVP_JVP);
    x->args = kept;
    a->tq.data = a->sk.data = a->tv.data = NULL;
    CHECK_OK(agc_arrays_run(x, AG_MAP_JVP_JVP));
    print_outputs(x, text, " without tq, sk, tv", AG_MAP_JVP_JVP);
    run_given_jvp(x);
    print_outputs(x, text, " given o, without tq, tv", AG_MAP_JVP);
    x->args = kept;
}

static void print_maps(const char *text)
{
    struct arrays x;
    ag_plan_info info = {.struct_size = sizeof info};
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.isa = AG_ISA_AMX;
    options.threads = 2;
    make_arrays(&x, text, &options, 5);
    CHECK_OK(agc_arrays_add_low_halves(&x));
    CHECK_OK(ag_plan_info_get(x.plan, &info));
    CHECK(info.isa == AG_ISA_AMX, "'%s' is on %s, not on AMX", text, info.isa_name);
    CHECK_OK(agc_arrays_run_all(&x));
    print_outputs(&x, text, "", ALL_MAPS);
    print_other_calls(&x, text);
    agc_arrays_destroy(&x);
}

static void print_layer(const nn_config *c)
{
    nn_model m;
    nn_make(&m, c, 2, 11);
    nn_run_all(&m);
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int array = 0; array < N_ARRAYS; array++) {
            if (m.count[array] > 0) {
                printf("layer %s: %d %s %016llx\n", c->text, kind, nn_names[array],
                       (unsigned long long)hash(m.at[kind][array], (size_t)m.count[array] *
                                                                       ag_dtype_size(m.dtype[kind][array])));
            }
        }
    }
    nn_free(&m);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--unit") == 0) {
        return 0; /* amx_here.c has printed it */
    }
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        print_maps(problems[n]);
    }
    for (size_t n = 0; n < sizeof layers / sizeof layers[0]; n++) {
        print_layer(&layers[n]);
    }
    return test_summary();
}
