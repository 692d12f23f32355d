/* Converts the lists among the inputs (lengths, packed offsets, position offsets, buckets, slopes) to the types of the
 * library and checks their counts. The library checks their values, except those that determine sizes. */
#include "files.h"

#include "alloc.h"
#include "usage.h"

#include <stdlib.h>

static const ag_io_array *list_array(const struct run *run, enum list l)
{
    return run->lists[l].array;
}

static int64_t list_length(const struct run *run, enum list l)
{
    return list_array(run, l)->shape[0];
}

static int check_one_axis(const struct run *run, enum list l, const char *contents)
{
    if (list_array(run, l)->ndim != 1) {
        return input_error(run, &run->lists[l], "has %d axes: it must be a list of %s",
                           (int)list_array(run, l)->ndim, contents);
    }
    return EXIT_PASS;
}

static int take_integers(struct run *run, enum list l)
{
    const ag_io_array *array = list_array(run, l);
    if (array == NULL) {
        return EXIT_PASS;
    }
    if (array->dtype != AG_IO_I64 && array->dtype != AG_IO_I32) {
        return input_error(run, &run->lists[l], "is %s: it must be i64 or i32",
                           ag_io_dtype_name(array->dtype));
    }
    int status = check_one_axis(run, l, "integers");
    if (status != EXIT_PASS) {
        return status;
    }
    int64_t *values = alloc_or_exit("a list of integers", array->shape[0], sizeof *values);
    for (int64_t n = 0; n < array->shape[0]; n++) {
        values[n] =
            array->dtype == AG_IO_I64 ? ((const int64_t *)array->data)[n] : ((const int32_t *)array->data)[n];
    }
    run->integers[l] = values;
    return EXIT_PASS;
}

/* why: the reason for that number of entries. */
static int check_count(const struct run *run, enum list l, int64_t expected, const char *why)
{
    if (run->integers[l] != NULL && list_length(run, l) != expected) {
        return input_error(run, &run->lists[l], "has %lld entries instead of %lld: %s",
                           (long long)list_length(run, l), (long long)expected, why);
    }
    return EXIT_PASS;
}

/* Finds the longest sequence, and checks that the offsets are in order and within total rows. */
static int find_longest(const struct run *run, enum list l, int64_t total, int64_t *longest)
{
    const int64_t *starts = run->integers[l];
    *longest = 0;
    for (int64_t b = 0; b + 1 < list_length(run, l); b++) {
        if (starts[b] < 0 || starts[b + 1] < starts[b] || starts[b + 1] > total) {
            return input_error(run, &run->lists[l],
                               "has sequence %lld in rows %lld to %lld: not in order, or not within %lld",
                               (long long)b, (long long)starts[b], (long long)starts[b + 1],
                               (long long)total);
        }
        int64_t length = starts[b + 1] - starts[b];
        *longest = length > *longest ? length : *longest;
    }
    return EXIT_PASS;
}

/* Until here q_len and kv_len are the rows of the arrays. If packed, these are q_total and kv_total, and q_len and
 * kv_len become the lengths of the longest sequences. */
static int take_packed(struct run *run)
{
    ag_problem *p = &run->problem;
    if (run->integers[LIST_Q_PACKED] == NULL) {
        return EXIT_PASS;
    }
    if (list_length(run, LIST_Q_PACKED) < 1) {
        return input_error(run, &run->lists[LIST_Q_PACKED],
                           "has no entries: it must have one more than there are sequences");
    }
    p->flags |= AG_PACKED;
    p->batch = list_length(run, LIST_Q_PACKED) - 1;
    p->q_total = p->q_len;
    p->kv_total = p->kv_len;
    int status = check_count(run, LIST_K_PACKED, p->batch + 1, "as many as --q-packed");
    if (status == EXIT_PASS) {
        status = find_longest(run, LIST_Q_PACKED, p->q_total, &p->q_len);
    }
    return status == EXIT_PASS ? find_longest(run, LIST_K_PACKED, p->kv_total, &p->kv_len) : status;
}

static int take_buckets(struct run *run)
{
    const int64_t *values = run->integers[LIST_BUCKETS];
    if (values == NULL) {
        return EXIT_PASS;
    }
    int64_t count = list_length(run, LIST_BUCKETS);
    if (count % 2 == 0) {
        return input_error(run, &run->lists[LIST_BUCKETS],
                           "has %lld entries: it must have 2R + 1, for -R to R", (long long)count);
    }
    run->buckets = alloc_or_exit("buckets", count, sizeof *run->buckets);
    for (int64_t n = 0; n < count; n++) {
        if (values[n] < 0 || values[n] > INT32_MAX) {
            return input_error(run, &run->lists[LIST_BUCKETS],
                               "has %lld as entry %lld: it is no column of the table", (long long)values[n],
                               (long long)n);
        }
        run->buckets[n] = (int32_t)values[n];
    }
    run->problem.table_radius = count / 2;
    run->problem.buckets = run->buckets;
    return EXIT_PASS;
}

static int take_slopes(struct run *run)
{
    const ag_io_array *array = list_array(run, LIST_SLOPES);
    if (array == NULL) {
        return EXIT_PASS;
    }
    if (ag_dtype_size(array->dtype) == 0) {
        return input_error(run, &run->lists[LIST_SLOPES], "is %s: slopes must be f64, f32, f16 or bf16",
                           ag_io_dtype_name(array->dtype));
    }
    int status = check_one_axis(run, LIST_SLOPES, "slopes");
    if (status != EXIT_PASS) {
        return status;
    }
    if (array->shape[0] != run->problem.heads) {
        return input_error(run, &run->lists[LIST_SLOPES], "has %lld slopes for %lld heads",
                           (long long)array->shape[0], (long long)run->problem.heads);
    }
    run->slopes = alloc_or_exit("the slopes of ALiBi", array->shape[0], sizeof *run->slopes);
    ag_convert(run->slopes, AG_F64, array->data, array->dtype, array->shape[0]);
    run->problem.alibi_slopes = run->slopes;
    return EXIT_PASS;
}

int convert_lists(struct run *run)
{
    static const enum list per_sequence[] = {LIST_Q_LENGTHS, LIST_KV_LENGTHS, LIST_Q_OFFSETS, LIST_K_OFFSETS};
    int status = EXIT_PASS;
    for (enum list l = 0; l < LIST_SLOPES && status == EXIT_PASS; l++) {
        status = take_integers(run, l);
    }
    if (status == EXIT_PASS) {
        status = take_packed(run);
    }
    if (status == EXIT_PASS) {
        status = take_buckets(run);
    }
    if (status == EXIT_PASS) {
        status = take_slopes(run);
    }
    for (size_t n = 0; n < sizeof per_sequence / sizeof per_sequence[0] && status == EXIT_PASS; n++) {
        status = check_count(run, per_sequence[n], run->problem.batch, "one per sequence");
    }
    return status;
}
