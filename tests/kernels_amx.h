/* The table of the AMX unit against plain loops: operands, products, roundings and stages, with guards around what they
 * write, and the caller's tile configuration before and after. */
#ifndef AG_KERNELS_AMX_H
#define AG_KERNELS_AMX_H

#include "core/cpu_info.h"
#include "core/number.h"
#include "cpu/amx_kernels.h"
#include "kernels_trial.h"

enum { AMX_GUARD = 256 };

/* ---- Memory with guards ---- */

struct guarded {
    unsigned char *memory;
    size_t bytes;
};

/* Room for n elements, filled with guard bytes as all around them. */
static struct guarded guard(int64_t n, size_t size)
{
    struct guarded g = {.bytes = (size_t)n * size};
    g.memory = malloc(g.bytes + 2 * AMX_GUARD);
    test_need(g.memory != NULL, "memory");
    memset(g.memory, 0xa5, g.bytes + 2 * AMX_GUARD);
    return g;
}

static uint16_t *narrow_of(const struct guarded *g)
{
    return (uint16_t *)(void *)(g->memory + AMX_GUARD);
}

static float *floats_of(const struct guarded *g)
{
    return (float *)(void *)(g->memory + AMX_GUARD);
}

static void release(struct guarded *g, const char *what)
{
    size_t wrong = 0;
    for (size_t b = 0; b < AMX_GUARD; b++) {
        wrong += g->memory[b] != 0xa5 || g->memory[AMX_GUARD + g->bytes + b] != 0xa5;
    }
    CHECK(wrong == 0, "amx %s: %zu bytes around the array were written", what, wrong);
    free(g->memory);
}

/* Bfloat16 numbers in [-2, 2), and the same as doubles. */
static struct guarded narrow_numbers(struct rng *r, int64_t n)
{
    const struct guarded g = guard(n, sizeof(uint16_t));
    for (int64_t i = 0; i < n; i++) {
        agi_store(AG_BF16, narrow_of(&g), i, 4 * rng_uniform(r) - 2);
    }
    return g;
}

static double narrow_at(const uint16_t *p, int64_t i)
{
    return agi_load(AG_BF16, p, i);
}

static struct guarded float_numbers(struct rng *r, int64_t n, double low, double high)
{
    const struct guarded g = guard(n, sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        floats_of(&g)[i] = (float)(low + (high - low) * rng_uniform(r));
    }
    return g;
}

/* Counts what is wrong, and says where the first of it is. */
struct faults {
    int64_t count, first;
    double got, wanted;
};

static void expect_near(struct faults *f, int64_t at, double got, double wanted, double bound)
{
    if (!(fabs(got - wanted) <= bound)) {
        if (f->count++ == 0) {
            *f = (struct faults){1, at, got, wanted};
        }
    }
}

static void report(const struct faults *f, const char *what)
{
    CHECK(f->count == 0, "amx %s: %lld numbers are wrong, number %lld is %.9g, not %.9g", what,
          (long long)f->count, (long long)f->first, f->got, f->wanted);
}

/* ---- The configuration ---- */

/* begin keeps what the caller had, end brings it back; a caller without one has none after. */
static void check_amx_configuration(void)
{
    amx_config none, ours, seen, again, last;
    agi_amx_table.begin(&none);
    agi_amx_table.begin(&ours);
    CHECK(ours.palette == 1 && ours.rows[7] == AMX_ROWS && ours.row_bytes[7] == 64,
          "amx begin: no whole tiles");
    amx_config own = ours;
    own.rows[0] = 8;
    own.row_bytes[3] = 32;
    agi_amx_table.end(&own); /* now as if a caller had configured that */
    agi_amx_table.begin(&seen);
    agi_amx_table.end(&seen);
    agi_amx_table.begin(&again);
    CHECK(memcmp(&seen, &own, sizeof own) == 0, "amx begin does not keep the caller's configuration");
    CHECK(memcmp(&again, &own, sizeof own) == 0, "amx end does not bring the caller's configuration back");
    agi_amx_table.end(&none);
    agi_amx_table.begin(&last);
    CHECK(none.palette == 0 && last.palette == 0, "amx end leaves a configuration to a caller without one");
    agi_amx_table.end(&last);
}

/* ---- The product ---- */

/* Leaves numbers in all of the unit's tiles, as the product before has. */
static void fill_amx_tiles(struct rng *r)
{
    struct guarded ab = narrow_numbers(r, 2 * AMX_AB), c = float_numbers(r, 32 * 32, -2, 2);
    const amx_operand some = {narrow_of(&ab), AMX_AB, 0, AMX_DEPTH};
    agi_amx_table.product(2, 2, 1, &some, &some, floats_of(&c), 32, true);
    release(&ab, "product");
    release(&c, "product");
}

static void check_amx_product(struct rng *r)
{
    const int64_t tall = rng_range(r, 1, 5), wide_n = rng_range(r, 1, 5), deep = rng_range(r, 0, 10);
    const bool add = rng_chance(r, 0.5);
    const int64_t row = 32 * (deep + rng_range(r, 0, 2)), ldc = 16 * (wide_n + rng_range(r, 0, 2));
    struct guarded a = narrow_numbers(r, 16 * tall * row), b = narrow_numbers(r, wide_n * deep * AMX_AB);
    struct guarded c = float_numbers(r, 16 * tall * ldc, -2, 2),
                   before = guard(16 * tall * ldc, sizeof(float));
    const amx_operand left = {narrow_of(&a), 16 * row, AMX_DEPTH, row};
    const amx_operand right = {narrow_of(&b), deep * AMX_AB, AMX_AB, 0};
    struct faults faults = {0};
    amx_config caller;
    memcpy(floats_of(&before), floats_of(&c), before.bytes);
    agi_amx_table.begin(&caller);
    fill_amx_tiles(r);
    agi_amx_table.product(tall, wide_n, deep, &left, &right, floats_of(&c), ldc, add);
    agi_amx_table.end(&caller);
    for (int64_t at = 0; at < 16 * tall * ldc; at++) {
        const int64_t m = at / ldc, n = at % ldc;
        const double old = (double)floats_of(&before)[at];
        double sum = add && n < 16 * wide_n ? old : 0, size = fabs(sum);
        for (int64_t k = 0; k < 32 * deep && n < 16 * wide_n; k++) {
            const int64_t tile = n / 16 * right.line + k / 32 * right.step,
                          pair = k % 32 / 2 * 32 + n % 16 * 2 + k % 2;
            const double term = narrow_at(left.p, m * row + k) * narrow_at(right.p, tile + pair);
            sum += term;
            size += fabs(term);
        }
        expect_near(&faults, at, (double)floats_of(&c)[at], n < 16 * wide_n ? sum : old, 1e-6 * size);
    }
    report(&faults, "product");
    release(&a, "product");
    release(&b, "product");
    release(&c, "product");
    release(&before, "product");
}

/* ---- Operands: each number of a tile is one of the stored ---- */

static void check_amx_tile(struct rng *r, const char *what, int64_t rows,
                           void (*make)(uint16_t *, const uint16_t *, int64_t),
                           int64_t (*source)(int64_t line, int64_t column, int64_t ld))
{
    const int64_t columns = AMX_AB / rows, ld = columns + rng_range(r, 0, 20);
    struct guarded from = narrow_numbers(r, (rows - 1) * ld + columns),
                   tile = guard(AMX_AB, sizeof(uint16_t));
    struct faults faults = {0};
    make(narrow_of(&tile), narrow_of(&from), ld);
    for (int64_t at = 0; at < AMX_AB; at++) {
        expect_near(&faults, at, narrow_of(&tile)[at], narrow_of(&from)[source(at / 32, at % 32, ld)], 0);
    }
    report(&faults, what);
    release(&from, what);
    release(&tile, what);
}

/* B[2 line + s][n] = stored[n][2 line + s], at 2 n + s */
static int64_t columns_source(int64_t line, int64_t column, int64_t ld)
{
    return column / 2 * ld + 2 * line + column % 2;
}

/* rows `line` and `line` + 16 in turn */
static int64_t far_source(int64_t line, int64_t column, int64_t ld)
{
    return (line + 16 * (column % 2)) * ld + column / 2;
}

static int64_t turned_source(int64_t line, int64_t column, int64_t ld)
{
    return column * ld + line;
}

static void check_amx_transpose(struct rng *r)
{
    const int64_t m = 16 * rng_range(r, 1, 4), n = 16 * rng_range(r, 1, 4);
    const int64_t ld_from = n + rng_range(r, 0, 9), ld_to = m + rng_range(r, 0, 9);
    struct guarded from = float_numbers(r, (m - 1) * ld_from + n, -2, 2);
    struct guarded to = float_numbers(r, (n - 1) * ld_to + m, -2, 2), before = guard((n - 1) * ld_to + m, 4);
    struct faults faults = {0};
    memcpy(floats_of(&before), floats_of(&to), before.bytes);
    agi_amx_table.transpose(floats_of(&to), ld_to, floats_of(&from), ld_from, m, n);
    for (int64_t at = 0; at < (n - 1) * ld_to + m; at++) {
        const float old = floats_of(&before)[at];
        const bool inside = at % ld_to < m;
        const float moved = inside ? floats_of(&from)[at % ld_to * ld_from + at / ld_to] : 0;
        const float wanted = inside ? moved : old;
        expect_near(&faults, at, (double)floats_of(&to)[at], (double)wanted, 0);
    }
    report(&faults, "transpose");
    release(&from, "transpose");
    release(&to, "transpose");
    release(&before, "transpose");
}

/* ---- Roundings: a group of keys by W lanes ---- */

/* Where key j, lane i goes: to pairs of keys, and to rows of far pairs. */
static int64_t pairs_place(int64_t j, int64_t i)
{
    return i / 16 * AMX_AB + j / 2 * 32 + i % 16 * 2 + j % 2;
}

static int64_t rows_place(int64_t j, int64_t i, int64_t line)
{
    return j / 16 * line + i / 32 * AMX_AB + j % 16 * 32 + i % 16 * 2 + i % 32 / 16;
}

/* Half a unit in the last of bfloat16's 8 digits. */
static double half_place(double x)
{
    int exponent;
    frexp(x, &exponent);
    return ldexp(0.5, exponent - 8);
}

static void check_amx_rounding(struct rng *r)
{
    const int64_t W = 32 * rng_range(r, 1, PANEL / 32), line = PANEL / 32 * AMX_AB;
    struct guarded scores = float_numbers(r, GROUP_KEYS * PANEL, -3, 3);
    struct guarded pairs = guard(W / 16 * AMX_AB, 2), rows = guard(2 * line, 2);
    struct faults wrong_pairs = {0}, wrong_rows = {0};
    agi_amx_table.round_pairs(narrow_of(&pairs), floats_of(&scores), W);
    agi_amx_table.round_rows(narrow_of(&rows), line, floats_of(&scores), W);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < W; i++) {
            const double t = (double)floats_of(&scores)[j * PANEL + i];
            expect_near(&wrong_pairs, j * W + i, narrow_at(narrow_of(&pairs), pairs_place(j, i)), t,
                        half_place(t));
            expect_near(&wrong_rows, j * W + i, narrow_at(narrow_of(&rows), rows_place(j, i, line)), t,
                        half_place(t));
        }
    }
    report(&wrong_pairs, "round_pairs");
    report(&wrong_rows, "round_rows");
    release(&scores, "round_pairs");
    release(&pairs, "round_pairs");
    release(&rows, "round_rows");
}

/* to[n][m] = factor[n] from[m][n] in bfloat16, and nothing between the rows. */
static void check_amx_put_turned(struct rng *r)
{
    const int64_t m = rng_range(r, 1, 100), n = rng_range(r, 1, PANEL), ld = m + rng_range(r, 0, 40);
    struct guarded from = float_numbers(r, (m + 31) / 32 * 32 * PANEL, -2, 2),
                   factor = float_numbers(r, n, 0, 1), to = guard((n - 1) * ld + m, 2);
    struct faults wrong = {0};
    agi_amx_table.put_turned(narrow_of(&to), ld, floats_of(&from), PANEL, floats_of(&factor), m, n);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < ld && i * ld + c < (n - 1) * ld + m; c++) {
            const float wanted = floats_of(&factor)[i] * floats_of(&from)[(c < m ? c : 0) * PANEL + i];
            uint16_t rounded = 0xa5a5;
            if (c < m) {
                agi_store(AG_BF16, &rounded, 0, (double)wanted);
            }
            expect_near(&wrong, i * ld + c, narrow_of(&to)[i * ld + c], rounded, 0);
        }
    }
    report(&wrong, "put_turned");
    release(&from, "put_turned");
    release(&factor, "put_turned");
    release(&to, "put_turned");
}

/* Zeros at the keys that are not kept, NaN or not. */
static void check_amx_clean(struct rng *r)
{
    const int64_t tiles = rng_range(r, 1, 9);
    struct guarded from = narrow_numbers(r, tiles * AMX_AB), to = guard(tiles * AMX_AB, 2),
                   keep = guard(GROUP_KEYS, 1);
    struct faults wrong = {0};
    uint8_t *const kept = (uint8_t *)narrow_of(&keep);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        kept[j] = (uint8_t)rng_chance(r, 0.6);
    }
    for (int64_t n = 0; n < tiles * AMX_AB; n++) {
        if (!kept[n % GROUP_KEYS]) {
            narrow_of(&from)[n] = 0x7fc0; /* NaN */
        }
    }
    agi_amx_table.clean(narrow_of(&to), narrow_of(&from), tiles, kept);
    for (int64_t n = 0; n < tiles * AMX_AB; n++) {
        expect_near(&wrong, n, narrow_of(&to)[n], kept[n % GROUP_KEYS] ? narrow_of(&from)[n] : 0, 0);
    }
    report(&wrong, "clean");
    release(&from, "clean");
    release(&to, "clean");
    release(&keep, "clean");
}

/* Zeros where the band hides, in rows and in pairs, and nothing else changes. */
static void check_amx_hide(struct rng *r)
{
    const int64_t low = rng_range(r, -80, 40), high = low + rng_range(r, 0, 80), line = 3 * AMX_AB;
    struct guarded rows = narrow_numbers(r, line + AMX_AB), pairs = narrow_numbers(r, 2 * AMX_AB);
    struct guarded old_rows = guard(line + AMX_AB, 2), old_pairs = guard(2 * AMX_AB, 2);
    struct faults wrong_rows = {0}, wrong_pairs = {0};
    memcpy(old_rows.memory, rows.memory, rows.bytes + 2 * AMX_GUARD);
    memcpy(old_pairs.memory, pairs.memory, pairs.bytes + 2 * AMX_GUARD);
    agi_amx_table.hide_rows(narrow_of(&rows), line, low, high);
    agi_amx_table.hide_pairs(narrow_of(&pairs), low, high);
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < 32; i++) {
            const bool seen = low <= j - i && j - i <= high;
            const int64_t at = rows_place(j, i, line), pair = pairs_place(j, i);
            expect_near(&wrong_rows, at, narrow_at(narrow_of(&rows), at),
                        seen ? narrow_at(narrow_of(&old_rows), at) : 0, 0);
            expect_near(&wrong_pairs, pair, narrow_at(narrow_of(&pairs), pair),
                        seen ? narrow_at(narrow_of(&old_pairs), pair) : 0, 0);
        }
    }
    report(&wrong_rows, "hide_rows");
    report(&wrong_pairs, "hide_pairs");
    CHECK(memcmp(narrow_of(&rows) + AMX_AB, narrow_of(&old_rows) + AMX_AB, (size_t)(line - AMX_AB) * 2) == 0,
          "amx hide_rows writes between its tiles");
    struct guarded *const all[] = {&rows, &pairs, &old_rows, &old_pairs};
    for (int n = 0; n < 4; n++) {
        release(all[n], "hide_rows");
    }
}

/* Of the columns of tiles; and of rows a bound that no row exceeds, not a number where one is in them. */
static void check_amx_norms(struct rng *r)
{
    const int64_t tiles = rng_range(r, 1, 4), rows = rng_range(r, 1, 40), width = 32 * tiles;
    const int64_t ld = width + rng_range(r, 0, 9);
    struct guarded columns = narrow_numbers(r, tiles * AMX_AB), matrix = narrow_numbers(r, rows * ld);
    struct guarded norms = guard(16, 4);
    struct faults wrong = {0};
    double largest = 0;
    agi_amx_table.column_norms(floats_of(&norms), narrow_of(&columns), tiles);
    for (int64_t lane = 0; lane < 16; lane++) {
        double sum = 0;
        for (int64_t k = 0; k < width; k++) {
            const double a = narrow_at(narrow_of(&columns), k / 2 * 32 + 2 * lane + k % 2);
            sum += a * a;
        }
        expect_near(&wrong, lane, (double)floats_of(&norms)[lane], sqrt(sum), 1e-5 * sqrt(sum));
    }
    report(&wrong, "column_norms");
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0;
        for (int64_t c = 0; c < width; c++) {
            sum += pow(narrow_at(narrow_of(&matrix), row * ld + c), 2);
        }
        largest = fmax(largest, sqrt(sum));
    }
    const double bound = (double)agi_amx_table.largest_norm(narrow_of(&matrix), ld, rows, width);
    CHECK(bound >= largest * (1 - 1e-5) && bound <= 4.1 * largest, "amx largest_norm: %g, a row has %g",
          bound, largest);
    agi_store(AG_BF16, narrow_of(&matrix), rng_range(r, 0, rows - 1) * ld + rng_range(r, 0, width - 1), NAN);
    CHECK(isnan(agi_amx_table.largest_norm(narrow_of(&matrix), ld, rows, width)),
          "amx largest_norm hides NaN");
    release(&columns, "column_norms");
    release(&matrix, "largest_norm");
    release(&norms, "column_norms");
}

/* ---- Stages ---- */

/* Weights are within this of themselves, cut off or rounded; their sums within that. */
#define AMX_WEIGHT_ERROR (0x1p-7 + 1e-3)
#define AMX_SUM_ERROR 1e-4

/* Scores in base 2, some hidden; lanes that see nothing, and lanes that have seen nothing yet. */
static void draw_amx_lanes(struct rng *r, float *scores, float *m, float *l)
{
    for (int64_t i = 0; i < PANEL; i++) {
        const bool fresh = rng_chance(r, 0.3), blind = rng_chance(r, 0.1);
        const double level = rng_chance(r, 0.3) ? 40 * rng_uniform(r) : 0;
        m[i] = fresh ? -INFINITY : (float)(10 * rng_uniform(r) - 5);
        l[i] = fresh ? 0 : (float)(1 + 50 * rng_uniform(r));
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const double t = level + 12 * rng_uniform(r) - 8;
            scores[j * PANEL + i] = blind || rng_chance(r, 0.1) ? -INFINITY : (float)t;
        }
    }
}

static void check_amx_softmax(struct rng *r)
{
    const int64_t W = 32 * rng_range(r, 1, PANEL / 32);
    const float c = (float)(0.5 + rng_uniform(r));
    float m[2][PANEL], l[2][PANEL], alpha[PANEL];
    struct guarded scores = guard(GROUP_KEYS * PANEL, 4), pairs = guard(W / 16 * AMX_AB, 2);
    struct faults weights = {0}, sums = {0}, factors = {0};
    bool wanted = false;
    draw_amx_lanes(r, floats_of(&scores), m[0], l[0]);
    memcpy(m[1], m[0], sizeof m[0]);
    memcpy(l[1], l[0], sizeof l[0]);
    const bool rescaled =
        agi_amx_table.softmax(narrow_of(&pairs), floats_of(&scores), W, c, l[0], INFINITY, m[1], l[1], alpha);
    for (int64_t i = 0; i < W; i++) {
        const double before = (double)m[0][i], after = (double)m[1][i], shift = isinf(after) ? 0 : after;
        const double factor = after == before ? 1 : exp2(before - after);
        const double alpha_error = isinf(before) ? 0 : 3e-7 * (1 + fabs(before - after));
        double sum = (double)l[0][i] * factor;
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const double p = exp2((double)c * (double)floats_of(&scores)[j * PANEL + i] - shift);
            CHECK(p < 0x1p9, "amx softmax: a weight of %g with its shift", p);
            expect_near(&weights, j * W + i, narrow_at(narrow_of(&pairs), pairs_place(j, i)), p,
                        AMX_WEIGHT_ERROR * p);
            sum += AMX_CENTRED * p;
        }
        wanted |= after != before && !isinf(before);
        expect_near(&factors, i, (double)alpha[i], factor, factor == 1 ? 0 : alpha_error * factor);
        expect_near(&sums, i, (double)l[1][i], sum, AMX_SUM_ERROR * sum);
    }
    report(&weights, "softmax: weights");
    report(&factors, "softmax: alpha");
    report(&sums, "softmax: l");
    CHECK(rescaled == wanted, "amx softmax says %d, lanes that had seen something moved: %d", rescaled,
          wanted);
    CHECK(memcmp(m[0] + W, m[1] + W, (size_t)(PANEL - W) * sizeof(float)) == 0,
          "amx softmax: lanes behind W");
    release(&scores, "softmax");
    release(&pairs, "softmax");
}

/* With a known reach weights come by a table: within 6e-3, on average right, in all of the reach. Beyond it they are
 * those of an unknown reach. */
static void check_amx_curve(struct rng *r)
{
    const int64_t W = 32 * rng_range(r, 1, PANEL / 32);
    const double reach = rng_chance(r, 0.3) ? 110 : 5 + 5 * rng_uniform(r);
    float m[PANEL], l[3][PANEL], norms[PANEL], alpha[PANEL];
    struct guarded scores = guard(GROUP_KEYS * PANEL, 4), by_curve = guard(W / 16 * AMX_AB, 2),
                   beyond = guard(W / 16 * AMX_AB, 2), exact = guard(W / 16 * AMX_AB, 2);
    struct faults weights = {0};
    double mean = 0;
    for (int64_t i = 0; i < PANEL; i++) {
        m[i] = (float)rng_range(r, reach > 100 ? 256 : -256, 1024) / 256;
        l[0][i] = l[1][i] = l[2][i] = 0;
        norms[i] = (float)(reach / 2);
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const double highest = reach > 100 ? 5 : fmin(reach, (double)m[i] + 2);
            floats_of(&scores)[j * PANEL + i] = (float)(highest - (highest + reach) * rng_uniform(r));
        }
    }
    agi_amx_table.softmax(narrow_of(&by_curve), floats_of(&scores), W, 1, norms, 2, m, l[0], alpha);
    agi_amx_table.softmax(narrow_of(&beyond), floats_of(&scores), W, 1, norms, 60, m, l[1], alpha);
    agi_amx_table.softmax(narrow_of(&exact), floats_of(&scores), W, 1, norms, INFINITY, m, l[2], alpha);
    for (int64_t n = 0; n < W * GROUP_KEYS; n++) {
        const int64_t i = n % W, j = n / W;
        const double p = exp2((double)floats_of(&scores)[j * PANEL + i] - (double)m[i]);
        const double got = narrow_at(narrow_of(&by_curve), pairs_place(j, i));
        expect_near(&weights, n, got, p, 6e-3 * p);
        mean += (got / p - 1) / (double)(W * GROUP_KEYS);
    }
    report(&weights, "softmax: weights by table");
    CHECK(fabs(mean) < 6e-4, "amx softmax: weights by table are wrong by %g on average", mean);
    CHECK(memcmp(narrow_of(&exact), narrow_of(&beyond), exact.bytes) == 0,
          "amx softmax: reach is not obeyed");
    CHECK(memcmp(narrow_of(&exact), narrow_of(&by_curve), exact.bytes) != 0, "amx softmax: no table is used");
    for (int64_t i = 0; i < W; i++) {
        CHECK(fabsf(l[0][i] / l[2][i] - 1) < 6e-3F, "amx softmax: sums by table, lane %d", (int)i);
    }
    struct guarded *const all[] = {&scores, &by_curve, &beyond, &exact};
    for (int n = 0; n < 4; n++) {
        release(all[n], "softmax");
    }
}

/* The weights of softmax where the band lets a query see, zeros elsewhere, whatever is there, and the sum of what is
 * seen. Nothing is added where a weight is too large or a lane has seen nothing before. */
static void check_amx_softmax_band(struct rng *r)
{
    const int64_t W = 32 * rng_range(r, 1, PANEL / 32);
    const int64_t low = rng_chance(r, 0.5) ? -1000000 : rng_range(r, -80, 40);
    const int64_t high = rng_chance(r, 0.3) ? 1000000 : rng_range(r, low < -80 ? -80 : low, 120);
    const int64_t large = rng_chance(r, 0.3) ? rng_range(r, 0, W - 1) : -1, key = rng_range(r, 0, 31);
    const int64_t fresh = rng_chance(r, 0.2) ? rng_range(r, 0, W - 1) : -1;
    float m[PANEL], l[2][PANEL], norms[PANEL], alpha[PANEL];
    struct guarded scores = guard(GROUP_KEYS * PANEL, 4), all = guard(W / 16 * AMX_AB, 2),
                   seen = guard(W / 16 * AMX_AB, 2);
    struct faults weights = {0}, sums = {0};
    for (int64_t i = 0; i < PANEL; i++) {
        m[i] = i == fresh ? -INFINITY : (float)(2 * rng_uniform(r));
        norms[i] = INFINITY;
        l[0][i] = l[1][i] = (float)rng_uniform(r);
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            const bool hidden = j - i < low || j - i > high;
            floats_of(&scores)[j * PANEL + i] =
                hidden && (i + j) % 3 == 0 ? NAN : (float)(4 * rng_uniform(r) - 2);
        }
    }
    if (large >= 0 && large != fresh) { /* at one key, which may be hidden */
        floats_of(&scores)[key * PANEL + large] = m[large] + 9;
    }
    const bool moves = fresh >= 0 || (large >= 0 && low <= key - large && key - large <= high);
    const bool done =
        agi_amx_table.softmax_band(narrow_of(&seen), floats_of(&scores), W, 1, low, high, m, l[0]);
    CHECK(done == !moves, "amx softmax_band says %d, m would have to move: %d", done, moves);
    CHECK(done || memcmp(l[0], l[1], sizeof l[0]) == 0, "amx softmax_band adds to l without being done");
    for (int64_t n = 0; n < GROUP_KEYS * PANEL; n++) {
        float *const t = &floats_of(&scores)[n];
        const int64_t distance = n / PANEL - n % PANEL;
        *t = distance < low || distance > high ? -INFINITY : *t;
    }
    if (done) { /* softmax itself on what is hidden by minus infinity */
        agi_amx_table.softmax(narrow_of(&all), floats_of(&scores), W, 1, norms, INFINITY, m, l[1], alpha);
        for (int64_t n = 0; n < W / 16 * AMX_AB; n++) {
            expect_near(&weights, n, narrow_of(&seen)[n], narrow_of(&all)[n], 0);
        }
        for (int64_t i = 0; i < W; i++) {
            expect_near(&sums, i, (double)l[0][i], (double)l[1][i], 0);
        }
    }
    report(&weights, "softmax_band: weights");
    report(&sums, "softmax_band: l");
    struct guarded *const used[] = {&scores, &all, &seen};
    for (int n = 0; n < 3; n++) {
        release(used[n], "softmax_band");
    }
}

/* Weights and their tangents where m stays; nothing where it would have to move. */
static void check_amx_softmax_tangent(struct rng *r)
{
    const int64_t W = 32 * rng_range(r, 1, PANEL / 32),
                  moving = rng_chance(r, 0.3) ? rng_range(r, 0, W - 1) : -1;
    const float c = (float)(0.5 + rng_uniform(r)), scale = (float)(0.5 + rng_uniform(r));
    struct guarded scores = float_numbers(r, GROUP_KEYS * PANEL, -10, 2),
                   raw = float_numbers(r, GROUP_KEYS * PANEL, -2, 2);
    struct guarded shifts = float_numbers(r, PANEL, 0, 2), refs = float_numbers(r, PANEL, -1, 1);
    struct guarded pairs = guard(W / 16 * AMX_AB, 2), t_pairs = guard(W / 16 * AMX_AB, 2);
    float l[PANEL], a[PANEL];
    struct faults weights = {0}, tangents = {0}, sums = {0};
    for (int64_t i = 0; i < PANEL; i++) {
        l[i] = (float)i;
        a[i] = (float)-i;
    }
    if (moving >= 0) {
        floats_of(&shifts)[moving] = rng_chance(r, 0.5) ? -INFINITY : -10;
    }
    const bool done = agi_amx_table.softmax_tangent(narrow_of(&pairs), narrow_of(&t_pairs),
                                                    floats_of(&scores), floats_of(&raw), W, c, scale,
                                                    floats_of(&shifts), l, floats_of(&refs), a);
    CHECK(done == (moving < 0), "amx softmax_tangent says %d, lane %d would have to move", done, (int)moving);
    for (int64_t i = 0; i < W; i++) {
        double sum = (double)i, tangent = (double)-i, size = 1;
        for (int64_t j = 0; j < GROUP_KEYS && done; j++) {
            const int64_t at = j * PANEL + i;
            const double p = exp2((double)c * (double)floats_of(&scores)[at] - (double)floats_of(&shifts)[i]);
            const double u = p * ((double)scale * (double)floats_of(&raw)[at] - (double)floats_of(&refs)[i]);
            expect_near(&weights, at, narrow_at(narrow_of(&pairs), pairs_place(j, i)), p,
                        AMX_WEIGHT_ERROR * p);
            expect_near(&tangents, at, narrow_at(narrow_of(&t_pairs), pairs_place(j, i)), u,
                        AMX_WEIGHT_ERROR * fabs(u) + 1e-6 * p);
            sum += p;
            tangent += u;
            size += p + fabs(u);
        }
        expect_near(&sums, i, (double)l[i], sum, AMX_SUM_ERROR * (size + sum));
        expect_near(&sums, i, (double)a[i], tangent, AMX_SUM_ERROR * (size + sum));
    }
    report(&weights, "softmax_tangent: weights");
    report(&tangents, "softmax_tangent: their tangents");
    report(&sums, "softmax_tangent: sums");
    struct guarded *const all[] = {&scores, &raw, &shifts, &refs, &pairs, &t_pairs};
    for (int n = 0; n < 6; n++) {
        release(all[n], "softmax_tangent");
    }
}

static void check_amx_gradients(struct rng *r)
{
    const int64_t W = 32 * rng_range(r, 1, PANEL / 32), line = PANEL / 32 * AMX_AB;
    const float c = (float)(0.5 + rng_uniform(r));
    struct guarded scores = float_numbers(r, GROUP_KEYS * PANEL, -10, 2),
                   dP = float_numbers(r, GROUP_KEYS * PANEL, -2, 2);
    struct guarded logs = float_numbers(r, PANEL, 3, 9), shifts = float_numbers(r, PANEL, -1, 1);
    struct guarded weights_out = guard(2 * line, 2), dS = guard(2 * line, 2),
                   pairs = guard(W / 16 * AMX_AB, 2);
    struct faults weights = {0}, gradients = {0}, turned = {0};
    agi_amx_table.gradients(narrow_of(&weights_out), narrow_of(&dS), line, narrow_of(&pairs),
                            floats_of(&scores), floats_of(&dP), W, c, floats_of(&logs), floats_of(&shifts));
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < W; i++) {
            const int64_t at = j * PANEL + i;
            const double p = exp2((double)c * (double)floats_of(&scores)[at] - (double)floats_of(&logs)[i]);
            const double ds = p * ((double)floats_of(&dP)[at] - (double)floats_of(&shifts)[i]);
            const double error = AMX_WEIGHT_ERROR * fabs(ds) + 1e-6 * p;
            expect_near(&weights, at, narrow_at(narrow_of(&weights_out), rows_place(j, i, line)), p,
                        AMX_WEIGHT_ERROR * p);
            expect_near(&gradients, at, narrow_at(narrow_of(&dS), rows_place(j, i, line)), ds, error);
            expect_near(&turned, at, narrow_at(narrow_of(&pairs), pairs_place(j, i)), ds, error);
        }
    }
    report(&weights, "gradients: P");
    report(&gradients, "gradients: dS");
    report(&turned, "gradients: pairs of dS");
    struct guarded *const all[] = {&scores, &dP, &logs, &shifts, &weights_out, &dS, &pairs};
    for (int n = 0; n < 7; n++) {
        release(all[n], "gradients");
    }
}

static void check_amx_gradient_tangents(struct rng *r)
{
    const int64_t line = 2 * AMX_AB;
    const float c = (float)(0.5 + rng_uniform(r)), scale = (float)(0.5 + rng_uniform(r));
    struct guarded in[8], rows[4], pairs[2]; /* S, dP, U, tdP; L, mu, D, tD */
    struct faults wrong_rows = {0}, wrong_pairs = {0};
    const float *scores[4];
    uint16_t *to_rows[4], *to_pairs[2];
    for (int n = 0; n < 8; n++) {
        in[n] = float_numbers(r, n < 4 ? GROUP_KEYS * PANEL : PANEL,
                              n == 0   ? -10
                              : n == 4 ? 3
                                       : -2,
                              n == 4 ? 9 : 2);
    }
    for (int n = 0; n < 4; n++) {
        rows[n] = guard(2 * line, 2);
        scores[n] = floats_of(&in[n]);
        to_rows[n] = narrow_of(&rows[n]);
    }
    for (int n = 0; n < 2; n++) {
        pairs[n] = guard(2 * AMX_AB, 2);
        to_pairs[n] = narrow_of(&pairs[n]);
    }
    agi_amx_table.gradient_tangents(to_rows, line, to_pairs, scores, c, scale, floats_of(&in[4]),
                                    floats_of(&in[5]), floats_of(&in[6]), floats_of(&in[7]));
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < 32; i++) {
            double x[4], at_lane[4], wanted[4];
            for (int n = 0; n < 4; n++) {
                x[n] = (double)scores[n][j * PANEL + i];
                at_lane[n] = (double)floats_of(&in[4 + n])[i];
            }
            const double p = exp2((double)c * x[0] - at_lane[0]), e = x[1] - at_lane[2];
            const double w = (double)scale * x[2] - at_lane[1];
            wanted[0] = p;
            wanted[1] = p * e;
            wanted[2] = p * w;
            wanted[3] = p * (w * e + x[3] - at_lane[3]);
            for (int n = 0; n < 4; n++) {
                const double error = AMX_WEIGHT_ERROR * fabs(wanted[n]) + 1e-5 * p;
                expect_near(&wrong_rows, j * 32 + i, narrow_at(to_rows[n], rows_place(j, i, line)), wanted[n],
                            error);
                if (n % 2 == 1) { /* pairs: tdS, dS */
                    expect_near(&wrong_pairs, j * 32 + i, narrow_at(to_pairs[n == 1], pairs_place(j, i)),
                                wanted[n], error);
                }
            }
        }
    }
    report(&wrong_rows, "gradient_tangents: rows");
    report(&wrong_pairs, "gradient_tangents: pairs");
    for (int n = 0; n < 8; n++) {
        release(&in[n], "gradient_tangents");
    }
    for (int n = 0; n < 4; n++) {
        release(&rows[n], "gradient_tangents");
    }
    for (int n = 0; n < 2; n++) {
        release(&pairs[n], "gradient_tangents");
    }
}

static void check_amx_dots(struct rng *r)
{
    const int64_t n = rng_range(r, 1, 20), width = rng_range(r, 1, 300), ld = width + rng_range(r, 0, 9);
    struct guarded a = narrow_numbers(r, n * ld), b = narrow_numbers(r, n * ld),
                   out = guard(n, sizeof(float));
    struct faults faults = {0};
    agi_amx_table.dots(floats_of(&out), narrow_of(&a), ld, narrow_of(&b), ld, n, width);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, size = 0;
        for (int64_t c = 0; c < width; c++) {
            const double term = narrow_at(narrow_of(&a), i * ld + c) * narrow_at(narrow_of(&b), i * ld + c);
            sum += term;
            size += fabs(term);
        }
        expect_near(&faults, i, (double)floats_of(&out)[i], sum, 1e-6 * size);
    }
    report(&faults, "dots");
    release(&a, "dots");
    release(&b, "dots");
    release(&out, "dots");
}

static void check_amx(int rounds)
{
    if (!agi_cpu_supports(AG_ISA_AMX)) {
        printf("amx: not tested, this processor cannot run it\n");
        return;
    }
    check_amx_configuration();
    for (int n = 0; n < rounds; n++) {
        struct rng r;
        rng_init(&r, (uint64_t)n, 99);
        check_amx_product(&r);
        check_amx_tile(&r, "columns", 16, agi_amx_table.columns, columns_source);
        check_amx_tile(&r, "far_pairs", 32, agi_amx_table.far_pairs, far_source);
        check_amx_tile(&r, "turned", 32, agi_amx_table.turned, turned_source);
        check_amx_transpose(&r);
        check_amx_rounding(&r);
        check_amx_put_turned(&r);
        check_amx_norms(&r);
        check_amx_clean(&r);
        check_amx_hide(&r);
        check_amx_softmax(&r);
        check_amx_curve(&r);
        check_amx_softmax_band(&r);
        check_amx_softmax_tangent(&r);
        check_amx_gradients(&r);
        check_amx_gradient_tangents(&r);
        check_amx_dots(&r);
    }
}

#endif
