/* The training loop: batch, loss, gradients, step, progress and checkpoints. A signal ends it after a whole
 * step, with a checkpoint; a second signal also cancels the writing of that checkpoint. During the test at
 * the end, when nothing is left to be saved, the first signal ends the program. */
#include "train.h"

#include "alloc.h"
#include "bar.h"
#include "plot.h"
#include "progress.h"
#include "signals.h"
#include "usage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARMUP_SHARE = 10, MAX_WARMUP = 100, TITLE_SIZE = 160 };

/* The test at the end uses TEST_SEQUENCES sequences, but no more than TEST_BYTES bytes, and at least one batch. */
enum { TEST_SEQUENCES = 512, TEST_BYTES = 32768 };

struct loop {
    struct train *train;
    const struct data *data;
    struct model *model;
    struct state *state;
    struct model_batch batch;
    struct progress progress;
};

static int stopped_twice(void *ctx)
{
    (void)ctx;
    return signals_held() > 1;
}

/* ---- One step ---- */

/* The learning rate rises for a tenth of the steps, at most 100, then falls along a cosine to a tenth of --rate. */
static ag_status rate_of(const struct settings *s, int64_t step, double *rate)
{
    ag_schedule schedule = AG_SCHEDULE_INIT;
    schedule.kind = AG_SCHEDULE_COSINE;
    schedule.rate = s->rate;
    schedule.final_rate = s->rate / 10;
    schedule.steps = s->steps;
    schedule.warmup = s->steps / WARMUP_SHARE < MAX_WARMUP ? s->steps / WARMUP_SHARE : MAX_WARMUP;
    return ag_schedule_rate(&schedule, step, rate);
}

static ag_status update(struct loop *loop, ag_step_report *report)
{
    struct state *state = loop->state;
    ag_adamw *adamw = &state->adamw;
    adamw->beta2 = 0.99;
    adamw->weight_decay = 0.01;
    adamw->max_norm = 1;
    adamw->loss_scale = state->scale.scale;
    ag_status status = rate_of(&loop->train->settings, state->step, &adamw->rate);
    if (status == AG_OK) {
        status = ag_adamw_step(adamw, loop->model->params, loop->model->n_params, report);
    }
    if (status == AG_OK && loop->model->shape.dtype == AG_F16) {
        status = ag_loss_scale_update(&state->scale, report->applied);
    }
    return status;
}

/* Float16 may skip a step and go on with a smaller loss scale; in the other dtypes a result that is not
 * finite ends the run. */
static int check_step(const struct loop *loop, const ag_step_report *report)
{
    const bool scaled = loop->model->shape.dtype == AG_F16 && loop->state->scale.scale >= 1;
    if (report->applied || scaled) {
        return EXIT_PASS;
    }
    return run_error(
        "train",
        "step %lld: the gradients, or the weights after it, are not finite; a smaller --rate may help",
        (long long)loop->state->step);
}

static int make_step(struct loop *loop)
{
    struct state *state = loop->state;
    const struct settings *s = &loop->train->settings;
    const struct draw draw = {s->seed, (uint64_t)state->step, false};
    ag_step_report report = AG_STEP_REPORT_INIT;
    struct model_score score;
    data_draw(loop->data, &s->shape, draw, &loop->batch);
    ag_status status = model_forward(loop->model, &loop->batch, &score);
    if (status == AG_OK) {
        status = model_backward(loop->model, &loop->batch, state->scale.scale);
    }
    if (status == AG_OK) {
        status = update(loop, &report);
    }
    if (status != AG_OK) {
        return run_error("train", "%s", ag_last_message());
    }
    const double correct = s->text ? NAN : (double)score.correct / (double)score.targets;
    state->losses[state->step++] = (float)score.loss;
    progress_step(&loop->progress, state->step, (struct progress_values){score.loss, correct});
    return check_step(loop, &report);
}

/* ---- Saving ---- */

static ag_io_status write_curve(const struct loop *loop, ag_io_writer *writer)
{
    const struct settings *s = &loop->train->settings;
    char title[TITLE_SIZE];
    size_t size = 0;
    snprintf(title, sizeof title, "%s: layers %lld, heads %lld, width %lld, context %lld, batch %lld, %s",
             s->text ? "text" : "recall", (long long)s->shape.layers, (long long)s->shape.heads,
             (long long)s->shape.width, (long long)s->shape.context, (long long)s->shape.batch,
             ag_dtype_name(s->shape.dtype));
    char *text = plot_losses(title, loop->state->losses, loop->state->step, &size);
    const ag_io_status status =
        text != NULL ? ag_io_write(writer, loop->train->plot, text, size) : AG_IO_NO_MEMORY;
    free(text);
    return status;
}

/* Writes the checkpoint, if `checkpoint` is set, and the plot, as files that are not yet in their places. */
static ag_io_status write_files(const struct loop *loop, ag_io_writer *writer, bool checkpoint)
{
    const struct train *train = loop->train;
    ag_io_status status = AG_IO_OK;
    if (checkpoint) {
        status = checkpoint_write(writer, train->model, &train->settings, loop->state, loop->model);
    }
    return status == AG_IO_OK && train->plot != NULL ? write_curve(loop, writer) : status;
}

static int save_error(ag_io_status status)
{
    return run_error("train", "%s", status == AG_IO_NO_MEMORY ? "out of memory" : ag_io_last_message());
}

/* Puts both files in place. */
static int commit(struct train_lock *lock, ag_io_writer *writer)
{
    const int status = train_lock_before_save(lock);
    if (status != EXIT_PASS) {
        return status;
    }
    const ag_io_status written = ag_io_writer_commit(writer);
    train_lock_after_save(lock);
    return written == AG_IO_OK ? EXIT_PASS : save_error(written);
}

/* Saves the checkpoint, if `checkpoint` is set, and the plot; both are written before either is put in place. */
static int save(const struct loop *loop, bool checkpoint)
{
    ag_io_writer_options options = AG_IO_WRITER_OPTIONS_INIT;
    ag_io_writer *writer;
    options.cancelled = stopped_twice;
    ag_io_status written = ag_io_writer_create(&writer, &options);
    if (written == AG_IO_OK) {
        written = write_files(loop, writer, checkpoint);
    }
    const int status = written == AG_IO_OK ? commit(&loop->train->lock, writer) : save_error(written);
    ag_io_writer_destroy(writer);
    return status;
}

static int make_steps(struct loop *loop)
{
    const int64_t steps = loop->train->settings.steps, every = loop->train->save_every;
    /* Saves before the first step, so that a run that cannot write fails now, and one that is killed during
     * that step leaves a checkpoint. */
    int status = save(loop, loop->state->step < steps);
    bool stop = false;
    while (status == EXIT_PASS && loop->state->step < steps && !stop) {
        signals_set_second_fatal(true);
        status = make_step(loop);
        signals_set_second_fatal(false);
        /* Read once: a later signal counts for the next step, so that no signal ends a run without its checkpoint. */
        stop = signals_held() > 0;
        if (status == EXIT_PASS && (stop || loop->state->step == steps || loop->state->step % every == 0)) {
            status = save(loop, true);
        }
    }
    return status;
}

/* ---- The end ---- */

/* Tests the model on batches that were not trained on. */
static ag_status test(struct loop *loop, struct model_score *mean)
{
    const struct settings *s = &loop->train->settings;
    const int64_t max = TEST_BYTES / s->shape.context,
                  sequences = max < TEST_SEQUENCES ? max : TEST_SEQUENCES;
    const int64_t batches =
        sequences > s->shape.batch ? (sequences + s->shape.batch - 1) / s->shape.batch : 1;
    ag_status status = AG_OK;
    *mean = (struct model_score){.loss = 0};
    ticker_begin(batches);
    for (int64_t n = 0; n < batches && status == AG_OK; n++) {
        struct model_score score;
        ticker_part(n, "test");
        data_draw(loop->data, &s->shape, (struct draw){s->seed, (uint64_t)n, true}, &loop->batch);
        status = model_forward(loop->model, &loop->batch, &score);
        mean->loss += score.loss / (double)batches;
        mean->targets += score.targets;
        mean->correct += score.correct;
    }
    ticker_end();
    return status;
}

static int report(struct loop *loop)
{
    const struct state *state = loop->state;
    struct model_score mean;
    if (test(loop, &mean) != AG_OK) {
        return run_error("train", "%s", ag_last_message());
    }
    if (state->scale.skipped > 0) {
        printf("steps skipped, as gradients or new weights were not finite: %lld; loss scale now %g\n",
               (long long)state->scale.skipped, state->scale.scale);
    }
    if (loop->data->text) {
        printf("text not trained on: loss %.4f, %.3f bits per byte\n", progress_loss(mean.loss),
               progress_loss(mean.loss) / log(2));
    } else {
        printf("new sequences: loss %.4f, recall %.2f%% (%lld of %lld)\n", progress_loss(mean.loss),
               100 * (double)mean.correct / (double)mean.targets, (long long)mean.correct,
               (long long)mean.targets);
    }
    printf("%s: step %lld of %lld\n", loop->train->model, (long long)state->step,
           (long long)loop->train->settings.steps);
    return EXIT_PASS;
}

static void print_settings(const struct loop *loop)
{
    const struct settings *s = &loop->train->settings;
    fprintf(stderr, "%s: %lld parameters; layers %lld, heads %lld, width %lld, context %lld\n",
            s->text ? loop->train->text : "recall", (long long)loop->model->count, (long long)s->shape.layers,
            (long long)s->shape.heads, (long long)s->shape.width, (long long)s->shape.context);
    fprintf(stderr, "steps %lld to %lld of batch %lld, rate %g, %s, threads %lld\n",
            (long long)loop->state->step, (long long)s->steps, (long long)s->shape.batch, s->rate,
            ag_dtype_name(s->shape.dtype), (long long)loop->model->threads);
}

int train_run(struct train *train, const struct data *data, struct model *model, struct state *state)
{
    struct loop loop = {.train = train, .data = data, .model = model, .state = state};
    loop.batch.tokens = alloc_or_exit("a batch", model->rows, sizeof *loop.batch.tokens);
    loop.batch.targets = alloc_or_exit("a batch", model->rows, sizeof *loop.batch.targets);
    loop.progress = (struct progress){.first = state->step, .steps = train->settings.steps};
    loop.progress.log_every = train->log_every;
    loop.progress.tokens = model->rows;
    print_settings(&loop);
    signals_hold();
    progress_begin(&loop.progress);
    int status = make_steps(&loop);
    progress_end(&loop.progress);
    if (signals_held() > 0 && status == EXIT_PASS) {
        fprintf(stderr, "stopped: %s holds step %lld of %lld; --resume %s\n", train->model,
                (long long)state->step, (long long)train->settings.steps,
                state->step < train->settings.steps ? "continues" : "tests it");
    }
    signals_release(); /* ends the program if a signal came */
    if (status == EXIT_PASS) {
        status = report(&loop);
    }
    free(loop.batch.tokens);
    free(loop.batch.targets);
    return status;
}
