/* `attngrad sample`: continues a prompt with the model of a checkpoint, byte by byte. Positions are relative,
 * so the context is a window that slides over the text. As long as all of the text is in the window, keys and
 * values are cached (model_cache.h). Once the window slides, its first byte changes with every step; every
 * row depends on it, so all rows are computed again. */
#define _XOPEN_SOURCE 700
#include "alloc.h"
#include "bar.h"
#include "commands.h"
#include "model_cache.h"
#include "options.h"
#include "check/rng.h"
#include "train.h"
#include "usage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_LENGTH = 200, RECALL_LENGTH = 1, MAX_LENGTH = 100000000, MAX_COUNT = 10000 };

static const char help[] = "usage: attngrad sample PROMPT [OPTION]...\n"
                           "\n"
                           "Continues a prompt with the model of a checkpoint that 'attngrad train' wrote.\n"
                           "A model of the recall task answers a key: sample kQbTaCb should give T.\n"
                           "\n"
                           "options:\n"
                           "      --model F          the checkpoint (model.safetensors)\n"
                           "      --length N         bytes to add (200; for the recall task 1)\n"
                           "      --count N          continuations of the same prompt (1)\n"
                           "      --temperature T    of the choice; 0 takes the likeliest byte (0.8)\n"
                           "      --seed S           of the choice (1)\n"
                           "      --threads T        default: ATTNGRAD_THREADS, else one per processor;\n"
                           "                         gives the same bytes\n"
                           "  -h, --help             this text\n"
                           "\n"
                           "exit codes: 0 done, 1 the output failed, 2 wrong arguments or files\n";

struct sample {
    const char *prompt, *model;
    int64_t length, count, threads;
    double temperature;
    uint64_t seed;
    bool help;
};

static int read_options(struct sample *s, int argc, char **argv)
{
    *s = (struct sample){
        .model = "model.safetensors", .length = -1, .count = 1, .temperature = 0.8, .seed = 1};
    const struct option options[] = {
        {"model", OPTION_TEXT, &s->model, 0, 0},
        {"length", OPTION_INTEGER, &s->length, 1, MAX_LENGTH},
        {"count", OPTION_INTEGER, &s->count, 1, MAX_COUNT},
        {"temperature", OPTION_NUMBER, &s->temperature, 0, 0},
        {"seed", OPTION_SEED, &s->seed, 0, 0},
        {"threads", OPTION_INTEGER, &s->threads, 0, MAX_THREADS},
        {"help", OPTION_FLAG, &s->help, 0, 0},
    };
    struct positionals prompts = {&s->prompt, 1, 0};
    int status = options_parse(argc, argv, options, sizeof options / sizeof options[0], &prompts);
    if (status != 0 || s->help) {
        return status;
    }
    if (s->prompt == NULL || *s->prompt == '\0') {
        return usage_error("sample", "no prompt given");
    }
    if (s->temperature < 0) {
        return usage_error("sample", "--temperature: %g is less than 0", s->temperature);
    }
    return 0;
}

/* Returns a byte with probability proportional to p^(1 / temperature). */
static unsigned char choose(const float *p, double temperature, struct rng *r)
{
    double weights[MODEL_VOCABULARY], sum = 0;
    int best = 0;
    for (int v = 0; v < MODEL_VOCABULARY; v++) {
        best = p[v] > p[best] ? v : best;
    }
    for (int v = 0; v < MODEL_VOCABULARY; v++) {
        weights[v] = temperature > 0 ? pow((double)p[v] / (double)p[best], 1 / temperature) : v == best;
        sum += weights[v];
    }
    double rest = agc_rng_uniform(r) * sum;
    for (int v = 0; v < MODEL_VOCABULARY; v++) {
        rest -= weights[v];
        if (rest < 0) {
            return (unsigned char)v;
        }
    }
    return (unsigned char)best; /* reached only if rounding made the sum of the weights smaller */
}

/* What is needed to write one continuation. */
struct writer {
    struct model *model;
    struct model_cache cache;
    struct model_batch batch;
    unsigned char *text;
    struct counter counter;
};

/* Predicts text[length] from the context bytes before it. Logits are computed only for rows that have a
 * target, so the last row gets one, 0, whose value does not matter. */
static ag_status predict_window(struct writer *writer, int64_t length)
{
    const int64_t context = writer->model->shape.context;
    struct model_score score;
    memcpy(writer->batch.tokens, writer->text + length - context, (size_t)context);
    for (int64_t i = 0; i < context; i++) {
        writer->batch.targets[i] = i == context - 1 ? 0 : -1;
    }
    return model_forward(writer->model, &writer->batch, &score);
}

/* Computes the probabilities of text[length], given the bytes before it, in the first row of the logits. */
static ag_status predict(struct writer *writer, int64_t length)
{
    ag_status status = AG_OK;
    if (length > writer->model->shape.context) {
        return predict_window(writer, length);
    }
    while (writer->cache.length < length && status == AG_OK) {
        status = model_cache_add(&writer->cache, writer->model, writer->text[writer->cache.length]);
    }
    model_cache_predict(&writer->cache, writer->model);
    return status;
}

/* Prints a byte at once, so that the reader sees it before the next one is computed, and a pipe that nobody reads any
 * more ends the program. On a terminal control characters except line ends and tabs become '?'. Returns false if the
 * output failed; close_output in main.c says why. */
static bool print_byte(unsigned char byte, bool terminal)
{
    const bool control = (byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f;
    putchar(terminal && control ? '?' : byte);
    return fflush(stdout) == 0;
}

/* Shows a bar only if standard output is no terminal, which shows the text itself. *printed becomes false if the output
 * failed. */
static ag_status write_one(const struct sample *s, struct writer *writer, int64_t index, bool *printed)
{
    const int64_t prompt_length = (int64_t)strlen(s->prompt), end = prompt_length + s->length;
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    ag_status status = AG_OK;
    struct rng r;
    agc_rng_init(&r, s->seed, (uint64_t)index);
    memcpy(writer->text, s->prompt, (size_t)prompt_length);
    writer->cache.length = 0;
    for (int64_t n = 0; n < end && status == AG_OK && *printed; n++) {
        if (n >= prompt_length) {
            status = predict(writer, n);
            writer->text[n] = choose(writer->model->logits, s->temperature, &r);
        }
        *printed = status != AG_OK || print_byte(writer->text[n], terminal);
        if (!terminal && n >= prompt_length) {
            counter_step(&writer->counter, index * s->length + n - prompt_length + 1);
        }
    }
    counter_clear(&writer->counter);
    if (status == AG_OK && *printed) {
        *printed = print_byte('\n', terminal);
    }
    return status;
}

static int write_all(const struct sample *s, struct model *model)
{
    struct writer writer = {.model = model};
    bool printed = true;
    ag_status status = model_cache_create(&writer.cache, model, model->threads);
    counter_begin(&writer.counter, s->count * s->length);
    writer.text = alloc_or_exit("the text", (int64_t)strlen(s->prompt) + s->length, 1);
    writer.batch.tokens = alloc_or_exit("a window of bytes", model->rows, sizeof *writer.batch.tokens);
    writer.batch.targets = alloc_or_exit("a window of bytes", model->rows, sizeof *writer.batch.targets);
    for (int64_t n = 0; n < s->count && status == AG_OK && printed; n++) {
        status = write_one(s, &writer, n, &printed);
    }
    free(writer.batch.tokens);
    free(writer.batch.targets);
    free(writer.text);
    model_cache_destroy(&writer.cache);
    return status == AG_OK ? EXIT_PASS : run_error("sample", "%s", ag_last_message());
}

static int sample_from(struct sample *s, const struct checkpoint *c)
{
    struct model model;
    struct model_shape shape = c->settings.shape;
    shape.batch = 1;
    if (s->length < 0) {
        s->length = c->settings.text ? TEXT_LENGTH : RECALL_LENGTH;
    }
    int status = train_make_model("sample", &model, &shape, s->threads, c, false);
    if (status != EXIT_PASS) {
        return status;
    }
    status = checkpoint_read_values(c, &model);
    if (status == EXIT_PASS) {
        status = write_all(s, &model);
    }
    model_destroy(&model);
    return status;
}

int sample_main(int argc, char **argv)
{
    struct sample s;
    struct checkpoint c;
    int status = read_options(&s, argc, argv);
    if (status != EXIT_PASS) {
        return status;
    }
    if (s.help) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    status = checkpoint_open(&c, "sample", s.model);
    if (status == EXIT_PASS) {
        status = sample_from(&s, &c);
        ag_io_close(c.file);
    }
    return status;
}
