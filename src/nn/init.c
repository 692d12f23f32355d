/* Seeded initialisation. Each element is a function of seed, parameter and index alone, by Philox. It is computed by
 * + - * / and the square root only, whose rounding IEEE 754 defines, and not by the C library's logarithm and cosine:
 * so every platform gives the same bits. */
#include "nn/layer.h"

#include <math.h>

#include "core/number.h"
#include "core/philox.h"
#include "core/status.h"

/* The last word of the Philox counter. In a dropout mask it is the index of the sequence, which is smaller
 * unless there are 2^32 of them: so the two share no random words. */
#define STREAM UINT32_C(0xFFFFFFFF)

static const double ln2 = 0.69314718055994530942, half_pi = 1.57079632679489661923;

/* Sets u to two uniform values in (0, 1): multiples of 2^-52, plus half of that. */
static void uniforms(double u[2], uint64_t seed, int64_t param, int64_t element)
{
    const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), (uint32_t)param, STREAM};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4];
    agi_philox4x32_10(counter, key, word);
    for (int i = 0; i < 2; i++) {
        const uint64_t bits = ((uint64_t)word[2 * i] << 32 | word[2 * i + 1]) >> 12;
        u[i] = ((double)bits + 0.5) * 0x1p-52;
    }
}

/* log x for x in (0, 1): x = m 2^e with m in [1/2, 1), and log m = 2 artanh(z), z = (m - 1) / (m + 1), by its
 * series; |z| <= 1/3, so the terms left out are below 2^-60. */
static double natural_log(double x)
{
    int e;
    const double m = frexp(x, &e);
    const double z = (m - 1) / (m + 1), zz = z * z;
    double sum = 0;
    for (int n = 35; n >= 1; n -= 2) {
        sum = sum * zz + 1.0 / n;
    }
    return 2 * z * sum + e * ln2;
}

/* cos(pi/2 x) for x in [0, 1], by its Taylor series; the terms left out are below 2^-60. */
static double quarter_cosine(double x)
{
    const double tt = x * half_pi * (x * half_pi);
    double sum = 1;
    for (int n = 22; n >= 2; n -= 2) {
        sum = 1 - sum * tt / (n * (n - 1));
    }
    return sum;
}

/* Box-Muller: sqrt(-2 log u0) cos(2 pi u1), the cosine by quarters of its period. */
static double normal(const double u[2])
{
    const double quarters = 4 * u[1];
    const int quarter = (int)quarters;
    const double x = quarters - quarter;
    const double cosine = quarter_cosine(quarter % 2 == 0 ? x : 1 - x);
    return sqrt(-2 * natural_log(u[0])) * (quarter == 0 || quarter == 3 ? cosine : -cosine);
}

static double random_weight(const ag_layer *layer, ag_init how, const ag_param_view *view, const double u[2])
{
    if (how == AG_INIT_NORMAL) {
        return sqrt(2.0 / (double)layer->d_model) * normal(u);
    }
    return sqrt(6.0 / (double)(view->rows + view->cols)) * (2 * u[0] - 1);
}

static bool is_bias(const ag_param_view *view)
{
    return view->name[0] == 'b';
}

ag_status ag_layer_init(const ag_layer *layer, ag_init how, uint64_t seed, void *params, ag_dtype dtype)
{
    if (layer == NULL || params == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, layer == NULL ? "layer" : "params",
                              "ag_layer_init: %s is NULL", layer == NULL ? "layer" : "params");
    }
    if (how != AG_INIT_NORMAL && how != AG_INIT_XAVIER) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "how",
                              "ag_layer_init: how is %d: must be AG_INIT_NORMAL or AG_INIT_XAVIER", (int)how);
    }
    if (ag_dtype_size(dtype) == 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "dtype", "ag_layer_init: dtype is %d: no such dtype",
                              (int)dtype);
    }
    for (int64_t p = 0; p < layer->n_params; p++) {
        const ag_param_view *view = &layer->params[p];
        for (int64_t i = 0; i < view->count; i++) {
            double u[2];
            uniforms(u, seed, p, i);
            agi_store(dtype, params, view->offset + i,
                      is_bias(view) ? 0 : random_weight(layer, how, view, u));
        }
    }
    return AG_OK;
}
