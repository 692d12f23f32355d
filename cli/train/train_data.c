/* Makes the batches. Each is a function of the seed and its index alone, so that a resumed run needs no
 * state of a random number generator, only the index of its next step. */
#include "train.h"

#include "alloc.h"
#include "check/rng.h"
#include "usage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last 1 / HELD_OUT of a text is not trained on. */
enum { HELD_OUT = 10, KEYS = 26, VALUES = 26 };

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

/* Reads a whole file into memory. On failure returns false, with the reason in errno. */
static bool read_all(struct data *data, FILE *file)
{
    int64_t capacity = 1 << 16;
    data->bytes = alloc_or_exit(capacity, 1);
    for (size_t got = 1; got > 0;) {
        if (data->size == capacity) {
            unsigned char *larger = alloc_or_exit(2 * capacity, 1);
            memcpy(larger, data->bytes, (size_t)capacity);
            free(data->bytes);
            data->bytes = larger;
            capacity *= 2;
        }
        got = fread(data->bytes + data->size, 1, (size_t)(capacity - data->size), file);
        data->size += (int64_t)got;
    }
    return !ferror(file);
}

int data_open(struct data *data, const char *path, int64_t context)
{
    *data = (struct data){.text = path != NULL};
    if (path == NULL) {
        return EXIT_PASS;
    }
    FILE *file = fopen(path, "rb");
    const bool read = file != NULL && read_all(data, file);
    const int error = errno;
    if (file != NULL) {
        fclose(file);
    }
    if (!read) {
        data_close(data);
        return file_error("train", "cannot read '%s': %s", path, strerror(error));
    }
    const int64_t needed = HELD_OUT * (context + 1);
    if (data->size < needed) {
        const long long size = data->size;
        data_close(data);
        return file_error("train", "'%s' has %lld bytes: --context %lld needs %lld or more", path, size,
                          (long long)context, (long long)needed);
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
