/* Tests of the AMX table: operands from rows, rounding, rows from sums, norms and dot products of rows. */
#include <float.h>

#include "kernels_amx_memory.h"

/* ---- Operands: each element of a tile is an element of the rows, at the index `source` ---- */

static void check_amx_tile(struct rng *r, const char *what, int64_t rows,
                           void (*make)(uint16_t *, const uint16_t *, int64_t),
                           int64_t (*source)(int64_t r, int64_t column, int64_t ld))
{
    const int64_t columns = AMX_AB / rows, ld = columns + agc_rng_range(r, 0, 20);
    struct guarded from = random_bf16(r, (rows - 1) * ld + columns),
                   tile = guarded_alloc(AMX_AB, sizeof(uint16_t));
    struct faults faults = {0};
    make(bf16_of(&tile), bf16_of(&from), ld);
    for (int64_t at = 0; at < AMX_AB; at++) {
        expect_near(&faults, at, bf16_of(&tile)[at], bf16_of(&from)[source(at / 32, at % 32, ld)], 0);
    }
    report(&faults, what);
    check_and_free(&from, what);
    check_and_free(&tile, what);
}

/* NaN, infinity and subnormals among the numbers: a subnormal becomes zero. */
static void check_amx_round_row(struct rng *r)
{
    const float special[] = {(float)NAN, -INFINITY, FLT_MAX, FLT_MIN, 1e-40f};
    const int64_t n = agc_rng_range(r, 1, 100);
    struct guarded from = random_floats(r, n, -2, 2), to = guarded_alloc(n, 2);
    struct faults wrong = {0};
    floats_of(&from)[agc_rng_range(r, 0, n - 1)] = special[agc_rng_range(r, 0, 4)];
    agi_amx_table.round_row(bf16_of(&to), floats_of(&from), n);
    for (int64_t i = 0; i < n; i++) {
        const float x = floats_of(&from)[i];
        uint16_t wanted;
        agi_store(AG_BF16, &wanted, 0, fabsf(x) < FLT_MIN ? 0 : (double)x);
        expect_near(&wrong, i, bf16_of(&to)[i], wanted, 0);
    }
    report(&wrong, "round_row");
    check_and_free(&from, "round_row");
    check_and_free(&to, "round_row");
}

/* Element 2 n + s of row r is B[2 r + s][n] = X[n][2 r + s]. */
static int64_t vnni_transposed_source(int64_t r, int64_t column, int64_t ld)
{
    return column / 2 * ld + 2 * r + column % 2;
}

/* Rows r and r + 16 of X, interleaved. */
static int64_t split16_source(int64_t r, int64_t column, int64_t ld)
{
    return (r + 16 * (column % 2)) * ld + column / 2;
}

static int64_t transposed_source(int64_t r, int64_t column, int64_t ld)
{
    return column * ld + r;
}

/* Row m, column n of sums whose tiles are in column-major order. */
static float sum_at(const struct guarded *sums, int64_t col_stride, int64_t m, int64_t n)
{
    return floats_of(sums)[n / 16 * 16 * col_stride + m * 16 + n % 16];
}

static void check_amx_transpose_sums(struct rng *r)
{
    const int64_t m = 16 * agc_rng_range(r, 1, 4), n = 16 * agc_rng_range(r, 1, 4);
    const int64_t col_stride = m + 16 * agc_rng_range(r, 0, 2), ld = m + agc_rng_range(r, 0, 9);
    struct guarded sums = random_floats(r, col_stride * n, -2, 2);
    struct guarded to = random_floats(r, (n - 1) * ld + m, -2, 2),
                   before = guarded_alloc((n - 1) * ld + m, 4);
    struct faults faults = {0};
    memcpy(floats_of(&before), floats_of(&to), before.bytes);
    agi_amx_table.transpose_sums(floats_of(&to), ld, floats_of(&sums), col_stride, m, n);
    for (int64_t at = 0; at < (n - 1) * ld + m; at++) {
        const bool inside = at % ld < m;
        const float wanted = inside ? sum_at(&sums, col_stride, at % ld, at / ld) : floats_of(&before)[at];
        expect_near(&faults, at, (double)floats_of(&to)[at], (double)wanted, 0);
    }
    report(&faults, "transpose_sums");
    check_and_free(&sums, "transpose_sums");
    check_and_free(&to, "transpose_sums");
    check_and_free(&before, "transpose_sums");
}

/* ---- Roundings: a group of keys by W lanes ---- */

/* The index of key j, lane i in VNNI, and in rows of queries in split16 order. */
static int64_t vnni_index(int64_t j, int64_t i)
{
    return i / 16 * AMX_AB + j / 2 * 32 + i % 16 * 2 + j % 2;
}

static int64_t split16_index(int64_t j, int64_t i, int64_t tile_stride)
{
    return j / 16 * tile_stride + i / 32 * AMX_AB + j % 16 * 32 + i % 16 * 2 + i % 32 / 16;
}

/* Half a unit in the last of bfloat16's 8 significant bits. */
static double half_ulp(double x)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(0.5, exponent - 8);
}

static void check_amx_rounding(struct rng *r)
{
    const int64_t W = 32 * agc_rng_range(r, 1, PANEL / 32), tile_stride = PANEL / 32 * AMX_AB;
    struct guarded scores = random_floats(r, GROUP_KEYS * PANEL, -3, 3);
    struct guarded vnni = guarded_alloc(W / 16 * AMX_AB, 2), rows = guarded_alloc(2 * tile_stride, 2);
    struct guarded weights = guarded_alloc(W / 16 * AMX_AB, 2), excess = random_floats(r, W, -1, 1);
    struct faults wrong_vnni = {0}, wrong_rows = {0}, wrong_excess = {0};
    float before[PANEL];
    memcpy(before, floats_of(&excess), (size_t)W * sizeof before[0]);
    agi_amx_table.round_to_vnni(bf16_of(&vnni), floats_of(&scores), W);
    agi_amx_table.round_weights(bf16_of(&weights), floats_of(&scores), W, floats_of(&excess));
    CHECK(memcmp(bf16_of(&weights), bf16_of(&vnni), vnni.bytes) == 0,
          "amx round_weights and round_to_vnni differ");
    agi_amx_table.round_to_rows(bf16_of(&rows), tile_stride, floats_of(&scores), W);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < W; i++) {
            const double t = (double)floats_of(&scores)[j * PANEL + i];
            expect_near(&wrong_vnni, j * W + i, bf16_at(bf16_of(&vnni), vnni_index(j, i)), t, half_ulp(t));
            expect_near(&wrong_rows, j * W + i, bf16_at(bf16_of(&rows), split16_index(j, i, tile_stride)), t,
                        half_ulp(t));
        }
    }
    for (int64_t i = 0; i < W; i++) {
        double wanted = (double)before[i];
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            wanted += bf16_at(bf16_of(&vnni), vnni_index(j, i)) - (double)floats_of(&scores)[j * PANEL + i];
        }
        expect_near(&wrong_excess, i, (double)floats_of(&excess)[i], wanted, 1e-5);
    }
    report(&wrong_excess, "round_weights: excess");
    check_and_free(&weights, "round_weights");
    check_and_free(&excess, "round_weights");
    report(&wrong_vnni, "round_to_vnni");
    report(&wrong_rows, "round_to_rows");
    check_and_free(&scores, "round_to_vnni");
    check_and_free(&vnni, "round_to_vnni");
    check_and_free(&rows, "round_to_rows");
}

/* to[n][m] = factor[n] times the sum, in bfloat16, or the low half of that; nothing is written between the rows. Two
 * of the sums are not finite: their low halves are 0. */
static void check_amx_store_transposed(struct rng *r, bool low)
{
    const int64_t m = agc_rng_range(r, 1, 100), n = agc_rng_range(r, 1, PANEL),
                  ld = m + agc_rng_range(r, 0, 40);
    const int64_t col_stride = (m + 31) / 32 * 32 + 16 * agc_rng_range(r, 0, 2);
    struct guarded from = random_floats(r, col_stride * PANEL, -2, 2), factor = random_floats(r, n, 0, 1),
                   to = guarded_alloc((n - 1) * ld + m, 2);
    struct faults wrong = {0};
    const char *const name = low ? "store_transposed_low" : "store_transposed";
    floats_of(&from)[0] = (float)INFINITY;
    floats_of(&from)[AMX_LANES] = (float)NAN;
    (low ? agi_amx_table.store_transposed_low : agi_amx_table.store_transposed)(
        bf16_of(&to), ld, floats_of(&from), col_stride, floats_of(&factor), m, n);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < ld && i * ld + c < (n - 1) * ld + m; c++) {
            const float wanted = floats_of(&factor)[i] * sum_at(&from, col_stride, c < m ? c : 0, i);
            uint16_t rounded = 0xa5a5;
            if (c < m) {
                agi_store(AG_BF16, &rounded, 0, low ? agi_low_half(AG_BF16, (double)wanted) : (double)wanted);
            }
            expect_near(&wrong, i * ld + c, bf16_of(&to)[i * ld + c], rounded, 0);
        }
    }
    report(&wrong, name);
    check_and_free(&from, name);
    check_and_free(&factor, name);
    check_and_free(&to, name);
}

/* Up to 16 rows of sums in row-major order; nothing is written between the rows. */
static void check_amx_store_rows(struct rng *r)
{
    const int64_t m = agc_rng_range(r, 1, 16), n = agc_rng_range(r, 1, 100), ld = n + agc_rng_range(r, 0, 40);
    struct guarded sums = random_floats(r, (n + 15) / 16 * AMX_C, -2, 2),
                   to = guarded_alloc((m - 1) * ld + n, 2);
    struct faults wrong = {0};
    const float factor = (float)(4 * agc_rng_uniform(r) - 2);
    floats_of(&sums)[0] = agc_rng_chance(r, 0.5) ? INFINITY : -INFINITY;
    agi_amx_table.store_rows(bf16_of(&to), ld, floats_of(&sums), factor, m, n);
    for (int64_t at = 0; at < (m - 1) * ld + n; at++) {
        const int64_t i = at / ld, c = at % ld;
        uint16_t rounded = 0xa5a5;
        if (c < n) {
            agi_store(AG_BF16, &rounded, 0,
                      (double)(factor * floats_of(&sums)[c / 16 * AMX_C + i * 16 + c % 16]));
        }
        expect_near(&wrong, at, bf16_of(&to)[at], rounded, 0);
    }
    report(&wrong, "store_rows");
    check_and_free(&sums, "store_rows");
    check_and_free(&to, "store_rows");
}

/* Zeros at the masked keys, even if their elements are NaN. */
static void check_amx_zero_masked_keys(struct rng *r)
{
    const int64_t tiles = agc_rng_range(r, 1, 9);
    struct guarded from = random_bf16(r, tiles * AMX_AB), to = guarded_alloc(tiles * AMX_AB, 2),
                   keep = guarded_alloc(GROUP_KEYS, 1);
    struct faults wrong = {0};
    uint8_t *const kept = (uint8_t *)bf16_of(&keep);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        kept[j] = (uint8_t)agc_rng_chance(r, 0.6);
    }
    for (int64_t n = 0; n < tiles * AMX_AB; n++) {
        if (!kept[n % GROUP_KEYS]) {
            bf16_of(&from)[n] = 0x7fc0; /* NaN */
        }
    }
    agi_amx_table.zero_masked_keys(bf16_of(&to), bf16_of(&from), tiles, kept);
    for (int64_t n = 0; n < tiles * AMX_AB; n++) {
        expect_near(&wrong, n, bf16_of(&to)[n], kept[n % GROUP_KEYS] ? bf16_of(&from)[n] : 0, 0);
    }
    report(&wrong, "zero_masked_keys");
    check_and_free(&from, "zero_masked_keys");
    check_and_free(&to, "zero_masked_keys");
    check_and_free(&keep, "zero_masked_keys");
}

/* Zeros outside the band, in rows and in VNNI; nothing else changes. */
static void check_amx_mask_band(struct rng *r)
{
    const int64_t low = agc_rng_range(r, -80, 40), high = low + agc_rng_range(r, 0, 80),
                  tile_stride = 3 * AMX_AB;
    struct guarded rows = random_bf16(r, tile_stride + AMX_AB), vnni = random_bf16(r, 2 * AMX_AB);
    struct guarded old_rows = guarded_alloc(tile_stride + AMX_AB, 2), old_vnni = guarded_alloc(2 * AMX_AB, 2);
    struct faults wrong_rows = {0}, wrong_vnni = {0};
    memcpy(old_rows.memory, rows.memory, rows.bytes + 2 * AMX_GUARD);
    memcpy(old_vnni.memory, vnni.memory, vnni.bytes + 2 * AMX_GUARD);
    agi_amx_table.mask_band_rows(bf16_of(&rows), tile_stride, low, high);
    agi_amx_table.mask_band_vnni(bf16_of(&vnni), low, high);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < 32; i++) {
            const bool visible = low <= j - i && j - i <= high;
            const int64_t at = split16_index(j, i, tile_stride), pair = vnni_index(j, i);
            expect_near(&wrong_rows, at, bf16_at(bf16_of(&rows), at),
                        visible ? bf16_at(bf16_of(&old_rows), at) : 0, 0);
            expect_near(&wrong_vnni, pair, bf16_at(bf16_of(&vnni), pair),
                        visible ? bf16_at(bf16_of(&old_vnni), pair) : 0, 0);
        }
    }
    report(&wrong_rows, "mask_band_rows");
    report(&wrong_vnni, "mask_band_vnni");
    CHECK(memcmp(bf16_of(&rows) + AMX_AB, bf16_of(&old_rows) + AMX_AB, (size_t)(tile_stride - AMX_AB) * 2) ==
              0,
          "amx mask_band_rows writes between its tiles");
    struct guarded *const arrays[] = {&rows, &vnni, &old_rows, &old_vnni};
    for (int n = 0; n < 4; n++) {
        check_and_free(arrays[n], "mask_band_rows");
    }
}

static void check_amx_dots(struct rng *r)
{
    const int64_t n = agc_rng_range(r, 1, 20), width = agc_rng_range(r, 1, 300),
                  ld = width + agc_rng_range(r, 0, 9);
    struct guarded a = random_bf16(r, n * ld), b = random_bf16(r, n * ld),
                   out = guarded_alloc(n, sizeof(float));
    struct faults faults = {0};
    agi_amx_table.dots(floats_of(&out), bf16_of(&a), ld, bf16_of(&b), ld, n, width);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, magnitude = 0;
        for (int64_t c = 0; c < width; c++) {
            const double term = bf16_at(bf16_of(&a), i * ld + c) * bf16_at(bf16_of(&b), i * ld + c);
            sum += term;
            magnitude += fabs(term);
        }
        expect_near(&faults, i, (double)floats_of(&out)[i], sum, 1e-6 * magnitude);
    }
    report(&faults, "dots");
    check_and_free(&a, "dots");
    check_and_free(&b, "dots");
    check_and_free(&out, "dots");
}
