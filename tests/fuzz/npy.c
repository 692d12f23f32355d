/* Fuzzes the .npy reader: any input is either refused with a message or read as one array that fits in the file. */
#include "file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_io_file *file;
    const ag_io_array *array;
    if (ag_npy_open_memory(&file, data, size) != AG_IO_OK) {
        FUZZ_REQUIRE(file == NULL && ag_io_last_message()[0] != '\0');
        return 0;
    }
    FUZZ_REQUIRE(ag_io_arrays(file, &array) == 1);
    FUZZ_REQUIRE(fuzz_read_file(file) <= (int64_t)size - 10); /* magic, version, length of the header */
    ag_io_close(file);
    return 0;
}
