/* The text form of a problem: what each word sets, that parse and format are inverses of each other,
 * and that every wrong text is refused by a message that names the wrong word and leaves the problem
 * as it was. */
#include "test.h"

#include <locale.h>
#include <math.h>
#include <stddef.h>

static ag_problem parsed(const char *text)
{
    ag_problem p = AG_PROBLEM_INIT;
    CHECK(ag_problem_parse(text, &p) == AG_OK, "'%s': %s", text, ag_last_message());
    return p;
}

static int same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static int same_sizes(const int64_t *a, const int64_t *b)
{
    return memcmp(a, b, 4 * sizeof *a) == 0;
}

/* All fields but struct_size, reserved and the pointers. */
static int same_problem(const ag_problem *a, const ag_problem *b)
{
    return a->flags == b->flags && a->dtype == b->dtype && a->out_dtype == b->out_dtype &&
           a->grad_dtype == b->grad_dtype && a->aux_dtype == b->aux_dtype && a->align == b->align &&
           a->batch == b->batch && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->q_len == b->q_len && a->kv_len == b->kv_len && a->dim_qk == b->dim_qk && a->dim_v == b->dim_v &&
           a->q_total == b->q_total && a->kv_total == b->kv_total && same_double(a->scale, b->scale) &&
           same_double(a->softcap, b->softcap) && same_double(a->dropout, b->dropout) &&
           a->window_left == b->window_left && a->window_right == b->window_right &&
           same_sizes(a->bias_size, b->bias_size) && same_sizes(a->mask_size, b->mask_size) &&
           a->table_radius == b->table_radius && a->table_buckets == b->table_buckets &&
           a->table_heads == b->table_heads && a->head_offset == b->head_offset;
}

/* ---- What each word sets ------------------------------------------------------------------------ */

static void words_set_their_fields(void)
{
    ag_problem p =
        parsed("b2 h8 kv2 q128 k96 d64 dv32 bf16 out=f32 grad=f32 aux=f32 causal align=bottom-right "
               "window=3,-1 scale=0.25 softcap=30 dropout=0.1 sink bias=1hqk mask=b11k table=7,4,shared "
               "alibi=slopes head_offset=5");
    CHECK_INT(p.batch, 2);
    CHECK_INT(p.heads, 8);
    CHECK_INT(p.kv_heads, 2);
    CHECK_INT(p.q_len, 128);
    CHECK_INT(p.kv_len, 96);
    CHECK_INT(p.dim_qk, 64);
    CHECK_INT(p.dim_v, 32);
    CHECK_INT(p.dtype, AG_BF16);
    CHECK_INT(p.out_dtype, AG_F32);
    CHECK_INT(p.grad_dtype, AG_F32);
    CHECK_INT(p.aux_dtype, AG_F32);
    CHECK_INT(p.align, AG_ALIGN_BOTTOM_RIGHT);
    CHECK_INT(p.window_left, 3);
    CHECK_INT(p.window_right, -1);
    CHECK(p.scale == 0.25 && p.softcap == 30 && p.dropout == 0.1, "scale %g softcap %g dropout %g", p.scale,
          p.softcap, p.dropout);
    CHECK_INT(p.flags, AG_CAUSAL | AG_WINDOW | AG_SCALE | AG_SINK | AG_BIAS | AG_MASK | AG_TABLE | AG_SLOPES);
    CHECK(same_sizes(p.bias_size, (const int64_t[]){1, 8, 128, 96}), "bias_size of bias=1hqk");
    CHECK(same_sizes(p.mask_size, (const int64_t[]){2, 1, 1, 96}), "mask_size of mask=b11k");
    CHECK_INT(p.table_radius, 7);
    CHECK_INT(p.table_buckets, 4);
    CHECK_INT(p.table_heads, 1);
    CHECK_INT(p.head_offset, 5);
    CHECK_INT(p.struct_size, sizeof p);
}

static void words_have_defaults(void)
{
    ag_problem p = parsed("q7 d4 f32");
    CHECK_INT(p.batch, 1);
    CHECK_INT(p.heads, 1);
    CHECK_INT(p.q_len, 7);
    CHECK_INT(p.kv_len, 7);
    CHECK_INT(p.dim_qk, 4);
    CHECK_INT(p.flags, 0);
    CHECK(p.softcap == 0 && p.dropout == 0, "softcap %g dropout %g", p.softcap, p.dropout);
    CHECK(p.buckets == NULL && p.alibi_slopes == NULL, "parse set an array");
    p = parsed("q7 d4 f32 bias mask table=3 alibi");
    CHECK(same_sizes(p.bias_size, (const int64_t[]){1, 1, 7, 7}), "bias_size of bias");
    CHECK(same_sizes(p.mask_size, (const int64_t[]){1, 1, 7, 7}), "mask_size of mask");
    CHECK_INT(p.flags, AG_BIAS | AG_MASK | AG_TABLE | AG_ALIBI);
    p = parsed("b2 q5 k3 d4 f64 packed=9,6");
    CHECK_INT(p.q_total, 9);
    CHECK_INT(p.kv_total, 6);
    CHECK_INT(p.flags, AG_PACKED);
}

static void parse_overwrites_every_field(void)
{
    ag_problem p = parsed("b3 h6 q9 d8 f16 sink causal softcap=2 table=5,3 bias head_offset=4");
    ag_problem fresh = parsed("q2 d2 f64");
    CHECK_OK(ag_problem_parse("q2 d2 f64", &p));
    CHECK(same_problem(&p, &fresh), "fields of the earlier problem stayed");
}

/* Pairs of texts that mean the same problem: any order of words, any number of spaces, defaults. */
static void equivalent_texts(void)
{
    static const char *const pairs[][2] = {
        {"b2 h4 q8 k6 d4 f32 causal sink", "sink f32 d4 causal k6 q8 h4 b2"},
        {"b2 q8 k6 d4 f32 bias=b1q1", "bias=b1q1 f32 d4 k6 q8 b2"},
        {"q8 d4 f32", "   q8    d4 f32  "},
        {"q8 d4 f32", "b1 h1 q8 k8 d4 f32"},
        {"b2 h3 q8 d4 f32 bias", "b2 h3 q8 d4 f32 bias=bhqk"},
        {"b2 h3 q8 d4 f32 mask", "b2 h3 q8 d4 f32 mask=bhqk"},
        {"q8 d4 f32 scale=0.5", "q8 d4 f32 scale=5e-1"},
    };
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        ag_problem a = parsed(pairs[n][0]), b = parsed(pairs[n][1]);
        char one[256] = "", two[256] = "";
        CHECK_OK(ag_problem_format(&a, one, sizeof one, NULL));
        CHECK_OK(ag_problem_format(&b, two, sizeof two, NULL));
        CHECK(strcmp(one, two) == 0, "'%s' and '%s' became '%s' and '%s'", pairs[n][0], pairs[n][1], one,
              two);
    }
}

/* ---- Round trip --------------------------------------------------------------------------------- */

/* With every default filled in, as the plan sees it; the arrays that have no text are given here. */
static ag_problem completed(const ag_problem *p)
{
    static const int32_t buckets[64];
    static const double slopes[64];
    ag_problem given = *p, complete = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.threads = 1;
    given.buckets = buckets;
    given.alibi_slopes = slopes;
    if (CHECK_OK(ag_plan_create(&plan, &given, &options))) {
        complete = *ag_plan_problem(plan);
    }
    ag_plan_destroy(plan);
    return complete;
}

/* text -> problem -> text -> problem: both problems are the same, and so are the texts that format writes for them. */
static void round_trip(const char *text)
{
    ag_problem p = parsed(text), reparsed = AG_PROBLEM_INIT;
    char first[512] = "", second[512] = "";
    size_t length = 0;
    if (!CHECK(ag_problem_format(&p, first, sizeof first, &length) == AG_OK, "format of '%s': %s", text,
               ag_last_message())) {
        return;
    }
    CHECK(length == strlen(first), "'%s': length %zu of %zu", first, length, strlen(first));
    CHECK(ag_problem_parse(first, &reparsed) == AG_OK, "'%s' became '%s': %s", text, first,
          ag_last_message());
    ag_problem one = completed(&p), two = completed(&reparsed);
    CHECK(same_problem(&one, &two), "'%s' became '%s', another problem", text, first);
    CHECK_OK(ag_problem_format(&reparsed, second, sizeof second, NULL));
    CHECK(strcmp(first, second) == 0, "'%s' became '%s'", first, second);
}

static void round_trips(void)
{
    static const char *const shapes[] = {
        "q1 d1",          "b2 h8 kv2 q128 k96 d64 dv32",           "b0 q4 d4",          "q0 k5 d3",
        "q5 k0 d3 dv512", "b3 h6 kv3 q5 k7 d512 dv1 packed=11,13", "b4294967295 q0 d1",
    };
    static const char *const dtypes[] = {"f64", "f32 out=f32", "f16 out=f32", "bf16 grad=f32 aux=f32"};
    static const char *const features[] = {
        "",
        "causal",
        "align=bottom-right",
        "causal align=bottom-right",
        "window=0,0",
        "window=-1,-1",
        "window=3,-1",
        "window=9223372036854775807,2",
        "scale=0.1",
        "scale=-3",
        "scale=0",
        "scale=5e-324",
        "scale=1.7976931348623157e308",
        "scale=0.30000000000000004",
        "softcap=30",
        "softcap=1e-300",
        "dropout=0.1",
        "dropout=0.99999999999999989",
        "sink",
        "bias",
        "bias=1111",
        "bias=b11k",
        "mask",
        "mask=1hq1",
        "table=0",
        "table=3",
        "table=3,5",
        "table=3,shared",
        "table=3,5,shared",
        "alibi",
        "alibi=slopes",
        "alibi=slopes head_offset=7",
        "dropout=0.5 head_offset=1000000",
        "causal window=1,0 softcap=2 scale=3 dropout=0.25 sink bias=b1qk mask=1h1k table=9,3,shared alibi",
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            for (size_t f = 0; f < sizeof features / sizeof features[0]; f++) {
                char text[512];
                snprintf(text, sizeof text, "%s %s %s", shapes[s], dtypes[d], features[f]);
                round_trip(text);
            }
        }
    }
}

/* Any double must come back with its bits. */
static void doubles_keep_their_bits(void)
{
    uint64_t state = 1;
    for (int n = 0; n < test_count(2000); n++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ag_problem p = parsed("q1 d1 f32"), reparsed = AG_PROBLEM_INIT;
        memcpy(&p.scale, &state, sizeof p.scale);
        p.flags |= AG_SCALE;
        p.softcap = ldexp((double)(state >> 11), -60);
        p.dropout = ldexp((double)(state >> 11), -53);
        char text[256] = "";
        if (!isfinite(p.scale)) {
            continue;
        }
        CHECK_OK(ag_problem_format(&p, text, sizeof text, NULL));
        CHECK_OK(ag_problem_parse(text, &reparsed));
        CHECK(same_problem(&p, &reparsed), "'%s' is not scale %a, softcap %a, dropout %a", text, p.scale,
              p.softcap, p.dropout);
    }
}

/* A buffer of any size: one that is too small is refused, *length is set, nothing is written past the end. */
static void format_into_small_buffers(void)
{
    ag_problem p = parsed("b2 h8 kv2 q128 k96 d64 dv32 f32 causal softcap=30 sink");
    size_t length = 0;
    CHECK_OK(ag_problem_format(&p, NULL, 0, &length));
    CHECK(length > 20, "length %zu", length);
    for (size_t size = 0; size <= length + 1; size++) {
        char buf[256];
        size_t reported = 0;
        memset(buf, '#', sizeof buf);
        ag_status status = ag_problem_format(&p, buf, size, &reported);
        CHECK(status == (size > length ? AG_OK : AG_INVALID_ARGUMENT), "size %zu: %s", size,
              ag_status_string(status));
        CHECK(reported == length, "size %zu: length %zu instead of %zu", size, reported, length);
        CHECK(buf[size] == '#', "size %zu: wrote past the buffer", size);
        CHECK(status != AG_OK || strlen(buf) == length, "size %zu: '%.*s'", size, (int)size, buf);
    }
}

/* ---- Wrong texts -------------------------------------------------------------------------------- */

/* What is wrong, and what the message must contain: the word itself, or the name of what is missing. */
static const char *const wrong[][2] = {
    {"", "q"},
    {"d4 f32", "q"},
    {"q4 f32", "d"},
    {"q4 d4", "dtype"},
    {"q4 d4 f32 f16", "f16"},
    {"q4 d4 f32 f32", "f32"},
    {"q4 q5 d4 f32", "q5"},
    {"q4 d4 f32 causal causal", "causal"},
    {"q4 d4 f32 bias bias=1111", "bias=1111"},
    {"q4 d4 f32 alibi alibi=slopes", "alibi=slopes"},
    {"q4 d4 f32 scale=1 scale=2", "scale=2"},
    {"q+4 d4 f32", "q+4"},
    {"q4.5 d4 f32", "q4.5"},
    {"q4x d4 f32", "q4x"},
    {"q 4 d4 f32", "q"},
    {"q0x10 d4 f32", "q0x10"},
    {"q9223372036854775808 d4 f32", "q9223372036854775808"},
    {"q99999999999999999999999999 d4 f32", "q99999999999999999999999999"},
    {"q18446744073709551620 d4 f32", "q18446744073709551620"},
    {"q4 d4 f32 kv", "kv"},
    {"q4 d4 f32 dv", "dv"},
    {"q4 d4 f32 h", "h"},
    {"q4 d4 f32 nonsense", "nonsense"},
    {"q4 d4 f32 Causal", "Causal"},
    {"q4 d4 f32 causal=1", "causal=1"},
    {"q4 d4 f32 causal=", "causal="},
    {"q4 d4 f32 sink=2", "sink=2"},
    {"q4 d4 f31", "f31"},
    {"q4 d4 f32x", "f32x"},
    {"q4 d4 f32 out=", "out="},
    {"q4 d4 f32 out=f", "out=f"},
    {"q4 d4 f32 out", "out"},
    {"q4 d4 f32 grad=int8", "grad=int8"},
    {"q4 d4 f32 aux=f320", "aux=f320"},
    {"q4 d4 f32 align=middle", "align=middle"},
    {"q4 d4 f32 align", "align"},
    {"q4 d4 f32 window", "window"},
    {"q4 d4 f32 window=", "window="},
    {"q4 d4 f32 window=1", "window=1"},
    {"q4 d4 f32 window=1,", "window=1,"},
    {"q4 d4 f32 window=,1", "window=,1"},
    {"q4 d4 f32 window=1,2,3", "window=1,2,3"},
    {"q4 d4 f32 window=1,2x", "window=1,2x"},
    {"q4 d4 f32 window=99999999999999999999,0", "window=99999999999999999999,0"},
    {"q4 d4 f32 scale", "scale"},
    {"q4 d4 f32 scale=", "scale="},
    {"q4 d4 f32 scale=one", "scale=one"},
    {"q4 d4 f32 scale=1,5", "scale=1,5"},
    {"q4 d4 f32 scale=1e", "scale=1e"},
    {"q4 d4 f32 softcap=", "softcap="},
    {"q4 d4 f32 softcap=3O", "softcap=3O"},
    {"q4 d4 f32 dropout=", "dropout="},
    {"q4 d4 f32 dropout=10%", "dropout=10%"},
    {"q4 d4 f32 bias=", "bias="},
    {"q4 d4 f32 bias=bhq", "bias=bhq"},
    {"q4 d4 f32 bias=bhqkk", "bias=bhqkk"},
    {"q4 d4 f32 bias=hbqk", "bias=hbqk"},
    {"q4 d4 f32 bias=bhq2", "bias=bhq2"},
    {"q4 d4 f32 mask=", "mask="},
    {"q4 d4 f32 mask=0000", "mask=0000"},
    {"q4 d4 f32 table", "table"},
    {"q4 d4 f32 table=", "table="},
    {"q4 d4 f32 table=x", "table=x"},
    {"q4 d4 f32 table=3,", "table=3,"},
    {"q4 d4 f32 table=3,share", "table=3,share"},
    {"q4 d4 f32 table=3,shared,5", "table=3,shared,5"},
    {"q4 d4 f32 table=3,5,6", "table=3,5,6"},
    {"q4 d4 f32 table=3,5,shared,1", "table=3,5,shared,1"},
    {"q4 d4 f32 table=shared", "table=shared"},
    {"q4 d4 f32 alibi=", "alibi="},
    {"q4 d4 f32 alibi=default", "alibi=default"},
    {"q4 d4 f32 packed", "packed"},
    {"q4 d4 f32 packed=", "packed="},
    {"q4 d4 f32 packed=4", "packed=4"},
    {"q4 d4 f32 packed=4,4,4", "packed=4,4,4"},
    {"q4 d4 f32 head_offset", "head_offset"},
    {"q4 d4 f32 head_offset=", "head_offset="},
    {"q4 d4 f32 head_offset=1x", "head_offset=1x"},
    {"q4,d4,f32", "q4,d4,f32"},
    {"q4 d4 f32 \x01\xff", "problem"},
};

static void wrong_texts(void)
{
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        const char *text = wrong[n][0];
        ag_problem p = AG_PROBLEM_INIT, before;
        p.q_len = 77;
        p.scale = 3;
        before = p;
        ag_status status = ag_problem_parse(text, &p);
        CHECK(status == AG_INVALID_PROBLEM, "'%s': %s", text, ag_status_string(status));
        CHECK(strstr(ag_last_message(), wrong[n][1]) != NULL, "'%s': the message '%s' does not name '%s'",
              text, ag_last_message(), wrong[n][1]);
        CHECK(strcmp(ag_last_field(), "text") == 0, "'%s': the field is '%s'", text, ag_last_field());
        CHECK(strchr(ag_last_message(), '\n') == NULL, "'%s': more than one line", text);
        CHECK(same_problem(&p, &before), "'%s': the problem was changed", text);
    }
}

/* Values that can be read but that their field does not allow: refused by parse or by the plan. */
static void wrong_values(void)
{
    static const char *const texts[] = {
        "q4 d4 f32 scale=nan",
        "q4 d4 f32 scale=inf",
        "q4 d4 f32 scale=1e999",
        "q4 d4 f32 softcap=nan",
        "q4 d4 f32 softcap=inf",
        "q4 d4 f32 softcap=-1",
        "q4 d4 f32 dropout=1",
        "q4 d4 f32 dropout=-0.1",
        "q4 d4 f32 dropout=nan",
        "q4 d4 f32 window=-2,0",
        "q4 d4 f32 table=-1",
        "q4 d4 f32 head_offset=-1",
        "q4 d513 f32",
        "q4 d0 f32",
        "h3 kv2 q4 d4 f32",
        "h0 q4 d4 f32",
        "q-4 d4 f32",
        "q4 k-4 d4 f32",
        "b-1 q4 d4 f32",
        "q4 d-4 f32",
        "q4 d4 f32 packed=-1,4",
        "q4 d4 f64 out=f32",
        "q4 d4 f32 aux=f16",
        "q4 d4 f16 grad=f64",
    };
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        ag_problem p = AG_PROBLEM_INIT;
        ag_plan *plan = NULL;
        ag_status status = ag_problem_parse(texts[n], &p);
        if (status == AG_OK) {
            status = ag_plan_create(&plan, &p, NULL);
        }
        CHECK(status == AG_INVALID_PROBLEM, "'%s': %s", texts[n], ag_status_string(status));
        ag_plan_destroy(plan);
    }
}

/* No text makes parse read out of bounds, and what it accepts it can also write. */
static void garbage(void)
{
    static const char *const pieces[] = {"q", "4",      "d",      "8",     "f32",    " ",     "=",    ",",
                                         "-", "bias",   "1hqk",   "table", "shared", "scale", "1e5",  "nan",
                                         ".", "causal", "packed", "\t",    "bf16",   "kv",    "alibi"};
    const unsigned n_pieces = sizeof pieces / sizeof pieces[0];
    uint32_t state = 12345;
    for (int n = 0; n < test_count(20000); n++) {
        char text[256] = "";
        for (int piece = 0; piece < n % 20; piece++) {
            state = state * 1664525u + 1013904223u;
            strcat(text, pieces[(state >> 8) % n_pieces]);
        }
        ag_problem p = AG_PROBLEM_INIT;
        ag_plan *plan = NULL;
        if (ag_problem_parse(text, &p) == AG_OK && ag_plan_create(&plan, &p, NULL) == AG_OK) {
            round_trip(text);
        } else {
            CHECK(ag_last_message()[0] != '\0', "'%s' refused without a message", text);
        }
        ag_plan_destroy(plan);
    }
}

static void a_very_long_text(void)
{
    size_t size = 1 << 20;
    char *text = malloc(size);
    test_need(text != NULL, "memory");
    memset(text, 'x', size - 1);
    text[size - 1] = '\0';
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_STATUS(ag_problem_parse(text, &p), AG_INVALID_PROBLEM);
    memset(text, ' ', size - 1);
    memcpy(text + size - 11, "q4 d4 f32", 9);
    CHECK_OK(ag_problem_parse(text, &p));
    free(text);
}

static void absent_arguments(void)
{
    ag_problem p = parsed("q4 d4 f32");
    CHECK(ag_problem_parse(NULL, &p) != AG_OK, "parse of NULL");
    CHECK(ag_problem_parse("q4 d4 f32", NULL) != AG_OK, "parse into NULL");
    CHECK(ag_problem_format(NULL, NULL, 0, NULL) != AG_OK, "format of NULL");
    CHECK_OK(ag_problem_format(&p, NULL, 0, NULL));
}

/* What has no text is refused instead of being written as another problem. */
static void problems_without_text(void)
{
    char text[256];
    ag_problem p = parsed("b2 q4 d4 f32 bias");
    p.bias_size[2] = 3;
    CHECK(ag_problem_format(&p, text, sizeof text, NULL) != AG_OK, "bias_size[2] = 3 became '%s'", text);
    p = parsed("q4 d4 f32");
    p.dtype = 0;
    CHECK(ag_problem_format(&p, text, sizeof text, NULL) != AG_OK, "dtype 0 became '%s'", text);
    p.dtype = AG_F32;
    p.flags |= 1u << 31;
    CHECK(ag_problem_format(&p, text, sizeof text, NULL) != AG_OK, "flags %#x became '%s'", p.flags, text);
}

/* A program's locale may write a half as 0,5; the text form does not. */
static void other_locales(void)
{
    static const char *const with_comma[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8",
                                             "es_ES.UTF-8", "es_ES.utf8", "ru_RU.UTF-8", "pt_BR.UTF-8"};
    size_t n = 0;
    while (n < sizeof with_comma / sizeof with_comma[0] && setlocale(LC_NUMERIC, with_comma[n]) == NULL) {
        n++;
    }
    if (strcmp(localeconv()->decimal_point, ".") == 0) {
        printf("no locale with a decimal comma is installed: texts are tested in the C locale only\n");
        return;
    }
    ag_problem p = parsed("q4 d4 f32 scale=0.5");
    char text[128] = "";
    CHECK(p.scale == 0.5, "in a locale with a comma scale=0.5 is read as %g", p.scale);
    CHECK_OK(ag_problem_format(&p, text, sizeof text, NULL));
    CHECK(strstr(text, "scale=0.5") != NULL, "in a locale with a comma the text is '%s'", text);
    CHECK_STATUS(ag_problem_parse("q4 d4 f32 scale=0,5", &p), AG_INVALID_PROBLEM);
    setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    words_set_their_fields();
    words_have_defaults();
    parse_overwrites_every_field();
    equivalent_texts();
    round_trips();
    doubles_keep_their_bits();
    format_into_small_buffers();
    wrong_texts();
    wrong_values();
    garbage();
    a_very_long_text();
    absent_arguments();
    problems_without_text();
    other_locales();
    return test_summary();
}
