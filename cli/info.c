/* `attngrad info`: what the library is and what it runs on. */
#include "attngrad.h"
#include "commands.h"
#include "json.h"
#include "options.h"
#include "usage.h"

#include <stdio.h>

static const char help[] = "usage: attngrad info [--json]\n"
                           "\n"
                           "Version of the library, processor, its instruction sets, threads that a plan\n"
                           "uses by default, backends and compiler of the build.\n"
                           "\n"
                           "options:\n"
                           "      --json    the same as one JSON object\n"
                           "  -h, --help    this text\n";

static void print_text(const ag_info *info)
{
    printf("version           %s\n", info->version);
    printf("processor         %s\n", info->cpu);
    printf("instruction sets  %s\n", info->isa);
    printf("threads           %d\n", (int)info->threads);
    printf("backends          %s\n", info->backends);
    printf("compiler          %s\n", info->compiler);
}

static void print_json(const ag_info *info)
{
    struct json json = emit_to(stdout);
    emit_begin_object(&json, NULL);
    emit_string(&json, "version", info->version);
    emit_string(&json, "processor", info->cpu);
    emit_string(&json, "instruction_sets", info->isa);
    emit_integer(&json, "threads", info->threads);
    emit_string(&json, "backends", info->backends);
    emit_string(&json, "compiler", info->compiler);
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
