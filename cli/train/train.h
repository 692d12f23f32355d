/* `attngrad train`: the parts of a run. A function that can fail prints what is wrong and returns the exit code. The
 * files:
 *
 *     train_options      the command line, and whether it agrees with the checkpoint
 *     train_files        checks that its files differ from each other, and that old ones may be replaced
 *     train_lock         keeps a second trainer away from the model
 *     train_data         batches from a text or from the recall task
 *     train_checkpoint   writes and reads the state of a run in one .safetensors file
 *     train_model        the model of the options or of a checkpoint, if there is memory for it
 *     train_run          the loop
 *     train              the command */
#ifndef ATTNGRAD_CLI_TRAIN_H
#define ATTNGRAD_CLI_TRAIN_H

#include "model.h"

#include <attngrad_io.h>
#include <stdbool.h>

/* ---- Settings: what determines every bit of a run ---- */

struct settings {
    struct model_shape shape;
    bool text; /* trained on a text; else on the recall task */
    int64_t text_bytes;
    uint64_t text_hash;
    int64_t steps;
    double rate;
    uint64_t seed;
};

/* ---- Data ---- */

struct data {
    bool text;
    unsigned char *bytes; /* the text */
    int64_t size;
    uint64_t hash; /* FNV-1a of the bytes */
};

/* path NULL: the recall task. A text that is too short for this context is refused. */
int data_open(struct data *data, const char *path, int64_t context);
void data_close(struct data *data);

/* Fills a batch as a function of seed, index and held_out alone. held_out: from the end of the text, which is not
 * trained on; in the recall task, from random numbers that training does not use. */
struct draw {
    uint64_t seed, index;
    bool held_out;
};
void data_draw(const struct data *data, const struct model_shape *shape, struct draw draw,
               struct model_batch *batch);

/* ---- State ---- */

struct state {
    int64_t step; /* number of steps done, and so the index of the next batch */
    ag_adamw adamw;
    ag_loss_scale scale;
    float *losses; /* [step] */
};

/* ---- Checkpoints ---- */

/* Adds the checkpoint to a writer, which puts it in place when it commits. */
ag_io_status checkpoint_write(ag_io_writer *writer, const char *path, const struct settings *settings,
                              const struct state *state, const struct model *model);

/* An open checkpoint; close it with ag_io_close(file). */
struct checkpoint {
    const char *command, *path;
    ag_io_file *file;
    struct settings settings;
    struct state state; /* without losses, which are NULL */
};

int checkpoint_open(struct checkpoint *c, const char *command, const char *path);

/* Checks that the file has every tensor of a planned model, in its shape; for_training: also what is
 * needed to continue the run. */
int checkpoint_check(const struct checkpoint *c, const struct model *model, bool for_training);

/* Reads the weights and checks that all are finite. Call checkpoint_check before. */
int checkpoint_read_values(const struct checkpoint *c, struct model *model);

/* Reads the counts, the optimiser's moments and the losses, but not the weights. state->losses must have room
 * for all steps of the settings. */
int checkpoint_read_state(const struct checkpoint *c, struct model *model, struct state *state);

/* ---- The model ---- */

/* Makes a model of this shape: with the options of the command line if c is NULL, else for the checkpoint.
 * Allocates memory only if the checkpoint has all tensors and the machine has enough. */
int train_make_model(const char *command, struct model *model, const struct model_shape *shape,
                     int64_t threads, const struct checkpoint *c, bool for_training);

/* ---- The lock of the model ---- */

struct train_lock {
    const char *model;
    int file, folder; /* file descriptors that hold a lock, or -1 */
};

/* Locks the model, if it exists; refuses if another process trains it. */
int train_lock_begin(struct train_lock *lock, const char *model);

/* Around the moment in which a checkpoint is put in place: before it, refuses if another process has begun to train the
 * model; if not, train_lock_after_save must follow. */
int train_lock_before_save(struct train_lock *lock);
void train_lock_after_save(struct train_lock *lock);

void train_lock_end(struct train_lock *lock);

/* ---- The command line ---- */

struct train {
    struct settings settings; /* as given on the command line; -1, NaN, dtype 0: not given */
    bool seed_given;
    const char *text, *model, *plot;
    int64_t threads, save_every, log_every;
    bool resume, overwrite, help;
    struct train_lock lock;
};

/* train_options reads the command line; train_fill_settings fills in what it did not give, from a checkpoint or,
 * if c is NULL, the defaults. */
int train_options(struct train *train, int argc, char **argv);
int train_fill_settings(struct train *train, const struct checkpoint *c);
int shape_check(const char *command, const struct model_shape *shape);

/* Checks that no two of text, model and plot are the same file and that, without --resume and --overwrite,
 * the last two do not exist. */
int train_files(const struct train *train);
char *train_folder_of(const char *path); /* to be freed by free() */

/* The limits of a model's sizes, for options and checkpoints. */
enum {
    MAX_HEADS = 256,
    MAX_LAYERS = 256,
    MAX_WIDTH = 16384,
    MAX_HEAD_CHANNELS = 512,
    MAX_CONTEXT = 65536,
    MAX_BATCH = 65536,
    MAX_STEPS = 100000000,
    MAX_THREADS = 1024
};

/* ---- The loop ---- */

int train_run(struct train *train, const struct data *data, struct model *model, struct state *state);

#endif
