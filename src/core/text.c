/* The text form of a problem: words, each a key with or without a value. The grammar is in
 * attngrad.h. Parsing is a table of keys; formatting walks the fields in the order of the header. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/problem.h"
#include "core/status.h"
#include "core/structs.h"

/* ---- Parsing ---- */

#define MAX_WORD 128

/* The problem being parsed. Broadcast patterns are kept here until all sizes are known. */
typedef struct {
    ag_problem p;
    char bias[5], mask[5];
    uint32_t seen; /* one bit per key */
} parser;

typedef struct key key;
struct key {
    const char *name;
    ag_status (*set)(parser *x, const key *k, const char *value); /* value NULL: the word has no '=' */
    size_t offset;                                                /* of the field that it sets, if any */
    uint32_t flag;  /* the feature that it switches on, if any */
    ag_dtype dtype; /* for words that name one */
    bool size;      /* written without '=' */
};

/* Fails with a message that shows the word as it was written: b2, but softcap=30. */
static ag_status bad_word(const key *k, const char *value, const char *rule)
{
    return agi_fail_field(AG_INVALID_PROBLEM, "text", "problem text: '%s%s%s': %s", k->name,
                          value && !k->size ? "=" : "", value ? value : "", rule);
}

static int64_t *integer_field(parser *x, size_t offset)
{
    return (int64_t *)(void *)((char *)&x->p + offset);
}

/* Reads an integer and the ',' after it, if there is one; a ',' must be followed by another number. */
static bool read_integer(const char **text, int64_t *value)
{
    char *end;
    const char *digits = **text == '-' ? *text + 1 : *text;
    if (*digits < '0' || *digits > '9') {
        return false;
    }
    errno = 0;
    const long long number = strtoll(*text, &end, 10);
    if (errno != 0 || (*end != '\0' && *end != ',')) {
        return false;
    }
    *value = number;
    *text = *end == ',' ? end + 1 : end;
    return *end == '\0' || **text != '\0';
}

static ag_status set_integer(parser *x, const key *k, const char *value)
{
    const char *text = value == NULL ? "" : value;
    if (!read_integer(&text, integer_field(x, k->offset)) || *text != '\0') {
        return bad_word(k, value, "needs one integer");
    }
    return AG_OK;
}

static ag_status set_two_integers(parser *x, const key *k, const char *value)
{
    const char *text = value == NULL ? "" : value;
    int64_t *field = integer_field(x, k->offset);
    if (!read_integer(&text, &field[0]) || !read_integer(&text, &field[1]) || *text != '\0') {
        return bad_word(k, value, "needs two integers, as in 128,0");
    }
    x->p.flags |= k->flag;
    return AG_OK;
}

/* The text form always has '.'; strtod and printf take the decimal point of the locale. */
static char decimal_point(void)
{
    char half[16];
    snprintf(half, sizeof half, "%.1f", 0.5);
    return half[1];
}

static void replace(char *text, char from, char to)
{
    for (; *text != '\0'; text++) {
        *text = *text == from ? to : *text;
    }
}

static ag_status set_real(parser *x, const key *k, const char *value)
{
    char number_text[MAX_WORD] = "";
    char *end = number_text;
    if (value != NULL && value[strspn(value, "0123456789.eE+-")] == '\0') {
        memcpy(number_text, value, strlen(value) + 1);
    }
    replace(number_text, '.', decimal_point());
    const double number = strtod(number_text, &end);
    if (end == number_text || *end != '\0' || !isfinite(number)) {
        return bad_word(k, value, "needs a finite number");
    }
    *(double *)(void *)((char *)&x->p + k->offset) = number;
    x->p.flags |= k->flag;
    return AG_OK;
}

static ag_status set_flag(parser *x, const key *k, const char *value)
{
    if (value != NULL) {
        return bad_word(k, value, "takes no value");
    }
    x->p.flags |= k->flag;
    return AG_OK;
}

static ag_status set_dtype(parser *x, const key *k, const char *value)
{
    if (value != NULL) {
        return bad_word(k, value, "takes no value");
    }
    x->p.dtype = k->dtype;
    return AG_OK;
}

static ag_status set_wider(parser *x, const key *k, const char *value)
{
    ag_dtype *field = (ag_dtype *)(void *)((char *)&x->p + k->offset);
    for (ag_dtype dtype = AG_F64; dtype <= AG_BF16; dtype++) {
        if (value != NULL && strcmp(value, ag_dtype_name(dtype)) == 0) {
            *field = dtype;
            return AG_OK;
        }
    }
    return bad_word(k, value, "needs one of f64 f32 f16 bf16");
}

static ag_status set_align(parser *x, const key *k, const char *value)
{
    if (value != NULL && strcmp(value, "bottom-right") == 0) {
        x->p.align = AG_ALIGN_BOTTOM_RIGHT;
    } else if (value == NULL || strcmp(value, "top-left") != 0) {
        return bad_word(k, value, "needs top-left or bottom-right");
    }
    return AG_OK;
}

static ag_status set_alibi(parser *x, const key *k, const char *value)
{
    if (value != NULL && strcmp(value, "slopes") != 0) {
        return bad_word(k, value, "stands alone or with slopes");
    }
    x->p.flags |= value == NULL ? AG_ALIBI : AG_SLOPES;
    return AG_OK;
}

static const char axis_letters[] = "bhqk";

static ag_status set_broadcast(parser *x, const key *k, const char *value)
{
    char *pattern = k->flag == AG_BIAS ? x->bias : x->mask;
    const char *text = value == NULL ? axis_letters : value;
    for (int axis = 0; axis < 4; axis++) {
        if (text[axis] != '1' && text[axis] != axis_letters[axis]) {
            return bad_word(k, value, "needs four axes, each 1 or its letter of bhqk, as in 1hqk");
        }
        pattern[axis] = text[axis];
    }
    if (text[4] != '\0') {
        return bad_word(k, value, "has more than four axes");
    }
    x->p.flags |= k->flag;
    return AG_OK;
}

static ag_status set_table(parser *x, const key *k, const char *value)
{
    const char *text = value == NULL ? "" : value;
    const char *rule =
        "needs a radius, then perhaps a number of buckets, then perhaps shared, as in 16,32,shared";
    x->p.flags |= AG_TABLE;
    if (!read_integer(&text, &x->p.table_radius)) {
        return bad_word(k, value, rule);
    }
    if (*text != '\0' && *text != 's' && !read_integer(&text, &x->p.table_buckets)) {
        return bad_word(k, value, rule);
    }
    if (strcmp(text, "shared") == 0) {
        x->p.table_heads = 1;
    } else if (*text != '\0') {
        return bad_word(k, value, rule);
    }
    return AG_OK;
}

/* The sizes are written without '=': b2 h8. */
static const key sizes[] = {
    {"kv", set_integer, offsetof(ag_problem, kv_heads), 0, 0, true},
    {"dv", set_integer, offsetof(ag_problem, dim_v), 0, 0, true},
    {"b", set_integer, offsetof(ag_problem, batch), 0, 0, true},
    {"h", set_integer, offsetof(ag_problem, heads), 0, 0, true},
    {"q", set_integer, offsetof(ag_problem, q_len), 0, 0, true},
    {"k", set_integer, offsetof(ag_problem, kv_len), 0, 0, true},
    {"d", set_integer, offsetof(ag_problem, dim_qk), 0, 0, true},
};

static const key words[] = {
    {"f64", set_dtype, 0, 0, AG_F64, false},
    {"f32", set_dtype, 0, 0, AG_F32, false},
    {"f16", set_dtype, 0, 0, AG_F16, false},
    {"bf16", set_dtype, 0, 0, AG_BF16, false},
    {"out", set_wider, offsetof(ag_problem, out_dtype), 0, 0, false},
    {"grad", set_wider, offsetof(ag_problem, grad_dtype), 0, 0, false},
    {"aux", set_wider, offsetof(ag_problem, aux_dtype), 0, 0, false},
    {"causal", set_flag, 0, AG_CAUSAL, 0, false},
    {"align", set_align, 0, 0, 0, false},
    {"window", set_two_integers, offsetof(ag_problem, window_left), AG_WINDOW, 0, false},
    {"scale", set_real, offsetof(ag_problem, scale), AG_SCALE, 0, false},
    {"softcap", set_real, offsetof(ag_problem, softcap), 0, 0, false},
    {"dropout", set_real, offsetof(ag_problem, dropout), 0, 0, false},
    {"sink", set_flag, 0, AG_SINK, 0, false},
    {"bias", set_broadcast, 0, AG_BIAS, 0, false},
    {"mask", set_broadcast, 0, AG_MASK, 0, false},
    {"table", set_table, 0, 0, 0, false},
    {"alibi", set_alibi, 0, 0, 0, false},
    {"packed", set_two_integers, offsetof(ag_problem, q_total), AG_PACKED, 0, false},
    {"head_offset", set_integer, offsetof(ag_problem, head_offset), 0, 0, false},
};

enum { N_SIZES = sizeof sizes / sizeof sizes[0], N_WORDS = sizeof words / sizeof words[0] };

/* The four dtypes count as one key: only one of them may appear. */
static uint32_t seen_bit(const key *k)
{
    const ptrdiff_t index = k >= sizes && k < sizes + N_SIZES ? k - sizes
                            : k->set == set_dtype             ? N_SIZES
                                                              : N_SIZES + (k - words);
    return UINT32_C(1) << index;
}

static ag_status set_once(parser *x, const key *k, const char *value)
{
    if (x->seen & seen_bit(k)) {
        return bad_word(k, value, k->set == set_dtype ? "is a second dtype" : "stands twice");
    }
    x->seen |= seen_bit(k);
    return k->set(x, k, value);
}

/* Finds the key of a size: letters that name one, then a digit or a sign. */
static const key *size_key(const char *word, const char **value)
{
    for (int i = 0; i < N_SIZES; i++) {
        const size_t n = strlen(sizes[i].name);
        const char *rest = word + n;
        if (strncmp(word, sizes[i].name, n) == 0 && (*rest == '-' || (*rest >= '0' && *rest <= '9'))) {
            *value = rest;
            return &sizes[i];
        }
    }
    return NULL;
}

static ag_status parse_word(parser *x, char *word)
{
    const char *value = NULL;
    char *equals = strchr(word, '=');
    for (int i = 0; i < N_WORDS; i++) {
        const size_t n = equals == NULL ? strlen(word) : (size_t)(equals - word);
        if (n == strlen(words[i].name) && memcmp(word, words[i].name, n) == 0) {
            return set_once(x, &words[i], equals == NULL ? NULL : equals + 1);
        }
    }
    const key *size = size_key(word, &value);
    if (size != NULL) {
        return set_once(x, size, value);
    }
    return agi_fail_field(AG_INVALID_PROBLEM, "text", "problem text: '%s' is no word of a problem", word);
}

static ag_status parse_words(parser *x, const char *text)
{
    static const char spaces[] = " \t\n";
    for (text += strspn(text, spaces); *text != '\0'; text += strspn(text, spaces)) {
        char word[MAX_WORD];
        const size_t n = strcspn(text, spaces);
        if (n >= sizeof word) {
            return agi_fail_field(AG_INVALID_PROBLEM, "text",
                                  "problem text: a word of %zu letters: '%.20s...'", n, text);
        }
        memcpy(word, text, n);
        word[n] = '\0';
        text += n;
        const ag_status status = parse_word(x, word);
        if (status != AG_OK) {
            return status;
        }
    }
    return AG_OK;
}

static bool seen_size(const parser *x, const char *name)
{
    for (int i = 0; i < N_SIZES; i++) {
        if (strcmp(sizes[i].name, name) == 0) {
            return (x->seen & seen_bit(&sizes[i])) != 0;
        }
    }
    return false;
}

static void expand(const ag_problem *p, const char *pattern, int64_t size[4])
{
    const int64_t full[4] = {p->batch, p->heads, p->q_len, p->kv_len};
    for (int axis = 0; axis < 4; axis++) {
        size[axis] = pattern[axis] == '1' ? 1 : full[axis];
    }
}

static ag_status complete_text(parser *x)
{
    if (!seen_size(x, "q") || !seen_size(x, "d") || x->p.dtype == 0) {
        return agi_fail_field(AG_INVALID_PROBLEM, "text", "problem text: needs %s, as in 'q128 d64 f32'",
                              !seen_size(x, "q")   ? "q, the number of queries"
                              : !seen_size(x, "d") ? "d, the channels of a head"
                                                   : "a dtype, f64 f32 f16 or bf16");
    }
    if (!seen_size(x, "k")) {
        x->p.kv_len = x->p.q_len;
    }
    if (agi_has(&x->p, AG_BIAS)) {
        expand(&x->p, x->bias, x->p.bias_size);
    }
    if (agi_has(&x->p, AG_MASK)) {
        expand(&x->p, x->mask, x->p.mask_size);
    }
    return AG_OK;
}

ag_status ag_problem_parse(const char *text, ag_problem *problem)
{
    parser x = {.p = {.batch = 1, .heads = 1}};
    ag_problem theirs;
    if (text == NULL || problem == NULL) {
        const char *missing = text == NULL ? "text" : "problem";
        return agi_fail_field(AG_INVALID_ARGUMENT, missing, "%s is NULL", missing);
    }
    ag_status status = agi_read_struct(&theirs, sizeof theirs, problem, "problem", AG_INVALID_PROBLEM);
    if (status == AG_OK) {
        status = parse_words(&x, text);
    }
    if (status == AG_OK) {
        status = complete_text(&x);
    }
    if (status == AG_OK) {
        x.p.struct_size = theirs.struct_size;
        memcpy(problem, &x.p, theirs.struct_size < sizeof x.p ? theirs.struct_size : sizeof x.p);
    }
    return status;
}

/* ---- Formatting ---- */

typedef struct {
    char *buf;
    size_t size, length;
} writer;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
put(writer *w, const char *format, ...);

static void put(writer *w, const char *format, ...)
{
    va_list args;
    const size_t room = w->length < w->size ? w->size - w->length : 0;
    va_start(args, format);
    const int n = vsnprintf(room ? w->buf + w->length : NULL, room, format, args);
    va_end(args);
    w->length += n > 0 ? (size_t)n : 0;
}

static void put_word(writer *w, const char *word)
{
    put(w, "%s%s", w->length ? " " : "", word);
}

static void put_integer(writer *w, const char *prefix, int64_t value)
{
    put_word(w, prefix);
    put(w, "%lld", (long long)value);
}

/* The shortest decimal form that reads back as the same number. */
static void put_real(writer *w, const char *prefix, double value)
{
    char digits[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    replace(digits, decimal_point(), '.');
    put_word(w, prefix);
    put(w, "%s", digits);
}

static void put_sizes(writer *w, const ag_problem *p)
{
    put_integer(w, "b", p->batch);
    put_integer(w, "h", p->heads);
    if (p->kv_heads != p->heads) {
        put_integer(w, "kv", p->kv_heads);
    }
    put_integer(w, "q", p->q_len);
    put_integer(w, "k", p->kv_len);
    put_integer(w, "d", p->dim_qk);
    if (p->dim_v != p->dim_qk) {
        put_integer(w, "dv", p->dim_v);
    }
}

static void put_dtypes(writer *w, const ag_problem *p)
{
    const struct {
        const char *prefix;
        ag_dtype dtype;
    } wider[] = {{"out=", p->out_dtype}, {"grad=", p->grad_dtype}, {"aux=", p->aux_dtype}};
    put_word(w, ag_dtype_name(p->dtype));
    for (int i = 0; i < 3; i++) {
        if (wider[i].dtype != p->dtype) {
            put_word(w, wider[i].prefix);
            put(w, "%s", ag_dtype_name(wider[i].dtype));
        }
    }
}

static void put_scores(writer *w, const ag_problem *p)
{
    if (agi_has(p, AG_CAUSAL)) {
        put_word(w, "causal");
    }
    if (p->align == AG_ALIGN_BOTTOM_RIGHT) {
        put_word(w, "align=bottom-right");
    }
    if (agi_has(p, AG_WINDOW)) {
        put_integer(w, "window=", p->window_left);
        put(w, ",%lld", (long long)p->window_right);
    }
    if (agi_has(p, AG_SCALE)) {
        put_real(w, "scale=", p->scale);
    }
    if (p->softcap != 0) {
        put_real(w, "softcap=", p->softcap);
    }
}

static void put_broadcast(writer *w, const char *prefix, const int64_t size[4])
{
    put_word(w, prefix);
    for (int axis = 0; axis < 4; axis++) {
        put(w, "%c", size[axis] == 1 ? '1' : axis_letters[axis]);
    }
}

static void put_biases(writer *w, const ag_problem *p)
{
    if (agi_has(p, AG_BIAS)) {
        put_broadcast(w, "bias=", p->bias_size);
    }
    if (agi_has(p, AG_MASK)) {
        put_broadcast(w, "mask=", p->mask_size);
    }
    if (agi_has(p, AG_TABLE)) {
        put_integer(w, "table=", p->table_radius);
        if (p->table_buckets != 2 * p->table_radius + 1) {
            put(w, ",%lld", (long long)p->table_buckets);
        }
        if (p->table_heads != p->heads) {
            put(w, ",shared");
        }
    }
    if (agi_has(p, AG_ALIBI | AG_SLOPES)) {
        put_word(w, agi_has(p, AG_SLOPES) ? "alibi=slopes" : "alibi");
    }
}

static void put_rest(writer *w, const ag_problem *p)
{
    if (agi_has(p, AG_SINK)) {
        put_word(w, "sink");
    }
    if (p->dropout != 0) {
        put_real(w, "dropout=", p->dropout);
    }
    if (agi_has(p, AG_PACKED)) {
        put_integer(w, "packed=", p->q_total);
        put(w, ",%lld", (long long)p->kv_total);
    }
    if (p->head_offset != 0) {
        put_integer(w, "head_offset=", p->head_offset);
    }
}

ag_status ag_problem_format(const ag_problem *problem, char *buf, size_t size, size_t *length)
{
    ag_problem complete;
    writer w = {buf, buf == NULL ? 0 : size, 0};
    const ag_status status = agi_problem_complete(&complete, problem);
    if (status != AG_OK) {
        return status;
    }
    put_sizes(&w, &complete);
    put_dtypes(&w, &complete);
    put_scores(&w, &complete);
    put_biases(&w, &complete);
    put_rest(&w, &complete);
    if (length != NULL) {
        *length = w.length;
    }
    if (buf != NULL && w.length >= size) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "size", "size is %zu: the text needs %zu", size,
                              w.length + 1);
    }
    return AG_OK;
}
