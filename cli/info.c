/* `attngrad info`: what the library is and what it runs on. */
#include "attngrad.h"
#include "backend.h"
#include "commands.h"
#include "json.h"
#include "options.h"
#include "usage.h"

#include <stdio.h>

static const char help[] =
    "usage: attngrad info [option]...\n"
    "\n"
    "Version of the library, processor, its instruction sets, number of processors\n"
    "that may be used, backends and compiler of the build, the GPUs that backend\n"
    "cuda can use, or why there are none; and what plans in float32 and bfloat16\n"
    "choose here, ATTNGRAD_BACKEND and ATTNGRAD_ISA obeyed: backend, instruction\n"
    "set, the format it computes in.\n"
    "\n"
    "options:\n"
    "      --backend B  the plans are of cpu, reference or cuda; default:\n"
    "                   ATTNGRAD_BACKEND, else the library chooses, never cuda\n"
    "      --device N   the number of the plans' GPU, with cuda; default 0\n"
    "      --json       the same as one JSON object, and the plans' threads and tiles\n"
    "  -h, --help       this text\n";

/* What a plan of this dtype chooses for a problem that is not tiny. Returns false if there is no plan:
 * ag_last_message() then says why. */
static bool choice_of(const char *dtype, const ag_options *options, ag_plan_info *info)
{
    char problem_text[32];
    ag_plan *plan = NULL;
    ag_problem problem = AG_PROBLEM_INIT;
    *info = (ag_plan_info){.struct_size = sizeof *info};
    snprintf(problem_text, sizeof problem_text, "q64 k64 d64 %s", dtype);
    const bool made = ag_problem_parse(problem_text, &problem) == AG_OK &&
                      ag_plan_create(&plan, &problem, options) == AG_OK &&
                      ag_plan_info_get(plan, info) == AG_OK;
    ag_plan_destroy(plan);
    return made;
}

static void print_choice(const char *title, const char *dtype, const ag_options *options)
{
    ag_plan_info info;
    if (choice_of(dtype, options, &info)) {
        printf("%s%s%s%s, float%d inside\n", title, info.backend_name, info.isa_name[0] ? ", " : "",
               info.isa_name, info.compute_dtype == AG_F64 ? 64 : 32);
    } else {
        printf("%snone: %s\n", title, ag_last_message());
    }
}

/* An object with the fields of ag_plan_info; if there is no plan, with the reason and the field at fault. */
static void emit_choice(struct json *json, const char *key, const char *dtype, const ag_options *options)
{
    ag_plan_info info;
    emit_begin_object(json, key);
    if (choice_of(dtype, options, &info)) {
        emit_string(json, "backend", info.backend_name);
        emit_string(json, "isa", info.isa_name);
        emit_integer(json, "threads", info.threads);
        emit_integer(json, "tile_queries", info.tile_queries);
        emit_integer(json, "tile_keys", info.tile_keys);
        emit_string(json, "compute_dtype", ag_dtype_name(info.compute_dtype));
        emit_bool(json, "deterministic", info.deterministic != 0);
    } else {
        emit_string(json, "refused", ag_last_message());
        emit_string(json, "field", ag_last_field());
    }
    emit_end(json);
}

/* Why this library or machine has no device. */
static const char *why_no_devices(void)
{
    ag_plan *plan = NULL;
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CUDA;
    const bool made = ag_problem_parse("q64 d64 f32", &problem) == AG_OK &&
                      ag_plan_create(&plan, &problem, &options) == AG_OK;
    ag_plan_destroy(plan);
    return made ? "" : ag_last_message();
}

static void print_text(const ag_info *info, const ag_options *options)
{
    printf("version           %s\n", info->version);
    printf("processor         %s\n", info->cpu);
    printf("instruction sets  %s\n", info->isa);
    printf("processors        %d\n", (int)info->threads);
    printf("backends          %s\n", info->backends);
    printf("compiler          %s\n", info->compiler);
    if (info->devices[0] != '\0') {
        printf("devices           %s\n", info->devices);
    } else {
        printf("devices           none: %s\n", why_no_devices());
    }
    print_choice("plan in float32   ", "f32", options);
    print_choice("plan in bfloat16  ", "bf16", options);
}

static void print_json(const ag_info *info, const ag_options *options)
{
    struct json json = emit_to(stdout);
    emit_begin_object(&json, NULL);
    emit_string(&json, "version", info->version);
    emit_string(&json, "processor", info->cpu);
    emit_string(&json, "instruction_sets", info->isa);
    emit_integer(&json, "processors", info->threads);
    emit_string(&json, "backends", info->backends);
    emit_string(&json, "compiler", info->compiler);
    emit_string(&json, "devices", info->devices);
    if (info->devices[0] == '\0') {
        emit_string(&json, "no_devices", why_no_devices());
    }
    emit_choice(&json, "plan_f32", "f32", options);
    emit_choice(&json, "plan_bf16", "bf16", options);
    emit_end(&json);
}

int info_main(int argc, char **argv)
{
    bool want_help = false, want_json = false;
    struct backend_choice backend = {NULL, -1};
    const struct option options[] = {{"help", OPTION_FLAG, &want_help, 0, 0},
                                     {"json", OPTION_FLAG, &want_json, 0, 0},
                                     {"backend", OPTION_TEXT, &backend.name, 0, 0},
                                     {"device", OPTION_INTEGER, &backend.device, 0, MAX_DEVICE}};
    struct positionals none = {NULL, 0, 0};
    ag_options plan = AG_OPTIONS_INIT;
    int status = options_parse(argc, argv, options, sizeof options / sizeof options[0], &none);
    if (status == 0 && want_help) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    if (status == 0) {
        status = choose_backend("info", &backend, &plan);
    }
    if (status != 0) {
        return status;
    }
    ag_info info = {.struct_size = sizeof info};
    if (ag_info_get(&info) != AG_OK) {
        return run_error("info", "%s", ag_last_message());
    }
    if (want_json) {
        print_json(&info, &plan);
    } else {
        print_text(&info, &plan);
    }
    return EXIT_PASS;
}
