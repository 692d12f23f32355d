/* Parses the options of every command. */
#include "options.h"

#include "usage.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 64, NAME_SIZE = 64 };

/* Finds the option that arg names, up to a '='. *value points to the text after the '=', or is NULL. */
static const struct option *find(const char *arg, const struct option *options, size_t count,
                                 const char **value)
{
    const char *name = strcmp(arg, "-h") == 0 ? "help" : arg + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    *value = equals ? equals + 1 : NULL;
    /* -h is the only option with one dash */
    if (name == arg + 2 && strncmp(arg, "--", 2) != 0) {
        return NULL;
    }
    for (size_t n = 0; n < count; n++) {
        if (strlen(options[n].name) == length && strncmp(options[n].name, name, length) == 0) {
            return &options[n];
        }
    }
    return NULL;
}

static int unknown(const char *command, const char *arg, const struct option *options, size_t count)
{
    const char *names[MAX_OPTIONS];
    char word[NAME_SIZE];
    size_t length = strcspn(arg, "=");
    length = length < sizeof word ? length : sizeof word - 1;
    memcpy(word, arg, length);
    word[length] = '\0';
    for (size_t n = 0; n < count && n < MAX_OPTIONS; n++) {
        names[n] = options[n].name;
    }
    const char *near =
        nearest_name(word + strspn(word, "-"), names, count < MAX_OPTIONS ? count : MAX_OPTIONS);
    if (near) {
        return usage_error(command, "unknown option '%s' (did you mean '--%s'?)", word, near);
    }
    return usage_error(command, "unknown option '%s'", word);
}

static int read_integer(const char *command, const struct option *option, const char *text)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    /* strtoll also takes leading blanks and '+' */
    if (end == text || *end != '\0' || text[strspn(text, "-0123456789")] != '\0') {
        return usage_error(command, "--%s: '%s' is not an integer", option->name, text);
    }
    if (errno == ERANGE || number < option->min || number > option->max) {
        return usage_error(command, "--%s: %s is not between %" PRId64 " and %" PRId64, option->name, text,
                           option->min, option->max);
    }
    *(int64_t *)option->value = number;
    return 0;
}

static int read_seed(const char *command, const struct option *option, const char *text)
{
    char *end;
    errno = 0;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    unsigned long long number = strtoull(text, &end, hex ? 16 : 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0') {
        return usage_error(command, "--%s: '%s' is not a non-negative integer", option->name, text);
    }
    if (errno == ERANGE) {
        return usage_error(command, "--%s: %s does not fit into 64 bits", option->name, text);
    }
    *(uint64_t *)option->value = number;
    return 0;
}

static int read_number(const char *command, const struct option *option, const char *text)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(number)) {
        return usage_error(command, "--%s: '%s' is not a finite number", option->name, text);
    }
    *(double *)option->value = number;
    return 0;
}

int option_set(const char *command, const struct option *option, const char *text)
{
    switch (option->kind) {
    case OPTION_INTEGER: return read_integer(command, option, text);
    case OPTION_SEED: return read_seed(command, option, text);
    case OPTION_NUMBER: return read_number(command, option, text);
    case OPTION_TEXT:
    case OPTION_OPTIONAL: *(const char **)option->value = text; return 0;
    case OPTION_FLAG: break;
    }
    *(bool *)option->value = true;
    return 0;
}

/* Sets one option, whose value is `value` or, if that is NULL, argv[1]. *used becomes 2 in the latter case. */
static int take_option(const char *command, char **argv, const struct option *option, const char *value,
                       int *used)
{
    if (option->kind == OPTION_FLAG) {
        if (value) {
            return usage_error(command, "--%s takes no value", option->name);
        }
        return option_set(command, option, "");
    }
    if (!value && option->kind == OPTION_OPTIONAL) {
        return option_set(command, option, "");
    }
    if (!value) {
        value = argv[1];
        *used = 2;
    }
    if (!value || *value == '\0') {
        return usage_error(command, "--%s needs a value", option->name);
    }
    return option_set(command, option, value);
}

static int add_positional(const char *command, struct positionals *positionals, const char *word)
{
    if (positionals->count == positionals->capacity) {
        return usage_error(command, "unexpected argument '%s'", word);
    }
    positionals->words[positionals->count++] = word;
    return 0;
}

int options_parse(int argc, char **argv, const struct option *options, size_t count,
                  struct positionals *positionals)
{
    const char *command = argv[0];
    bool only_positionals = false;
    int status = 0;
    for (int a = 1, used = 1; a < argc && status == 0; a += used) {
        const char *value;
        used = 1;
        if (only_positionals || argv[a][0] != '-' || argv[a][1] == '\0') {
            status = add_positional(command, positionals, argv[a]);
        } else if (strcmp(argv[a], "--") == 0) {
            only_positionals = true;
        } else {
            const struct option *option = find(argv[a], options, count, &value);
            status = option ? take_option(command, argv + a, option, value, &used)
                            : unknown(command, argv[a], options, count);
        }
    }
    return status;
}

bool options_json(int argc, char **argv, const char *help, bool *json, int *status)
{
    bool want_help = false;
    const struct option options[] = {{"help", OPTION_FLAG, &want_help, 0, 0},
                                     {"json", OPTION_FLAG, json, 0, 0}};
    struct positionals none = {NULL, 0, 0};
    *json = false;
    *status = options_parse(argc, argv, options, 2, &none);
    if (*status == 0 && want_help) {
        fputs(help, stdout);
    }
    return *status == 0 && !want_help;
}
