/* The reader of .safetensors on bytes in memory: several tensors, every dtype, metadata, and every kind of
 * invalid file. io_python.sh tests files that the Python package wrote. */
#include "test.h"

#include <attngrad_io.h>

enum { CAPACITY = 2048 };

struct bytes {
    unsigned char data[CAPACITY];
    size_t size;
};

/* A file with that header and n bytes 0, 1, 2, ... after it. */
static struct bytes make(const char *header, size_t n)
{
    struct bytes b = {{0}, 8 + strlen(header) + n};
    for (size_t k = 0; k < 8; k++) {
        b.data[k] = (unsigned char)((uint64_t)strlen(header) >> (8 * k) & 0xff);
    }
    memcpy(b.data + 8, header, strlen(header));
    for (size_t k = 0; k < n; k++) {
        b.data[8 + strlen(header) + k] = (unsigned char)k;
    }
    return b;
}

/* ---- What is right ---- */

static void check_tensor(const ag_io_file *file, const char *name, ag_io_dtype dtype, int first,
                         int64_t elements)
{
    const ag_io_array *array;
    if (!CHECK(ag_io_find(file, name, &array) == AG_IO_OK, "%s: %s", name, ag_io_last_message())) {
        return;
    }
    const unsigned char *data = array->data;
    int64_t bytes = elements * (int64_t)ag_io_dtype_size(dtype);
    CHECK_INT(array->dtype, dtype);
    CHECK_INT(ag_io_elements(array), elements);
    CHECK((uintptr_t)data % ag_io_dtype_size(dtype) == 0, "%s is misaligned", name);
    for (int64_t n = 0; n < bytes; n++) {
        CHECK(data[n] == first + n, "byte %lld of %s is %d", (long long)n, name, data[n]);
    }
}

/* spaces: appended to the header, to try every alignment of the data. */
static void check_every_dtype(size_t spaces)
{
    char header[1024];
    snprintf(header, sizeof header,
             "{\"__metadata__\": {\"made by\": \"hand\", \"\": \"empty\"},"
             "\"b\": {\"dtype\": \"BOOL\", \"shape\": [3], \"data_offsets\": [0, 3]},"
             "\"bf\": {\"dtype\": \"BF16\", \"shape\": [1, 2], \"data_offsets\": [3, 7]},"
             "\"f64\": {\"data_offsets\": [7, 15], \"shape\": [], \"dtype\": \"F64\"},"
             "\"none\": {\"dtype\": \"F32\", \"shape\": [4, 0], \"data_offsets\": [15, 15]},"
             "\"f32\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [15, 19]},"
             "\"i64\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [19, 27]},"
             "\"i32\": {\"dtype\": \"I32\", \"shape\": [2], \"data_offsets\": [27, 35]},"
             "\"f16\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": [39, 43]},"
             "\"u8 \\u00fc\": {\"dtype\": \"U8\", \"shape\": [2, 2], \"data_offsets\": [35, 39]}}%*s",
             (int)spaces, "");
    struct bytes b = make(header, 43);
    ag_io_file *file;
    const ag_io_array *arrays;
    const ag_io_pair *pairs;
    if (!CHECK(ag_safetensors_open_memory(&file, b.data, b.size) == AG_IO_OK, "%s", ag_io_last_message())) {
        return;
    }
    CHECK_INT(ag_io_arrays(file, &arrays), 9);
    check_tensor(file, "b", AG_IO_BOOL, 0, 3);
    check_tensor(file, "bf", AG_IO_BF16, 3, 2);
    check_tensor(file, "f64", AG_IO_F64, 7, 1);
    check_tensor(file, "none", AG_IO_F32, 15, 0);
    check_tensor(file, "f32", AG_IO_F32, 15, 1);
    check_tensor(file, "i64", AG_IO_I64, 19, 1);
    check_tensor(file, "i32", AG_IO_I32, 27, 2);
    check_tensor(file, "f16", AG_IO_F16, 39, 2);
    check_tensor(file, "u8 \xc3\xbc", AG_IO_U8, 35, 4);
    CHECK_INT(ag_io_metadata(file, &pairs), 2);
    CHECK(strcmp(pairs[0].key, "made by") == 0 && strcmp(pairs[0].value, "hand") == 0, "%s: %s", pairs[0].key,
          pairs[0].value);
    CHECK_INT(ag_io_find(file, "f65", &arrays), AG_IO_NOT_FOUND);
    CHECK(arrays == NULL && strstr(ag_io_last_message(), "'f65'") != NULL, "%s", ag_io_last_message());
    ag_io_close(file);
}

static void check_empty(const char *header)
{
    struct bytes b = make(header, 0);
    ag_io_file *file;
    const ag_io_array *arrays;
    const ag_io_pair *pairs;
    if (CHECK(ag_safetensors_open_memory(&file, b.data, b.size) == AG_IO_OK, "%s", ag_io_last_message())) {
        CHECK_INT(ag_io_arrays(file, &arrays), 0);
        CHECK_INT(ag_io_metadata(file, &pairs), 0);
        ag_io_close(file);
    }
}

/* Tensors of unknown dtypes do not make a file invalid: only ag_io_find of such a tensor fails. */
static void check_unknown(void)
{
    struct bytes b = make("{\"f8\": {\"dtype\": \"F8_E4M3\", \"shape\": [4], \"data_offsets\": [0, 4]},"
                          "\"x\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [4, 7]},"
                          "\"c\": {\"dtype\": \"f32\", \"shape\": [1], \"data_offsets\": [7, 11]}}",
                          11);
    static const char *const unknown[][2] = {{"f8", "'F8_E4M3'"}, {"c", "'f32'"}};
    ag_io_file *file;
    const ag_io_array *arrays;
    if (!CHECK(ag_safetensors_open_memory(&file, b.data, b.size) == AG_IO_OK, "%s", ag_io_last_message())) {
        return;
    }
    CHECK_INT(ag_io_arrays(file, &arrays), 1);
    check_tensor(file, "x", AG_IO_U8, 4, 3);
    for (int n = 0; n < 2; n++) {
        CHECK_INT(ag_io_find(file, unknown[n][0], &arrays), AG_IO_INVALID_FILE);
        CHECK(arrays == NULL && strstr(ag_io_last_message(), unknown[n][0]) != NULL &&
                  strstr(ag_io_last_message(), unknown[n][1]) != NULL,
              "%s", ag_io_last_message());
    }
    CHECK_INT(ag_io_find(file, "f9", &arrays), AG_IO_NOT_FOUND);
    ag_io_close(file);
}

/* ---- What is wrong: each header with 24 bytes of data ---- */

#define TENSOR(dtype, shape, offsets)                                                                        \
    "{\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}"
#define ONE(dtype, shape, offsets) "{\"x\": " TENSOR(dtype, shape, offsets) "}"
#define TWO(shape1, offsets1, shape2, offsets2)                                                              \
    "{\"x\": " TENSOR("\"F32\"", shape1, offsets1) ", \"y\": " TENSOR("\"F32\"", shape2, offsets2) "}"

static const struct {
    const char *header;
    const char *says; /* a part of the message */
} bad_headers[] = {
    {ONE("\"F32\"", "[2, 3]", "[0, 28]"), "not within the file's 24"},
    {ONE("\"F32\"", "[2, 3]", "[4, 28]"), "not within the file's 24"},
    {ONE("\"F32\"", "[2, 3]", "[-4, 20]"), "not within the file's 24"},
    {ONE("\"F32\"", "[2, 3]", "[24, 0]"), "not within the file's 24"},
    {ONE("\"F32\"", "[2, 3]", "[0, 9223372036854775807]"), "not within the file's 24"},
    {ONE("\"F32\"", "[2, 3]", "[0, 9223372036854775808]"), "too big integer"},
    {ONE("\"F32\"", "[2, 3]", "[0, 24, 24]"), "data_offsets are not two"},
    {ONE("\"F32\"", "[2, 3]", "[0.0, 24]"), "data_offsets are not two"},
    {ONE("\"F32\"", "[2, 3]", "24"), "data_offsets are not two"},
    {ONE("\"F32\"", "[2, 2]", "[0, 24]"), "'x' has 24 bytes, its shape needs 16"},
    {ONE("\"F32\"", "[2, 4]", "[0, 24]"), "'x' has 24 bytes, its shape needs 32"},
    {ONE("\"F32\"", "[4611686018427387904, 4]", "[0, 24]"), "overflows"},
    {ONE("\"F32\"", "[0, 4611686018427387904, 4]", "[0, 24]"), "overflows"},
    {ONE("\"F32\"", "[-2, 3]", "[0, 24]"), "axis 0 of its shape"},
    {ONE("\"F32\"", "[2, 3.0]", "[0, 24]"), "axis 1 of its shape"},
    {ONE("\"F32\"", "[1,1,1,1,1,1,1,2,3]", "[0, 24]"), "9 axes"},
    {ONE("\"F32\"", "6", "[0, 24]"), "no shape"},
    {ONE("\"F8_E4M3\"", "[24]", "[0, 28]"), "not within the file's 24"},
    {ONE("\"F8_E4M3\"", "[24]", "[0, 20]"), "bytes from 20 on"},
    {ONE("\"F8_E4M3\"", "24", "[0, 24]"), "no shape"},
    {"{\"x\": " TENSOR("\"F8_E4M3\"", "[12]", "[0, 12]") ", \"y\": " TENSOR("\"F32\"", "[4]", "[8, 24]") "}",
     "'x' and 'y' overlap"},
    {ONE("4", "[6]", "[0, 24]"), "no dtype"},
    {"{\"x\": 3}", "no dtype"},
    {"{\"x\": {\"dtype\": \"F32\", \"shape\": [6]}}", "data_offsets are not two"},
    {TWO("[3]", "[0, 12]", "[4]", "[8, 24]"), "'x' and 'y' overlap"},
    {TWO("[6]", "[0, 24]", "[6]", "[0, 24]"), "overlap"},
    {TWO("[6]", "[0, 24]", "[0]", "[8, 8]"), "overlap"},
    {TWO("[2]", "[0, 8]", "[3]", "[12, 24]"), "bytes from 8 on"},
    {TWO("[2]", "[4, 12]", "[3]", "[12, 24]"), "bytes from 0 on"},
    {ONE("\"F32\"", "[5]", "[0, 20]"), "bytes from 20 on"},
    {"{}", "bytes from 0 on"},
    {TWO("[3]", "[0, 12]", "[3]", "[12, 24]") "x", "header"},
    {"{\"x\": 1, \"x\": 2}", "duplicate"},
    {"{\"x\": {\"dtype\": \"F32\", \"dtype\": \"F32\", \"shape\": [6], \"data_offsets\": [0, 24]}}",
     "duplicate"},
    {"{\"__metadata__\": {\"a\": \"b\", \"a\": \"c\"}}", "duplicate"},
    {"{\"__metadata__\": {\"a\": 1}}", "'a' is not a string"},
    {"{\"__metadata__\": []}", "__metadata__ is not an object"},
    {"{\"\xff\": 1}", "header"},
    {"{\"a\\u0000b\": 1}", "header"},
    {"{\"x\"", "header"},
    {" {}", "does not start with {"},
    {"[]", "does not start with {"},
    {"", "does not start with {"},
};

static void check_refused(const unsigned char *data, size_t size, const char *says)
{
    ag_io_file *file = (ag_io_file *)(uintptr_t)1;
    /* A copy of the exact size lets AddressSanitizer see a read past the end. */
    unsigned char *copy = malloc(size + (size == 0));
    test_need(copy != NULL, "no memory");
    memcpy(copy, data, size);
    ag_io_status status = ag_safetensors_open_memory(&file, copy, size);
    CHECK(status == AG_IO_INVALID_FILE && file == NULL, "'%s': status %d", says, (int)status);
    CHECK(strstr(ag_io_last_message(), says) != NULL, "'%s' is not in '%s'", says, ag_io_last_message());
    free(copy);
}

static void check_truncated_and_bad_lengths(void)
{
    const char *header = ONE("\"F32\"", "[2, 3]", "[0, 24]");
    struct bytes good = make(header, 24), b = good;
    for (size_t size = 0; size < good.size; size++) {
        const char *says = size < 8                    ? "not a .safetensors file"
                           : size < 8 + strlen(header) ? "cut short"
                                                       : "not within the file";
        check_refused(good.data, size, says);
    }
    memset(b.data, 0xff, 8);
    check_refused(b.data, b.size, "header's length is 18446744073709551615");
    memset(b.data, 0, 8);
    b.data[3] = 0x7f;
    check_refused(b.data, b.size, "header's length is 2130706432");
    check_refused((const unsigned char *)"PK\003\004 a zip archive", 19, "not a .safetensors file");
}

int main(void)
{
    for (size_t spaces = 0; spaces < 8; spaces++) {
        check_every_dtype(spaces);
    }
    check_unknown();
    check_empty("{}");
    check_empty("{\"__metadata__\": {}}   ");
    for (size_t n = 0; n < sizeof bad_headers / sizeof bad_headers[0]; n++) {
        struct bytes b = make(bad_headers[n].header, 24);
        check_refused(b.data, b.size, bad_headers[n].says);
    }
    check_truncated_and_bad_lengths();
    return test_summary();
}
