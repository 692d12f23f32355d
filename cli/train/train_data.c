/* Makes the batches. Each is a function of the seed and its index alone, so that a resumed run needs no
 * state of a random number generator, only the index of its next step. */
#define _XOPEN_SOURCE 700
#include "train.h"

#include "alloc.h"
#include "bar.h"
#include "check/memory.h"
#include "check/rng.h"
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The last 1 / HELD_OUT of a text is not trained on. */
enum { HELD_OUT = 10, KEYS = 26, VALUES = 26 };

/* A text is read in pieces of PIECE bytes; one of ANNOUNCED bytes or more is announced on standard error. */
enum { PIECE = 1 << 24, ANNOUNCED = 1 << 26, MEBIBYTE_SHIFT = 20 };

/* ---- Text ---- */

static int64_t held_out_bytes(int64_t size)
{
    return size / HELD_OUT;
}

/* FNV-1a: its offset basis and prime. */
static uint64_t hash_of(const unsigned char *bytes, int64_t size)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int64_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* Reads the `size` bytes of a file, or fewer if it becomes shorter meanwhile, in pieces, after each of which the bar is
 * redrawn. On failure returns false, with the reason in errno. */
static bool read_all(struct data *data, int fd, int64_t size)
{
    struct counter counter;
    ssize_t got = 1;
    data->bytes = alloc_or_exit("the text", size, 1);
    counter_begin(&counter, size >> MEBIBYTE_SHIFT);
    while (got > 0 && data->size < size) {
        const int64_t left = size - data->size;
        got = read(fd, data->bytes + data->size, (size_t)(left < PIECE ? left : PIECE));
        data->size += got > 0 ? got : 0;
        counter_step(&counter, data->size >> MEBIBYTE_SHIFT);
    }
    counter_clear(&counter);
    return got >= 0;
}

/* Refuses what has no end, like a device, and what does not fit into memory; announces what takes a while. */
static int check_text(const char *path, const struct stat *about)
{
    const double size = (double)about->st_size, memory = agc_machine_memory(), gibibyte = 0x1p30;
    if (S_ISDIR(about->st_mode)) {
        return file_error("train", "cannot read '%s': %s", path, strerror(EISDIR));
    }
    if (!S_ISREG(about->st_mode)) {
        return file_error("train", "'%s' is no regular file: a text is read as a whole", path);
    }
    if (size > memory) {
        return file_error("train", "'%s' has %.1f GiB: a text is held in memory, and this machine has %.1f",
                          path, size / gibibyte, memory / gibibyte);
    }
    if (about->st_size >= ANNOUNCED) {
        fprintf(stderr, "reading '%s': %lld MiB\n", path, (long long)about->st_size >> MEBIBYTE_SHIFT);
    }
    return EXIT_PASS;
}

static int read_text(struct data *data, const char *path)
{
    struct stat about;
    const int fd =
        open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* O_NONBLOCK: a pipe without a writer opens too */
    if (fd < 0 || fstat(fd, &about) != 0) {
        return file_error("train", "cannot read '%s': %s", path, strerror(errno));
    }
    int status = check_text(path, &about);
    if (status == EXIT_PASS && !read_all(data, fd, about.st_size)) {
        status = file_error("train", "cannot read '%s': %s", path, strerror(errno));
    }
    close(fd);
    return status;
}

int data_open(struct data *data, const char *path, int64_t context)
{
    *data = (struct data){.text = path != NULL};
    if (path == NULL) {
        return EXIT_PASS;
    }
    const int64_t needed = HELD_OUT * (context + 1);
    int status = read_text(data, path);
    if (status == EXIT_PASS && data->size < needed) {
        status = file_error("train", "'%s' has %lld bytes: --context %lld needs %lld or more", path,
                            (long long)data->size, (long long)context, (long long)needed);
    }
    if (status != EXIT_PASS) {
        data_close(data);
        return status;
    }
    data->hash = hash_of(data->bytes, data->size);
    return EXIT_PASS;
}

void data_close(struct data *data)
{
    free(data->bytes);
    data->bytes = NULL;
}

/* Fills in a piece of the text; the target of each byte is the next byte. */
static void draw_text(const struct data *data, bool held_out, int64_t context, struct rng *r,
                      unsigned char *tokens, int16_t *targets)
{
    const int64_t kept = held_out_bytes(data->size), trained = data->size - kept;
    const int64_t first = held_out ? trained : 0, length = held_out ? kept : trained;
    const unsigned char *piece = data->bytes + first + agc_rng_range(r, 0, length - context - 1);
    memcpy(tokens, piece, (size_t)context);
    for (int64_t i = 0; i < context; i++) {
        targets[i] = piece[i + 1];
    }
}

/* ---- Recall ---- */

static void shuffle(int64_t *values, int64_t count, struct rng *r)
{
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other = agc_rng_range(r, 0, i), swapped = values[i];
        values[i] = values[other];
        values[other] = swapped;
    }
}

/* Fills in pairs of a key, a to z, and a value, A to Z, no key twice; then the same keys in random order, as
 * often as the context has room, each followed by its value, which the model has to predict: "kQbTaC" and
 * then "bTkQaC". At least half of the context is the second part. */
static void draw_recall(int64_t context, struct rng *r, unsigned char *tokens, int16_t *targets)
{
    const int64_t slots = context / 2, half = slots / 2;
    const int64_t pairs = half < KEYS ? half : KEYS;
    int64_t keys[KEYS];
    unsigned char value[KEYS];
    for (int64_t k = 0; k < KEYS; k++) {
        keys[k] = k;
        value[k] = (unsigned char)('A' + agc_rng_range(r, 0, VALUES - 1));
    }
    shuffle(keys, KEYS, r);
    for (int64_t slot = 0; slot < slots; slot++) {
        if (slot >= pairs && (slot - pairs) % pairs == 0) {
            shuffle(keys, pairs, r);
        }
        const int64_t key = keys[slot % pairs];
        tokens[2 * slot] = (unsigned char)('a' + key);
        tokens[2 * slot + 1] = value[key];
        targets[2 * slot] = slot < pairs ? -1 : value[key];
        targets[2 * slot + 1] = -1;
    }
}

void data_draw(const struct data *data, const struct model_shape *shape, struct draw draw,
               struct model_batch *batch)
{
    struct rng r;
    /* even streams are for training, odd ones for the test */
    agc_rng_init(&r, draw.seed, 2 * draw.index + (draw.held_out ? 1 : 0));
    for (int64_t b = 0; b < shape->batch; b++) {
        unsigned char *tokens = batch->tokens + b * shape->context;
        int16_t *targets = batch->targets + b * shape->context;
        if (data->text) {
            draw_text(data, draw.held_out, shape->context, &r, tokens, targets);
        } else {
            draw_recall(shape->context, &r, tokens, targets);
        }
    }
}
