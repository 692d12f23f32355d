/* Unit tests of small parts: conversion between number formats, compared with one that rounds in exact
 * arithmetic; Philox, with its published vectors; the default slopes of ALiBi; the arena, whose dry run must
 * have the size of its layout. May include private headers. */
#include "test.h"

#include "core/arena.h"
#include "core/philox.h"

#include <float.h>
#include <math.h>

/* ---- Number formats ----------------------------------------------------------------------------- */

typedef struct {
    ag_dtype dtype;
    int fraction; /* bits */
    int lowest;   /* exponent of the smallest normal number */
    int highest;  /* exponent of the largest number */
} narrow_format;

static const narrow_format narrow_formats[] = {{AG_F16, 10, -14, 15}, {AG_BF16, 7, -126, 127}};

static double largest_of(const narrow_format *f)
{
    return ldexp(2 - ldexp(1, -f->fraction), f->highest);
}

/* The value of 16 bits, by the definition of the format. */
static double decode(const narrow_format *f, unsigned bits)
{
    unsigned fraction = bits & ((1u << f->fraction) - 1);
    unsigned exponent = (bits & 0x7fff) >> f->fraction;
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0x7fffu >> f->fraction) {
        return fraction != 0 ? (double)NAN : sign * INFINITY;
    }
    int power = (exponent == 0 ? 1 : (int)exponent) - 1 + f->lowest - f->fraction;
    return sign * ldexp((double)(fraction + (exponent == 0 ? 0 : 1u << f->fraction)), power);
}

/* The number of the format that is nearest to x: x is cut into units of its last place, which a
 * division by a power of two does exactly, and rint() rounds them once, ties to even. */
static double nearest(const narrow_format *f, double x)
{
    if (!isfinite(x) || x == 0) {
        return x;
    }
    int exponent = ilogb(x) < f->lowest ? f->lowest : ilogb(x);
    double unit = ldexp(1, exponent - f->fraction);
    double rounded = rint(x / unit) * unit;
    return fabs(rounded) > largest_of(f) ? copysign(INFINITY, x) : rounded;
}

static int same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b));
}

static unsigned convert_to_bits(const narrow_format *f, const void *x, ag_dtype dtype)
{
    uint16_t bits = 0xdead;
    CHECK_OK(ag_convert(&bits, f->dtype, x, dtype, 1));
    return bits;
}

static void check_rounding(const narrow_format *f, double x)
{
    double from64 = decode(f, convert_to_bits(f, &x, AG_F64));
    CHECK(same_number(from64, nearest(f, x)), "f64 %a -> %s gives %a instead of %a", x,
          ag_dtype_name(f->dtype), from64, nearest(f, x));
    float y = (float)x;
    double from32 = decode(f, convert_to_bits(f, &y, AG_F32));
    CHECK(same_number(from32, nearest(f, (double)y)), "f32 %a -> %s gives %a instead of %a", (double)y,
          ag_dtype_name(f->dtype), from32, nearest(f, (double)y));
}

/* All 65,536 values are exact in float32 and float64, and convert back to the same bits. */
static void every_value_round_trips(const narrow_format *f)
{
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        uint16_t narrow = (uint16_t)bits;
        double value = decode(f, bits), wide;
        float single;
        CHECK_OK(ag_convert(&wide, AG_F64, &narrow, f->dtype, 1));
        CHECK_OK(ag_convert(&single, AG_F32, &narrow, f->dtype, 1));
        CHECK(same_number(wide, value) && same_number((double)single, value),
              "%s %#06x is %a: f64 %a, f32 %a", ag_dtype_name(f->dtype), bits, value, wide, (double)single);
        unsigned back64 = convert_to_bits(f, &wide, AG_F64), back32 = convert_to_bits(f, &single, AG_F32);
        CHECK(isnan(value) ? isnan(decode(f, back64)) && isnan(decode(f, back32))
                           : back64 == bits && back32 == bits,
              "%s %#06x came back as %#06x from f64, %#06x from f32", ag_dtype_name(f->dtype), bits, back64,
              back32);
    }
}

/* Between each two neighbours: the midpoint goes to the even one, and the doubles next to it to
 * the nearer one. A conversion through f32 would round the latter twice. */
static void midpoints_go_to_even(const narrow_format *f)
{
    for (unsigned bits = 0; decode(f, bits) < largest_of(f); bits++) {
        double middle = (decode(f, bits) + decode(f, bits + 1)) / 2;
        for (int sign = -1; sign <= 1; sign += 2) {
            check_rounding(f, sign * middle);
            check_rounding(f, sign * nextafter(middle, 0));
            check_rounding(f, sign * nextafter(middle, INFINITY));
            check_rounding(f, sign * (double)nextafterf((float)middle, 0));
            check_rounding(f, sign * (double)nextafterf((float)middle, INFINITY));
        }
    }
}

static void ends_of_the_range(const narrow_format *f)
{
    double limit =
        ldexp(1, f->highest + 1) - ldexp(1, f->highest - f->fraction - 1); /* rounds to infinity from here */
    double least = ldexp(1, f->lowest - f->fraction);
    const double ends[] = {limit,
                           nextafter(limit, 0),
                           nextafter(limit, INFINITY),
                           largest_of(f),
                           1e300,
                           DBL_MAX,
                           INFINITY,
                           least,
                           least / 2,
                           nextafter(least / 2, 1),
                           nextafter(least / 2, 0),
                           least / 4,
                           DBL_MIN,
                           5e-324,
                           0};
    for (size_t n = 0; n < sizeof ends / sizeof ends[0]; n++) {
        check_rounding(f, ends[n]);
        check_rounding(f, -ends[n]);
    }
}

/* A NaN whose payload lies only in bits that the narrower format lacks must not become infinity. */
static void nan_stays_nan(void)
{
    const uint64_t payloads[] = {1,          1ull << 28, 1ull << 41,      1ull << 42,
                                 1ull << 44, 1ull << 51, (1ull << 52) - 1};
    for (size_t n = 0; n < 2 * sizeof payloads / sizeof payloads[0]; n++) {
        uint64_t bits64 = 0x7ff0000000000000u | payloads[n / 2] | (uint64_t)(n % 2) << 63;
        uint32_t bits32 = 0x7f800000u | (uint32_t)(payloads[n / 2] >> 29) | 1u | (uint32_t)(n % 2) << 31;
        float single;
        CHECK_OK(ag_convert(&single, AG_F32, &bits64, AG_F64, 1));
        CHECK(isnan(single), "NaN %#llx became the f32 %g", (unsigned long long)bits64, (double)single);
        for (size_t m = 0; m < 2; m++) {
            const narrow_format *f = &narrow_formats[m];
            CHECK(isnan(decode(f, convert_to_bits(f, &bits64, AG_F64))), "NaN %#llx is lost in %s",
                  (unsigned long long)bits64, ag_dtype_name(f->dtype));
            CHECK(isnan(decode(f, convert_to_bits(f, &bits32, AG_F32))), "NaN %#x is lost in %s", bits32,
                  ag_dtype_name(f->dtype));
        }
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state ^ *state >> 29;
}

/* Doubles of any exponent, f32 as the compiler rounds, and f16 to bf16 and back directly. */
static void random_numbers(void)
{
    uint64_t state = 7;
    for (int n = 0; n < test_count(200000); n++) {
        uint64_t mantissa = next_random(&state) >> 11;
        double x = ldexp((double)mantissa, (int)(next_random(&state) >> 32) % 320 - 213);
        check_rounding(&narrow_formats[0], x);
        check_rounding(&narrow_formats[1], -x);
        float single;
        CHECK_OK(ag_convert(&single, AG_F32, &x, AG_F64, 1));
        CHECK(same_number((double)single, (double)(float)x), "f64 %a -> f32 gives %a", x, (double)single);
    }
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        uint16_t from = (uint16_t)bits;
        for (size_t m = 0; m < 2; m++) {
            const narrow_format *f = &narrow_formats[m], *g = &narrow_formats[1 - m];
            double got = decode(g, convert_to_bits(g, &from, f->dtype)), wanted = nearest(g, decode(f, bits));
            CHECK(same_number(got, wanted), "%s %#06x -> %s gives %a instead of %a", ag_dtype_name(f->dtype),
                  bits, ag_dtype_name(g->dtype), got, wanted);
        }
    }
}

/* Exactly n elements are written, neither more nor fewer. */
static void arrays_convert(void)
{
    for (int64_t n = 0; n < 40; n++) {
        double from[64], back[64];
        uint16_t to[64];
        for (int i = 0; i < 64; i++) {
            from[i] = i - 20.5;
            back[i] = to[i] = 12345;
        }
        CHECK_OK(ag_convert(to + 1, AG_F16, from + 1, AG_F64, n));
        CHECK_OK(ag_convert(back + 1, AG_F64, to + 1, AG_F16, n));
        for (int i = 0; i < 64; i++) {
            int inside = i >= 1 && i <= n;
            CHECK(back[i] == (inside ? from[i] : 12345) && (inside || to[i] == 12345), "n %d, element %d: %g",
                  (int)n, i, back[i]);
        }
    }
}

static void dtypes(void)
{
    static const struct {
        ag_dtype dtype;
        size_t size;
        const char *name;
    } table[] = {{AG_F64, 8, "f64"}, {AG_F32, 4, "f32"}, {AG_F16, 2, "f16"}, {AG_BF16, 2, "bf16"}};
    for (size_t n = 0; n < sizeof table / sizeof table[0]; n++) {
        CHECK_INT(ag_dtype_size(table[n].dtype), table[n].size);
        CHECK(strcmp(ag_dtype_name(table[n].dtype), table[n].name) == 0, "dtype %d is called '%s'",
              (int)table[n].dtype, ag_dtype_name(table[n].dtype));
    }
    const ag_dtype none[] = {0, -1, 7, 1000, INT32_MAX, INT32_MIN};
    for (size_t n = 0; n < sizeof none / sizeof none[0]; n++) {
        CHECK_INT(ag_dtype_size(none[n]), 0);
        CHECK(strcmp(ag_dtype_name(none[n]), "?") == 0, "dtype %d is called '%s'", (int)none[n],
              ag_dtype_name(none[n]));
    }
}

/* ---- Philox ------------------------------------------------------------------------------------- */

/* The vectors that its authors publish with Random123. */
static void philox_vectors(void)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t n = 0; n < sizeof vectors / sizeof vectors[0]; n++) {
        uint32_t word[4];
        agi_philox4x32_10(vectors[n].counter, vectors[n].key, word);
        for (int w = 0; w < 4; w++) {
            CHECK(word[w] == vectors[n].word[w], "vector %zu, word %d: %08x instead of %08x", n, w, word[w],
                  vectors[n].word[w]);
        }
    }
}

/* ---- One head's trace: ALiBi's default slopes, the dropout mask --------------------------------- */

/* Runs forward's trace of one head of zeros. B and M are [q_len][kv_len]. */
static void trace_zeros(const ag_problem *p, const ag_args *offsets, int64_t batch, int64_t head, double *B,
                        double *M)
{
    static const double zeros[4096];
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    ag_args args = *offsets;
    ag_trace_args trace = {sizeof trace, 0, batch, head, .B = B, .M = M};
    size_t bytes = 0;
    options.backend = AG_BACKEND_REFERENCE;
    options.threads = 1;
    args.q = args.k = args.v = ag_bhnd(zeros, 0, 0, 1); /* zero strides: every row is the same */
    if (!CHECK_OK(ag_plan_create(&plan, p, &options))) {
        return;
    }
    CHECK_OK(ag_plan_workspace(plan, AG_MAP_FORWARD, &bytes));
    void *workspace = malloc(bytes);
    test_need(workspace != NULL, "memory");
    CHECK_OK(ag_trace(plan, AG_MAP_FORWARD, &args, &trace, workspace, bytes));
    free(workspace);
    ag_plan_destroy(plan);
}

/* The slope of head h is 2^-exponent[h]; the exponents are written out as the rule gives them. */
static void default_slopes(void)
{
    static const struct {
        int64_t heads;
        double exponent[12];
    } rule[] = {
        {1, {8}},
        {2, {4, 8}},
        {3, {4, 8, 2}},
        {6, {2, 4, 6, 8, 1, 3}},
        {8, {1, 2, 3, 4, 5, 6, 7, 8}},
        {12, {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5}},
    };
    for (size_t n = 0; n < sizeof rule / sizeof rule[0]; n++) {
        ag_problem p = AG_PROBLEM_INIT;
        ag_args args = {sizeof args, .q_offset = 10, .k_offset = 8};
        CHECK_OK(ag_problem_parse("q2 k5 d1 f64 alibi", &p));
        p.heads = rule[n].heads;
        for (int64_t h = 0; h < p.heads; h++) {
            double B[10];
            trace_zeros(&p, &args, 0, h, B, NULL);
            for (int i = 0; i < 2; i++) {
                for (int j = 0; j < 5; j++) {
                    double wanted = -exp2(-rule[n].exponent[h]) * abs(i + 10 - j - 8), got = B[i * 5 + j];
                    CHECK(fabs(got - wanted) <= 1e-15 * fabs(wanted),
                          "H %d, head %d, B[%d][%d] = %.17g instead of %.17g", (int)p.heads, (int)h, i, j,
                          got, wanted);
                }
            }
        }
    }
}

/* M by its definition, written out here, at offsets that cross 2^32 and for a shard of heads and batch. */
static void dropout_mask(void)
{
    enum { NQ = 5, NK = 11 };
    static const struct {
        int64_t q_offset, k_offset, batch_offset, head_offset;
        uint64_t seed;
        double p;
    } cases[] = {
        {0, 0, 0, 0, 0, 0.5},
        {3, 2, 5, 7, 0x123456789abcdef0u, 0.25},
        {1000, 997, 0, 1, UINT64_MAX, 0.1},
        {4294967294, 4294967290, 1, 0, 42, 0.9},
        {0, 0, 3, 0, 42, 1e-10}, /* floor(p 2^32) = 0: nothing is dropped; M is still 1 / (1 - p) */
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        ag_problem p = AG_PROBLEM_INIT;
        ag_args args = {sizeof args, .q_offset = cases[n].q_offset, .k_offset = cases[n].k_offset,
                        .batch_offset = cases[n].batch_offset, .seed = cases[n].seed};
        double M[NQ * NK];
        CHECK_OK(ag_problem_parse("b2 h3 q5 k11 d1 f64", &p));
        p.dropout = cases[n].p;
        p.head_offset = cases[n].head_offset;
        trace_zeros(&p, &args, 1, 2, NULL, M);
        for (int e = 0; e < NQ * NK; e++) {
            const int64_t position = e / NK + cases[n].q_offset, g = e % NK + cases[n].k_offset;
            const uint32_t counter[4] = {(uint32_t)(g / 4), (uint32_t)position,
                                         (uint32_t)(2 + cases[n].head_offset),
                                         (uint32_t)(1 + cases[n].batch_offset)};
            const uint32_t key[2] = {(uint32_t)cases[n].seed, (uint32_t)(cases[n].seed >> 32)};
            uint32_t word[4];
            agi_philox4x32_10(counter, key, word);
            double wanted = word[g % 4] < floor(p.dropout * 4294967296.0) ? 0 : 1 / (1 - p.dropout);
            CHECK(fabs(M[e] - wanted) <= 1e-15 * wanted, "case %zu, M[%d][%d] = %g instead of %g", n, e / NK,
                  e % NK, M[e], wanted);
        }
    }
}

/* ---- Arena -------------------------------------------------------------------------------------- */

/* Takes buffers whose sizes depend on `seed` alone. Given memory, fills each and checks afterwards that all
 * still hold what was written: that no two overlap. */
static size_t take_buffers(void *memory, size_t bytes, uint64_t seed)
{
    enum { BUFFERS = 12 };
    agi_arena arena = agi_arena_begin(memory);
    unsigned char *buffer[BUFFERS];
    size_t size[BUFFERS];
    for (int n = 0; n < BUFFERS; n++) {
        const size_t element = (size_t)1 << next_random(&seed) % 4;
        /* The last buffer ends at the end of a cache line. */
        const int64_t count = n == BUFFERS - 1 ? 64 : (int64_t)(next_random(&seed) % 100);
        size[n] = element * (size_t)count;
        buffer[n] = agi_take(&arena, count, element);
        if (memory == NULL) {
            CHECK(buffer[n] == NULL, "a dry run gave memory");
            continue;
        }
        CHECK((uintptr_t)buffer[n] % AGI_CACHE_LINE == 0, "buffer %d at %p", n, (void *)buffer[n]);
        CHECK(size[n] == 0 || (buffer[n] >= (unsigned char *)memory &&
                               buffer[n] + size[n] <= (unsigned char *)memory + bytes),
              "buffer %d lies outside", n);
        memset(buffer[n], n + 1, size[n]);
    }
    for (int n = 0; memory != NULL && n < BUFFERS; n++) {
        size_t kept = 0;
        while (kept < size[n] && buffer[n][kept] == n + 1) {
            kept++;
        }
        CHECK(kept == size[n], "buffer %d was overwritten at byte %zu", n, kept);
    }
    return agi_arena_bytes(&arena);
}

static void arena_dry_run_matches_layout(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const size_t bytes = take_buffers(NULL, 0, seed);
        char *block = aligned_alloc(AGI_CACHE_LINE, (bytes / AGI_CACHE_LINE + 2) * AGI_CACHE_LINE);
        test_need(block != NULL, "memory");
        for (size_t shift = 0; shift < AGI_CACHE_LINE; shift++) {
            CHECK_INT(take_buffers(block + shift, bytes, seed), bytes);
        }
        free(block);
    }
}

static void arena_overflows(void)
{
    agi_arena arena = agi_arena_begin(NULL);
    agi_take(&arena, INT64_MAX, 8);
    CHECK(agi_arena_bytes(&arena) == SIZE_MAX, "%zu bytes", agi_arena_bytes(&arena));
    agi_take(&arena, 1, 1);
    CHECK(agi_arena_bytes(&arena) == SIZE_MAX, "%zu bytes after one more", agi_arena_bytes(&arena));
    arena = agi_arena_begin(NULL);
    agi_take(&arena, INT64_MAX / 2, 1);
    agi_take(&arena, INT64_MAX / 2, 1);
    agi_take(&arena, INT64_MAX / 2, 1);
    CHECK(agi_arena_bytes(&arena) == SIZE_MAX, "%zu bytes of a sum", agi_arena_bytes(&arena));
}

static void status_and_version(void)
{
    for (ag_status status = -1; status < 11; status++) {
        for (ag_status other = 0; other < status; other++) {
            CHECK(status > AG_TIMEOUT || strcmp(ag_status_string(status), ag_status_string(other)) != 0,
                  "status %d is '%s' too", (int)status, ag_status_string(status));
        }
        CHECK(ag_status_string(status)[0] != '\0', "status %d has no name", (int)status);
    }
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", AG_VERSION_MAJOR, AG_VERSION_MINOR, AG_VERSION_PATCH);
    CHECK(strcmp(version, ag_version_string()) == 0, "version '%s'", ag_version_string());
    CHECK_INT(ag_version(), AG_VERSION_MAJOR * 10000 + AG_VERSION_MINOR * 100 + AG_VERSION_PATCH);
    ag_info info = {.struct_size = sizeof info};
    char backends[sizeof info.backends] = "";
    CHECK_OK(ag_info_get(&info));
    for (int32_t n = 0; n < ag_backend_count(); n++) {
        ag_backend_info backend = {.struct_size = sizeof backend};
        const size_t used = strlen(backends);
        CHECK_OK(ag_backend_info_get(n, &backend));
        snprintf(backends + used, sizeof backends - used, "%s%s", n > 0 ? " " : "", backend.name);
    }
    CHECK(info.threads >= 1 && strcmp(info.version, version) == 0 && strcmp(info.backends, backends) == 0,
          "info: %d threads, version '%s', backends '%s', in the list '%s'", (int)info.threads, info.version,
          info.backends, backends);
    CHECK_STATUS(ag_backend_info_get(-1, NULL), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_backend_info_get(ag_backend_count(), NULL), AG_INVALID_ARGUMENT);
    CHECK(strcmp(ag_last_field(), "index") == 0, "the field is '%s'", ag_last_field());
}

int main(void)
{
    dtypes();
    for (size_t n = 0; n < 2; n++) {
        every_value_round_trips(&narrow_formats[n]);
        midpoints_go_to_even(&narrow_formats[n]);
        ends_of_the_range(&narrow_formats[n]);
    }
    nan_stays_nan();
    random_numbers();
    arrays_convert();
    philox_vectors();
    default_slopes();
    dropout_mask();
    arena_dry_run_matches_layout();
    arena_overflows();
    status_and_version();
    return test_summary();
}
