/* The reader of .npy on bytes in memory: what NumPy writes in every version, order and dtype, and every kind
 * of invalid file. io_python.sh tests files that NumPy itself wrote. */
#include "test.h"

#include <attngrad_io.h>

enum { CAPACITY = 1024 };

struct bytes {
    unsigned char data[CAPACITY];
    size_t size;
};

/* A .npy file of that version: header text as given, then n bytes of data. */
static struct bytes make(int major, const char *header, const void *data, size_t n)
{
    struct bytes b = {{0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)major, 0}, 0};
    size_t length = strlen(header), width = major == 1 ? 2 : 4;
    for (size_t k = 0; k < width; k++) {
        b.data[8 + k] = (unsigned char)(length >> (8 * k) & 0xff);
    }
    memcpy(b.data + 8 + width, header, length);
    if (n > 0) {
        memcpy(b.data + 8 + width + length, data, n);
    }
    b.size = 8 + width + length + n;
    return b;
}

static const ag_io_array *open_one(ag_io_file **file, const struct bytes *b, const char *what)
{
    const ag_io_array *array = NULL;
    ag_io_status status = ag_npy_open_memory(file, b->data, b->size);
    if (CHECK(status == AG_IO_OK, "%s: status %d: %s", what, (int)status, ag_io_last_message())) {
        CHECK_INT(ag_io_arrays(*file, &array), 1);
        CHECK((uintptr_t)array->data % ag_io_dtype_size(array->dtype) == 0, "%s: data is misaligned", what);
    }
    return array;
}

/* ---- What is right ---- */

static const float ramp[6] = {0, 1, 2, 3, 4, 5};

static void check_ramp(const char *header, int major, const void *data, const float *wanted)
{
    ag_io_file *file = NULL;
    struct bytes b = make(major, header, data, sizeof ramp);
    const ag_io_array *array = open_one(&file, &b, header);
    if (array != NULL) {
        CHECK(array->dtype == AG_IO_F32 && array->ndim == 2 && array->shape[0] == 2 && array->shape[1] == 3,
              "%s: dtype %d, %d axes", header, (int)array->dtype, (int)array->ndim);
        for (int n = 0; n < 6; n++) {
            float got = ((const float *)array->data)[n];
            CHECK(got == wanted[n], "%s: element %d is %g instead of %g", header, n, (double)got,
                  (double)wanted[n]);
        }
    }
    ag_io_close(file);
}

static void check_orders(void)
{
    static const float transposed[6] = {0, 2, 4, 1, 3, 5}; /* element (i, j) of the ramp is i + 2 j */
    unsigned char plain[sizeof ramp], swapped[sizeof ramp];
    memcpy(plain, ramp, sizeof ramp);
    for (size_t n = 0; n < sizeof ramp; n++) {
        swapped[n] = plain[n / 4 * 4 + 3 - n % 4];
    }
    for (int major = 1; major <= 3; major++) {
        check_ramp("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", major, ramp, ramp);
        check_ramp("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }   \n", major, ramp,
                   transposed);
        check_ramp("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n", major, swapped, ramp);
        check_ramp("{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3), }\n", major, swapped,
                   transposed);
    }
    check_ramp("{\"shape\":(2L,3L),\"descr\":\"=f4\",\"fortran_order\":False}", 1, ramp, ramp);
    check_ramp(" { 'fortran_order' :False ,'shape' : ( 2 , 3 , ) , 'descr':'<f4' } ", 2, ramp, ramp);
}

static void check_dtypes(void)
{
    static const struct {
        const char *text;
        ag_io_dtype dtype;
        size_t size;
    } cases[] = {{"<f8", AG_IO_F64, 8}, {"<f4", AG_IO_F32, 4}, {"<f2", AG_IO_F16, 2}, {"<i8", AG_IO_I64, 8},
                 {"<i4", AG_IO_I32, 4}, {"|u1", AG_IO_U8, 1},  {"|b1", AG_IO_BOOL, 1}};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        char header[128];
        ag_io_file *file = NULL;
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (1,), }\n",
                 cases[n].text);
        struct bytes b = make(1, header, ramp, cases[n].size);
        const ag_io_array *array = open_one(&file, &b, header);
        if (array != NULL) {
            CHECK_INT(array->dtype, cases[n].dtype);
            CHECK(memcmp(array->data, ramp, cases[n].size) == 0, "%s: other bytes", header);
        }
        ag_io_close(file);
    }
}

static void check_shape(const char *shape, int ndim, int64_t elements)
{
    char header[160];
    ag_io_file *file = NULL;
    snprintf(header, sizeof header, "{'descr': '|u1', 'fortran_order': True, 'shape': %s, }\n", shape);
    struct bytes b = make(1, header, ramp, (size_t)elements);
    const ag_io_array *array = open_one(&file, &b, shape);
    if (array != NULL) {
        CHECK_INT(array->ndim, ndim);
        CHECK_INT(ag_io_elements(array), elements);
    }
    ag_io_close(file);
}

/* ---- What is wrong ---- */

#define HEADER(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static const struct {
    const char *header;
    const char *says; /* a part of the message */
} bad_headers[] = {
    {HEADER("'<f4'", "False", "(2, 3)") "x", "something follows"},
    {HEADER("'<f4'", "False", "(2, 4)"), "cut short: 24 bytes of data, the shape needs 32"},
    {HEADER("'<f4'", "False", "(2, 2)"), "8 bytes follow the array"},
    {HEADER("'<f4'", "False", "(4611686018427387904, 2)"), "not a whole number"},
    {HEADER("'<f4'", "False", "(461168601842738790, 20)"), "overflows"},
    {HEADER("'<f4'", "False", "(0, 461168601842738790, 20)"), "overflows"},
    {HEADER("'<f8'", "False", "(999999999999999999, 999999999999999999)"), "overflows"},
    {HEADER("'<f4'", "False", "(-2, 3)"), "not a whole number"},
    {HEADER("'<f4'", "False", "(2.0, 3)"), "not a tuple"},
    {HEADER("'<f4'", "False", "(02, 3)"), "not a whole number"},
    {HEADER("'<f4'", "False", "(6)"), "not a tuple"},
    {HEADER("'<f4'", "False", "[2, 3]"), "not a tuple"},
    {HEADER("'<f4'", "False", "(1, 1, 1, 1, 1, 1, 1, 2, 3)"), "more than 8 axes"},
    {HEADER("'<f4'", "false", "(2, 3)"), "neither True nor False"},
    {HEADER("'<f4'", "0", "(2, 3)"), "neither True nor False"},
    {HEADER("'<c8'", "False", "(3,)"), "unknown dtype '<c8'"},
    {HEADER("'<V2'", "False", "(12,)"), "unknown dtype '<V2'"},
    {HEADER("'|f4'", "False", "(2, 3)"), "unknown dtype '|f4'"},
    {HEADER("'f4'", "False", "(2, 3)"), "unknown dtype 'f4'"},
    {HEADER("''", "False", "(2, 3)"), "unknown dtype ''"},
    {HEADER("'<f4", "False", "(2, 3)"), "unknown dtype '<f4, '"},
    {HEADER("f4", "False", "(2, 3)"), "descr is not a short string"},
    {HEADER("'<f4\\n'", "False", "(2, 3)"), "descr is not a short string"},
    {HEADER("[('x', '<f4')]", "False", "(6,)"), "records"},
    {HEADER("'<f4'", "False", "(2, 3)") "\x93", "something follows"},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", "'descr' stands twice"},
    {"{'descr': '<f4', 'fortran_order': False}", "is missing"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'extra': 1}", "unknown key 'extra'"},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}", "a comma or } is missing"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", "a comma or } is missing"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,", "not a whole number"},
    {"{", "not a dictionary"},
    {"", "does not start with {"},
    {"[]", "does not start with {"},
};

static void check_refused(const unsigned char *data, size_t size, const char *says)
{
    ag_io_file *file = (ag_io_file *)(uintptr_t)1;
    /* A copy of the exact size lets AddressSanitizer see a read past the end. */
    unsigned char *copy = malloc(size + (size == 0));
    test_need(copy != NULL, "no memory");
    memcpy(copy, data, size);
    ag_io_status status = ag_npy_open_memory(&file, copy, size);
    CHECK(status == AG_IO_INVALID_FILE && file == NULL, "'%s': status %d", says, (int)status);
    CHECK(strstr(ag_io_last_message(), says) != NULL, "'%s' is not in '%s'", says, ag_io_last_message());
    free(copy);
}

static void check_truncated_and_bad_prefix(void)
{
    struct bytes good = make(1, HEADER("'<f4'", "False", "(2, 3)"), ramp, sizeof ramp);
    struct bytes b = good;
    for (size_t size = 0; size < good.size; size++) {
        check_refused(good.data, size, size < 10 ? "not a .npy file" : "cut short");
    }
    b.data[0] = 'X';
    check_refused(b.data, b.size, "not a .npy file");
    b = good;
    b.data[6] = 4;
    check_refused(b.data, b.size, "version 4.0");
    b = good;
    b.data[7] = 1;
    check_refused(b.data, b.size, "version 1.1");
    b = make(2, HEADER("'<f4'", "False", "(2, 3)"), ramp, sizeof ramp);
    memset(b.data + 8, 0xff, 4);
    check_refused(b.data, b.size, "header's length is 4294967295");
    b = good;
    b.data[8] = b.data[9] = 0xff;
    check_refused(b.data, b.size, "cut short");
}

static void check_arguments(void)
{
    ag_io_file *file;
    CHECK_INT(ag_npy_open(&file, NULL), AG_IO_INVALID_ARGUMENT);
    CHECK_INT(ag_npy_open(NULL, "x"), AG_IO_INVALID_ARGUMENT);
    CHECK_INT(ag_npy_open_memory(&file, NULL, 1), AG_IO_INVALID_ARGUMENT);
    CHECK_INT(ag_npy_open_memory(&file, NULL, 0), AG_IO_INVALID_FILE);
    CHECK_INT(ag_npy_open(&file, "/nowhere/x.npy"), AG_IO_SYSTEM);
    CHECK(strstr(ag_io_last_message(), "'/nowhere/x.npy': No such file") != NULL, "%s", ag_io_last_message());
    CHECK_INT(ag_npy_open(&file, "/"), AG_IO_SYSTEM);
    CHECK(strstr(ag_io_last_message(), "it is a directory") != NULL, "%s", ag_io_last_message());
    CHECK_INT(ag_npy_open(&file, "/dev/null"), AG_IO_SYSTEM);
    CHECK(strstr(ag_io_last_message(), "not a regular file") != NULL, "%s", ag_io_last_message());
    ag_io_close(NULL);
}

int main(void)
{
    check_orders();
    check_dtypes();
    check_shape("()", 0, 1);
    check_shape("(0,)", 1, 0);
    check_shape("(7,)", 1, 7);
    check_shape("(2, 0, 3)", 3, 0);
    check_shape("(1, 2, 1, 2, 1, 2, 1, 2)", 8, 16);
    for (size_t n = 0; n < sizeof bad_headers / sizeof bad_headers[0]; n++) {
        struct bytes b = make(1, bad_headers[n].header, ramp, sizeof ramp);
        check_refused(b.data, b.size, bad_headers[n].says);
    }
    check_truncated_and_bad_prefix();
    check_arguments();
    return test_summary();
}
