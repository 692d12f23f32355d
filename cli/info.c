/* `attngrad info`: what the library is and what it runs on. */
#include "attngrad.h"
#include "commands.h"
#include "json.h"
#include "options.h"
#include "usage.h"

#include <stdio.h>

static const char help[] = "usage: attngrad info [--json]\n"
                           "\n"
                           "Version of the library, processor, its instruction sets, number of processors\n"
                           "that may be used, backends and compiler of the build; and what plans in\n"
                           "float32 and bfloat16 choose here, ATTNGRAD_BACKEND and ATTNGRAD_ISA obeyed:\n"
                           "backend, instruction set, the format it computes in.\n"
                           "\n"
                           "options:\n"
                           "      --json    the same as one JSON object\n"
                           "  -h, --help    this text\n";

struct choice {
    char text[160];
};

/* What a plan of this dtype chooses for a problem that is not tiny, or why there is no plan. */
static struct choice choice_of(const char *dtype)
{
    struct choice choice;
    char problem_text[32];
    ag_plan *plan = NULL;
    ag_problem problem = AG_PROBLEM_INIT;
    ag_plan_info info = {.struct_size = sizeof info};
    snprintf(problem_text, sizeof problem_text, "q64 k64 d64 %s", dtype);
    if (ag_problem_parse(problem_text, &problem) != AG_OK || ag_plan_create(&plan, &problem, NULL) != AG_OK ||
        ag_plan_info_get(plan, &info) != AG_OK) {
        snprintf(choice.text, sizeof choice.text, "none: %s", ag_last_message());
    } else {
        snprintf(choice.text, sizeof choice.text, "%s%s%s, float%d inside", info.backend_name,
                 info.isa_name[0] ? ", " : "", info.isa_name, info.compute_dtype == AG_F64 ? 64 : 32);
    }
    ag_plan_destroy(plan);
    return choice;
}

static void print_text(const ag_info *info)
{
    printf("version           %s\n", info->version);
    printf("processor         %s\n", info->cpu);
    printf("instruction sets  %s\n", info->isa);
    printf("processors        %d\n", (int)info->threads);
    printf("backends          %s\n", info->backends);
    printf("compiler          %s\n", info->compiler);
    printf("plan in float32   %s\n", choice_of("f32").text);
    printf("plan in bfloat16  %s\n", choice_of("bf16").text);
}

static void print_json(const ag_info *info)
{
    struct json json = emit_to(stdout);
    emit_begin_object(&json, NULL);
    emit_string(&json, "version", info->version);
    emit_string(&json, "processor", info->cpu);
    emit_string(&json, "instruction_sets", info->isa);
    emit_integer(&json, "processors", info->threads);
    emit_string(&json, "backends", info->backends);
    emit_string(&json, "compiler", info->compiler);
    emit_string(&json, "plan_f32", choice_of("f32").text);
    emit_string(&json, "plan_bf16", choice_of("bf16").text);
    emit_end(&json);
}

int info_main(int argc, char **argv)
{
    bool want_json;
    int status;
    if (!options_json(argc, argv, help, &want_json, &status)) {
        return status;
    }
    ag_info info = {.struct_size = sizeof info};
    if (ag_info_get(&info) != AG_OK) {
        return run_error("info", "%s", ag_last_message());
    }
    if (want_json) {
        print_json(&info);
    } else {
        print_text(&info);
    }
    return EXIT_PASS;
}
