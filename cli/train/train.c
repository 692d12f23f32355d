/* The command train: opens the files, makes the model, runs the loop, closes everything. */
#include "train.h"

#include "alloc.h"
#include "commands.h"
#include "usage.h"

#include <stdio.h>
#include <stdlib.h>

static const char help[] = "usage: attngrad train [TEXT] [OPTION]...\n"
                           "\n"
                           "Trains a small language model over bytes: an embedding, causal attention layers\n"
                           "with residuals and a learned bias by distance, an output projection; by\n"
                           "cross-entropy, with AdamW. On the file TEXT, whose last tenth is kept for the\n"
                           "test; without it on a built-in task, associative recall: pairs of a key and a\n"
                           "value, then the keys again, each to be answered by its value.\n"
                           "\n"
                           "model:\n"
                           "      --heads N         heads of a layer (4)\n"
                           "      --layers N        attention layers (2)\n"
                           "      --width N         channels, a multiple of the heads (64)\n"
                           "      --context N       bytes of a sequence (64)\n"
                           "      --dtype T         of the layers: f32, bf16 or f16; bf16 and f16 round the\n"
                           "                        float32 weights, f16 also scales the loss (f32)\n"
                           "training:\n"
                           "      --batch N         sequences of a step (16)\n"
                           "      --steps N         steps in all (1000)\n"
                           "      --rate R          learning rate after the warm-up (0.003)\n"
                           "      --seed S          of weights and batches (1)\n"
                           "      --threads T       default: ATTNGRAD_THREADS, else one per processor;\n"
                           "                        gives the same bits\n"
                           "files:\n"
                           "      --model F         the checkpoint (model.safetensors)\n"
                           "      --save-every N    steps between checkpoints (100); Ctrl-C writes one too\n"
                           "      --resume          continue from the checkpoint, bit for bit; --steps and\n"
                           "                        --rate may change\n"
                           "      --overwrite       start anew, replacing the checkpoint and the plot\n"
                           "      --plot F          draw the loss curve as SVG, with every checkpoint\n"
                           "      --log-every N     steps between lines if no terminal shows a bar\n"
                           "  -h, --help            this text\n"
                           "\n"
                           "exit codes: 0 done, 1 training or output failed, 2 wrong arguments or files;\n"
                           "a signal ends it as signals do, after a checkpoint\n";

/* Copies size and hash of the text to the settings; on --resume they must be those of the checkpoint. */
static int record_text(struct train *train, const struct data *data)
{
    struct settings *s = &train->settings;
    if (train->resume && (s->text_bytes != data->size || s->text_hash != data->hash)) {
        return file_error("train", "'%s' is not the text that '%s' was trained on", train->text,
                          train->model);
    }
    s->text_bytes = data->size;
    s->text_hash = data->hash;
    return EXIT_PASS;
}

static int run_model(struct train *train, const struct data *data, const struct checkpoint *c)
{
    struct model model;
    struct state state = {.adamw = AG_ADAMW_INIT, .scale = AG_LOSS_SCALE_INIT};
    int status = train_make_model("train", &model, &train->settings.shape, train->threads, c, true);
    if (status != EXIT_PASS) {
        return status;
    }
    state.losses = alloc_or_exit("the losses", train->settings.steps, sizeof *state.losses);
    if (c == NULL) {
        state.scale.scale = train->settings.shape.dtype == AG_F16 ? state.scale.scale : 1;
        model_init(&model, train->settings.seed);
    } else {
        status = checkpoint_read_values(c, &model);
        status = status == EXIT_PASS ? checkpoint_read_state(c, &model, &state) : status;
    }
    if (status == EXIT_PASS) {
        status = train_run(train, data, &model, &state);
    }
    free(state.losses);
    model_destroy(&model);
    return status;
}

static int run(struct train *train, const struct checkpoint *c)
{
    struct data data;
    int status = train_fill_settings(train, c);
    if (status == EXIT_PASS && c != NULL && c->state.step > train->settings.steps) {
        status = usage_error("train", "'%s' is at step %lld already: --steps %lld is less", train->model,
                             (long long)c->state.step, (long long)train->settings.steps);
    }
    if (status == EXIT_PASS) {
        status = data_open(&data, train->text, train->settings.shape.context);
    }
    if (status != EXIT_PASS) {
        return status;
    }
    status = record_text(train, &data);
    if (status == EXIT_PASS) {
        status = run_model(train, &data, c);
    }
    data_close(&data);
    return status;
}

static int resume(struct train *train)
{
    struct checkpoint c;
    int status = checkpoint_open(&c, "train", train->model);
    if (status == EXIT_PASS) {
        status = run(train, &c);
        ag_io_close(c.file);
    }
    return status;
}

int train_main(int argc, char **argv)
{
    struct train train;
    int status = train_options(&train, argc, argv);
    if (status != EXIT_PASS) {
        return status;
    }
    if (train.help) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    status = train_files(&train);
    if (status != EXIT_PASS) {
        return status;
    }
    status = train_lock_begin(&train.lock, train.model);
    if (status == EXIT_PASS) {
        status = train.resume ? resume(&train) : run(&train, NULL);
    }
    train_lock_end(&train.lock);
    return status;
}
