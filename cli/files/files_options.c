/* The command line of forward, grad, jvp, jvp2 and hvp. A command accepts the tensors that its maps read; those of
 * other maps are unknown options. */
#include "files.h"

#include "options.h"
#include "usage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_OPTIONS = T_COUNT + LIST_COUNT + 32, MAX_THREADS = 1024, PART_SIZE = 64 };

/* The tensors that are inputs, and the map that a command must run to accept each; 0: every command accepts it. */
static const struct {
    const char *option;
    enum tensor t;
    uint32_t map;
} tensor_options[] = {
    {"q", T_Q, 0},
    {"k", T_K, 0},
    {"v", T_V, 0},
    {"bias", T_BIAS, 0},
    {"mask", T_MASK, 0},
    {"bias-table", T_TABLE, 0},
    {"sink", T_SINK, 0},
    {"do", T_D_O, AG_MAP_VJP},
    {"dlse", T_D_LSE, AG_MAP_VJP},
    {"tq", T_TQ, AG_MAP_JVP},
    {"tk", T_TK, AG_MAP_JVP},
    {"tv", T_TV, AG_MAP_JVP},
    {"tbias", T_TBIAS, AG_MAP_JVP},
    {"ttable", T_TTABLE, AG_MAP_JVP},
    {"tsink", T_TSINK, AG_MAP_JVP},
    {"sq", T_SQ, AG_MAP_JVP_JVP},
    {"sk", T_SK, AG_MAP_JVP_JVP},
    {"sv", T_SV, AG_MAP_JVP_JVP},
    {"sbias", T_SBIAS, AG_MAP_JVP_JVP},
    {"stable", T_STABLE, AG_MAP_JVP_JVP},
    {"ssink", T_SSINK, AG_MAP_JVP_JVP},
    {"tdo", T_TD_O, AG_MAP_VJP_JVP},
    {"tdlse", T_TD_LSE, AG_MAP_VJP_JVP},
};
enum { TENSOR_OPTIONS = sizeof tensor_options / sizeof tensor_options[0] };

static const char *const list_options[LIST_COUNT] = {
    [LIST_BUCKETS] = "buckets",     [LIST_Q_LENGTHS] = "q-lengths", [LIST_KV_LENGTHS] = "kv-lengths",
    [LIST_Q_PACKED] = "q-packed",   [LIST_K_PACKED] = "k-packed",   [LIST_Q_OFFSETS] = "q-offsets",
    [LIST_K_OFFSETS] = "k-offsets", [LIST_SLOPES] = "alibi",
};

/* Adds one option per input and returns their number. --alibi is added by parse_options, as its value is optional. */
static size_t add_inputs(struct run *run, struct option *options)
{
    size_t count = 0;
    for (size_t n = 0; n < TENSOR_OPTIONS; n++) {
        struct input *input = &run->tensors[tensor_options[n].t];
        if (tensor_options[n].map == 0 || (run->maps & tensor_options[n].map) != 0) {
            input->option = tensor_options[n].option;
            options[count++] = (struct option){input->option, OPTION_TEXT, &input->path, 0, 0};
        }
    }
    for (enum list l = 0; l < LIST_COUNT; l++) {
        run->lists[l].option = list_options[l];
        if (l != LIST_SLOPES) {
            options[count++] = (struct option){list_options[l], OPTION_TEXT, &run->lists[l].path, 0, 0};
        }
    }
    return count;
}

/* Reads "A,B": A as the value of `first`, B as that of `second`. Both have the name of the one option on the command
 * line, for error messages. */
static int read_pair(const struct run *run, const char *text, const struct option *first,
                     const struct option *second)
{
    char part[PART_SIZE];
    const char *comma = strchr(text, ',');
    if (comma == NULL || comma == text || comma[1] == '\0' || (size_t)(comma - text) >= sizeof part) {
        return usage_error(run->command, "--%s: '%s' is not two values with a comma between", first->name,
                           text);
    }
    memcpy(part, text, (size_t)(comma - text));
    part[comma - text] = '\0';
    int status = option_set(run->command, first, part);
    return status == 0 ? option_set(run->command, second, comma + 1) : status;
}

static int read_window(struct run *run, const char *text)
{
    const struct option left = {"window", OPTION_INTEGER, &run->window_left, -1, INT64_MAX};
    const struct option right = {"window", OPTION_INTEGER, &run->window_right, -1, INT64_MAX};
    run->window = text != NULL;
    return text != NULL ? read_pair(run, text, &left, &right) : 0;
}

static int read_dropout(struct run *run, const char *text)
{
    const struct option probability = {"dropout", OPTION_NUMBER, &run->dropout, 0, 0};
    const struct option seed = {"dropout", OPTION_SEED, &run->seed, 0, 0};
    return text != NULL ? read_pair(run, text, &probability, &seed) : 0;
}

static bool given(const struct run *run, enum tensor t)
{
    return run->tensors[t].path != NULL;
}

static bool any_given(const struct run *run, enum tensor_role role, uint32_t maps)
{
    bool any = false;
    for (size_t n = 0; n < TENSOR_OPTIONS; n++) {
        enum tensor t = tensor_options[n].t;
        any =
            any || (agc_tensor_info[t].role == role && (tensor_options[n].map & maps) != 0 && given(run, t));
    }
    return any;
}

bool any_input(const struct run *run)
{
    bool any = false;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        any = any || given(run, t);
    }
    for (enum list l = 0; l < LIST_COUNT; l++) {
        any = any || run->lists[l].path != NULL;
    }
    return any;
}

static int check_required(const struct run *run)
{
    static const enum tensor required[] = {T_Q, T_K, T_V};
    for (size_t n = 0; n < 3 && (!run->is_optional || any_input(run)); n++) {
        if (!given(run, required[n])) {
            return usage_error(run->command, "--%s is missing", run->tensors[required[n]].option);
        }
    }
    if (run->out == NULL) {
        return usage_error(run->command, "--out is missing");
    }
    if (run->is_optional) {
        return 0;
    }
    if ((run->maps & AG_MAP_VJP) && !any_given(run, ROLE_COTANGENT, AG_MAP_VJP)) {
        return usage_error(run->command, "--do is missing (or --dlse)");
    }
    if ((run->maps & AG_MAP_JVP) && !any_given(run, ROLE_TANGENT, AG_MAP_JVP) &&
        !any_given(run, ROLE_COTANGENT, AG_MAP_VJP_JVP)) {
        return usage_error(run->command, "no tangent is given: --tq, --tk, --tv and so on");
    }
    return 0;
}

static int check_align(const struct run *run, const char *option, const char *align)
{
    if (strcmp(align, "bottom-right") == 0 || strcmp(align, "top-left") == 0) {
        return 0;
    }
    return usage_error(run->command, "--%s: '%s' is neither top-left nor bottom-right", option, align);
}

/* --causal=A is short for --causal --align A. */
static int read_align(struct run *run)
{
    const bool by_causal = run->causal != NULL && *run->causal != '\0';
    int status = by_causal ? check_align(run, "causal", run->causal) : 0;
    if (status == 0 && run->align != NULL) {
        status = check_align(run, "align", run->align);
    }
    if (status == 0 && by_causal && run->align != NULL && strcmp(run->causal, run->align) != 0) {
        status = usage_error(run->command, "--causal=%s and --align %s contradict each other", run->causal,
                             run->align);
    }
    if (by_causal) {
        run->align = run->causal;
    }
    run->align = run->align != NULL ? run->align : "top-left";
    return status;
}

/* A tangent needs its variable. */
static int check_tangent(const struct run *run, enum tensor tangent, enum tensor x)
{
    if (!given(run, tangent) || given(run, x)) {
        return 0;
    }
    return usage_error(run->command, "--%s needs --%s", run->tensors[tangent].option, run->tensors[x].option);
}

/* Refuses options that need another one that is not given. */
static int check_dependencies(const struct run *run)
{
    for (int n = 0; n < FAMILY_VARIABLES; n++) {
        const struct family *f = &agc_families[n];
        int status = check_tangent(run, f->t, f->x);
        status = status == 0 ? check_tangent(run, f->s, f->x) : status;
        if (status != 0) {
            return status;
        }
    }
    if (run->lists[LIST_BUCKETS].path != NULL && !given(run, T_TABLE)) {
        return usage_error(run->command, "--buckets needs --bias-table");
    }
    if ((run->lists[LIST_Q_PACKED].path == NULL) != (run->lists[LIST_K_PACKED].path == NULL)) {
        return usage_error(run->command, "--q-packed and --k-packed need each other");
    }
    return 0;
}

/* The name of a feature that is given as an option without an array; NULL if there is none. */
static const char *first_feature(const struct run *run, const char *window, const char *dropout)
{
    const struct {
        const char *name;
        bool given;
    } features[] = {
        {"causal", run->causal != NULL}, {"align", run->align != NULL},    {"alibi", run->alibi != NULL},
        {"window", window != NULL},      {"dropout", dropout != NULL},     {"softcap", !isnan(run->softcap)},
        {"scale", !isnan(run->scale)},   {"q-offset", run->q_offset != 0}, {"k-offset", run->k_offset != 0},
        {"invariant", run->invariant},
    };
    for (size_t n = 0; n < sizeof features / sizeof features[0]; n++) {
        if (features[n].given) {
            return features[n].name;
        }
    }
    return NULL;
}

/* Reads the alignment and the two options that are pairs, and checks all options. */
static int finish_options(struct run *run, const char *window, const char *dropout)
{
    run->feature = first_feature(run, window, dropout);
    run->softcap = isnan(run->softcap) ? 0 : run->softcap;
    int status = read_align(run);
    if (status == 0) {
        status = read_window(run, window);
    }
    if (status == 0) {
        status = read_dropout(run, dropout);
    }
    if (status == 0) {
        status = check_required(run);
    }
    if (run->alibi != NULL && *run->alibi != '\0') {
        run->lists[LIST_SLOPES].path = run->alibi;
    }
    return status == 0 ? check_dependencies(run) : status;
}

int parse_options(struct run *run, int argc, char **argv, const struct option *own, size_t own_count)
{
    const char *window = NULL, *dropout = NULL;
    const struct option others[] = {
        {"out", OPTION_TEXT, &run->out, 0, 0},
        {"causal", OPTION_OPTIONAL, &run->causal, 0, 0},
        {"align", OPTION_TEXT, &run->align, 0, 0},
        {"alibi", OPTION_OPTIONAL, &run->alibi, 0, 0},
        {"window", OPTION_TEXT, &window, 0, 0},
        {"dropout", OPTION_TEXT, &dropout, 0, 0},
        {"softcap", OPTION_NUMBER, &run->softcap, 0, 0},
        {"scale", OPTION_NUMBER, &run->scale, 0, 0},
        {"q-offset", OPTION_INTEGER, &run->q_offset, INT64_MIN, INT64_MAX},
        {"k-offset", OPTION_INTEGER, &run->k_offset, INT64_MIN, INT64_MAX},
        {"threads", OPTION_INTEGER, &run->threads, 0, MAX_THREADS},
        {"backend", OPTION_TEXT, &run->backend.name, 0, 0},
        {"device", OPTION_INTEGER, &run->backend.device, 0, MAX_DEVICE},
        {"invariant", OPTION_FLAG, &run->invariant, 0, 0},
        {"help", OPTION_FLAG, &run->help, 0, 0},
    };
    struct option options[MAX_OPTIONS];
    struct positionals words = {&run->word, run->is_optional ? 1 : 0, 0};
    size_t count = add_inputs(run, options);
    memcpy(options + count, others, sizeof others);
    count += sizeof others / sizeof others[0];
    for (size_t n = 0; n < own_count; n++) {
        options[count++] = own[n];
    }
    run->scale = run->softcap = NAN; /* not given */
    run->backend.device = -1;
    int status = options_parse(argc, argv, options, count, &words);
    return status == 0 && !run->help ? finish_options(run, window, dropout) : status;
}
