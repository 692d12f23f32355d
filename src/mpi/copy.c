/* Strided copies, row by row: see copy.h. */
#include "mpi/copy.h"

#include <string.h>

enum { BLOCK = 512 };

/* The low half of a float16 is stored times this. */
static const double f16_low_scale = 2048;

size_t agi_mpi_element_bytes(ag_dtype dtype)
{
    return dtype == 0 ? 1 : ag_dtype_size(dtype);
}

static char *element(ag_tensor t, ag_dtype dtype, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const int64_t index = b * t.strides[0] + h * t.strides[1] + i * t.strides[2] + c * t.strides[3];
    return (char *)t.data + index * (int64_t)agi_mpi_element_bytes(dtype);
}

ag_tensor agi_mpi_shift(ag_tensor t, ag_dtype dtype, int axis, int64_t by)
{
    if (t.data != NULL) {
        t.data = (char *)t.data + by * t.strides[axis] * (int64_t)agi_mpi_element_bytes(dtype);
    }
    return t;
}

/* A strided run of elements. */
typedef struct {
    char *data;
    int64_t stride; /* in elements */
    ag_dtype dtype;
} run;

static run run_of(agi_mpi_array x, int64_t b, int64_t h, int64_t i, int64_t c, int axis)
{
    return (run){element(x.t, x.dtype, b, h, i, c), x.t.strides[axis], x.dtype};
}

/* Where a block of a run begins. */
static char *at(run r, int64_t n)
{
    return r.data + n * r.stride * (int64_t)agi_mpi_element_bytes(r.dtype);
}

static void load(double *values, run r, int64_t first, int64_t count)
{
    if (r.stride == 1 && r.dtype != 0) {
        ag_convert(values, AG_F64, at(r, first), r.dtype, count);
        return;
    }
    for (int64_t n = 0; n < count; n++) {
        if (r.dtype == 0) {
            values[n] = *(const unsigned char *)at(r, first + n);
        } else {
            ag_convert(&values[n], AG_F64, at(r, first + n), r.dtype, 1);
        }
    }
}

static void store(run r, int64_t first, const double *values, int64_t count)
{
    if (r.stride == 1 && r.dtype != 0) {
        ag_convert(at(r, first), r.dtype, values, AG_F64, count);
        return;
    }
    for (int64_t n = 0; n < count; n++) {
        if (r.dtype == 0) {
            *(unsigned char *)at(r, first + n) = (unsigned char)values[n];
        } else {
            ag_convert(at(r, first + n), r.dtype, &values[n], AG_F64, 1);
        }
    }
}

/* What to do with the runs of up to three tensors; count: elements of a run. */
typedef void (*run_task)(const run x[3], int64_t count, double value);

/* Runs go along the channels or, if there is only one, along the positions. */
static void for_runs(agi_mpi_array a, agi_mpi_array b, agi_mpi_array c, const int64_t size[4], run_task task,
                     double value)
{
    const int inner = size[3] > 1 ? 3 : 2, outer = inner == 3 ? 2 : 3;
    if (size[0] * size[1] * size[2] * size[3] == 0) {
        return;
    }
    for (int64_t s = 0; s < size[0]; s++) {
        for (int64_t h = 0; h < size[1]; h++) {
            for (int64_t i = 0; i < size[outer]; i++) {
                const int64_t row = outer == 2 ? i : 0, channel = outer == 3 ? i : 0;
                const run x[3] = {run_of(a, s, h, row, channel, inner), run_of(b, s, h, row, channel, inner),
                                  run_of(c, s, h, row, channel, inner)};
                task(x, size[inner], value);
            }
        }
    }
}

static int64_t block_of(int64_t first, int64_t count)
{
    return count - first < BLOCK ? count - first : BLOCK;
}

static void set_run(const run x[3], int64_t count, double value)
{
    double values[BLOCK];
    (void)value;
    if (x[0].dtype == x[1].dtype && x[0].stride == 1 && x[1].stride == 1) {
        memcpy(x[0].data, x[1].data, (size_t)count * agi_mpi_element_bytes(x[0].dtype));
        return;
    }
    for (int64_t n = 0; n < count; n += BLOCK) {
        load(values, x[1], n, block_of(n, count));
        store(x[0], n, values, block_of(n, count));
    }
}

static void add_run(const run x[3], int64_t count, double value)
{
    double values[BLOCK], old[BLOCK];
    (void)value;
    for (int64_t n = 0; n < count; n += BLOCK) {
        const int64_t block = block_of(n, count);
        load(values, x[1], n, block);
        load(old, x[0], n, block);
        for (int64_t m = 0; m < block; m++) {
            values[m] += old[m];
        }
        store(x[0], n, values, block);
    }
}

void agi_mpi_copy(agi_mpi_array to, agi_mpi_array from, const int64_t size[4], agi_mpi_mode mode)
{
    for_runs(to, from, from, size, mode == AGI_MPI_ADD ? add_run : set_run, 0);
}

static void fill_run(const run x[3], int64_t count, double value)
{
    double values[BLOCK];
    for (int64_t n = 0; n < BLOCK; n++) {
        values[n] = value;
    }
    for (int64_t n = 0; n < count; n += BLOCK) {
        store(x[0], n, values, block_of(n, count));
    }
}

void agi_mpi_fill(agi_mpi_array to, const int64_t size[4], double value)
{
    for_runs(to, to, to, size, fill_run, value);
}

/* ---- Low halves ---- */

static double low_scale(ag_dtype dtype)
{
    return dtype == AG_F16 ? f16_low_scale : 1;
}

static void low_run(const run x[3], int64_t count, double scale)
{
    double values[BLOCK], rounded[BLOCK];
    uint16_t narrow[BLOCK]; /* only 16-bit outputs have a low half */
    for (int64_t n = 0; n < count; n += BLOCK) {
        const int64_t block = block_of(n, count);
        load(values, x[1], n, block);
        ag_convert(narrow, x[0].dtype, values, AG_F64, block);
        ag_convert(rounded, AG_F64, narrow, x[0].dtype, block);
        for (int64_t m = 0; m < block; m++) {
            values[m] = (values[m] - rounded[m]) * scale;
        }
        store(x[0], n, values, block);
    }
}

void agi_mpi_store_low(agi_mpi_array low, agi_mpi_array x, const int64_t size[4])
{
    for_runs(low, x, x, size, low_run, low_scale(low.dtype));
}

static void join_run(const run x[3], int64_t count, double scale)
{
    double values[BLOCK], low[BLOCK];
    for (int64_t n = 0; n < count; n += BLOCK) {
        const int64_t block = block_of(n, count);
        load(values, x[1], n, block);
        load(low, x[2], n, block);
        for (int64_t m = 0; m < block; m++) {
            values[m] += low[m] / scale;
        }
        store(x[0], n, values, block);
    }
}

void agi_mpi_join_low(agi_mpi_array x, agi_mpi_array high, agi_mpi_array low, const int64_t size[4])
{
    if (low.t.data == NULL) {
        agi_mpi_copy(x, high, size, AGI_MPI_SET);
    } else {
        for_runs(x, high, low, size, join_run, low_scale(low.dtype));
    }
}

/* ---- Dots ---- */

/* Of one row. */
static double dot(run x, run y, run low, int64_t count, double scale)
{
    double a[BLOCK], b[BLOCK], c[BLOCK] = {0}, sum = 0;
    for (int64_t n = 0; n < count; n += BLOCK) {
        const int64_t block = block_of(n, count);
        load(a, x, n, block);
        load(b, y, n, block);
        if (low.data != NULL) {
            load(c, low, n, block);
        }
        for (int64_t m = 0; m < block; m++) {
            sum += a[m] * (b[m] + c[m] / scale);
        }
    }
    return sum;
}

void agi_mpi_subtract_dots(ag_tensor sums, agi_mpi_array x, agi_mpi_array y, agi_mpi_array y_low,
                           const int64_t size[4])
{
    const double scale = low_scale(y_low.dtype);
    for (int64_t s = 0; s < size[0]; s++) {
        for (int64_t h = 0; h < size[1]; h++) {
            for (int64_t i = 0; i < size[2]; i++) {
                const run none = {NULL, 0, 0};
                double *sum = (double *)(void *)element(sums, AG_F64, s, h, i, 0);
                *sum -= dot(run_of(x, s, h, i, 0, 3), run_of(y, s, h, i, 0, 3),
                            y_low.t.data == NULL ? none : run_of(y_low, s, h, i, 0, 3), size[3], scale);
            }
        }
    }
}
