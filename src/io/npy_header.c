/* Parses a header such as
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 * It accepts what NumPy writes and reads, the three keys in any order, and no other Python expression. */
#include "io/npy_header.h"

#include <string.h>

enum { KEY_DESCR = 1 << 0, KEY_ORDER = 1 << 1, KEY_SHAPE = 1 << 2, KEY_ALL = 7, WORD_SIZE = 24 };

typedef struct {
    const char *at, *end;
} cursor;

static ag_io_status bad_header(const char *why)
{
    return agi_io_fail(AG_IO_INVALID_FILE, "wrong .npy header: %s", why);
}

static char peek(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) {
        c->at++;
    }
    return c->at < c->end ? *c->at : '\0';
}

static bool take(cursor *c, char wanted)
{
    if (peek(c) != wanted) {
        return false;
    }
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word)
{
    size_t length = strlen(word);
    peek(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) {
        return false;
    }
    c->at += length;
    return true;
}

/* Reads a string in single or double quotes, without escapes. */
static bool take_string(cursor *c, char word[WORD_SIZE])
{
    char quote = peek(c);
    size_t length = 0;
    if (quote != '\'' && quote != '"') {
        return false;
    }
    for (c->at++; c->at < c->end && *c->at != quote; c->at++) {
        if (length == WORD_SIZE - 1 || *c->at < ' ' || *c->at > '~' || *c->at == '\\') {
            return false;
        }
        word[length++] = *c->at;
    }
    word[length] = '\0';
    return take(c, quote);
}

/* Reads a length of at most 18 digits; Python 2 wrote an L after it. */
static bool take_length(cursor *c, int64_t *n)
{
    int digits = 0;
    char first = peek(c);
    *n = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++, digits++) {
        if (digits == 18) {
            return false;
        }
        *n = *n * 10 + (*c->at - '0');
    }
    if (digits == 0 || (first == '0' && digits > 1)) {
        return false;
    }
    if (c->at < c->end && *c->at == 'L') {
        c->at++;
    }
    return true;
}

static ag_io_status read_descr(cursor *c, ag_io_array *array, agi_io_order *order)
{
    char word[WORD_SIZE];
    if (peek(c) == '[') {
        return bad_header("arrays of records are not supported");
    }
    if (!take_string(c, word)) {
        return bad_header("descr is not a short string");
    }
    const agi_io_format *format = word[0] != '\0' ? agi_io_format_npy(word + 1) : NULL;
    bool one_byte = format != NULL && format->size == 1;
    if (format == NULL || strchr(one_byte ? "|<>=" : "<>=", word[0]) == NULL) {
        return agi_io_fail(AG_IO_INVALID_FILE, "unknown dtype '%s'; known are, little- and big-endian, %s",
                           word, agi_io_known_npy());
    }
    array->dtype = format->dtype;
    order->swapped = word[0] == '>';
    return AG_IO_OK;
}

static ag_io_status read_order(cursor *c, agi_io_order *order)
{
    order->fortran = take_word(c, "True");
    if (!order->fortran && !take_word(c, "False")) {
        return bad_header("fortran_order is neither True nor False");
    }
    return AG_IO_OK;
}

static ag_io_status read_shape(cursor *c, ag_io_array *array)
{
    if (!take(c, '(')) {
        return bad_header("shape is not a tuple");
    }
    for (array->ndim = 0; !take(c, ')'); array->ndim++) {
        if (array->ndim == AG_IO_MAX_DIMS) {
            return agi_io_fail(AG_IO_INVALID_FILE, "the array has more than %d axes", AG_IO_MAX_DIMS);
        }
        if (!take_length(c, &array->shape[array->ndim])) {
            return bad_header("an axis of the shape is not a whole number from 0 to 10^18 - 1");
        }
        /* (3) is not a tuple in Python: a single axis needs its comma. */
        if (!take(c, ',') && (array->ndim == 0 || peek(c) != ')')) {
            return bad_header("shape is not a tuple");
        }
    }
    return AG_IO_OK;
}

static ag_io_status read_item(cursor *c, ag_io_array *array, agi_io_order *order, int *seen)
{
    char word[WORD_SIZE];
    if (!take_string(c, word) || !take(c, ':')) {
        return bad_header("not a dictionary of descr, fortran_order and shape");
    }
    int key = strcmp(word, "descr") == 0           ? KEY_DESCR
              : strcmp(word, "fortran_order") == 0 ? KEY_ORDER
              : strcmp(word, "shape") == 0         ? KEY_SHAPE
                                                   : 0;
    if (key == 0) {
        return agi_io_fail(AG_IO_INVALID_FILE, "wrong .npy header: unknown key '%s'", word);
    }
    if (*seen & key) {
        return agi_io_fail(AG_IO_INVALID_FILE, "wrong .npy header: the key '%s' stands twice", word);
    }
    *seen |= key;
    return key == KEY_DESCR   ? read_descr(c, array, order)
           : key == KEY_ORDER ? read_order(c, order)
                              : read_shape(c, array);
}

ag_io_status agi_io_npy_header(const char *text, size_t length, ag_io_array *array, agi_io_order *order)
{
    cursor c = {text, text + length};
    int seen = 0;
    if (!take(&c, '{')) {
        return bad_header("it does not start with {");
    }
    while (!take(&c, '}')) {
        ag_io_status status = read_item(&c, array, order, &seen);
        if (status != AG_IO_OK) {
            return status;
        }
        if (!take(&c, ',') && peek(&c) != '}') {
            return bad_header("a comma or } is missing");
        }
    }
    if (peek(&c) != '\0' || c.at != c.end) {
        return bad_header("something follows the dictionary");
    }
    return seen == KEY_ALL ? AG_IO_OK : bad_header("descr, fortran_order or shape is missing");
}
