/* Fuzzes the .safetensors reader: any input is either refused with a message or read as arrays that fit in what follows
 * the header. */
#include "file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_io_file *file;
    uint64_t header_length = 0;
    if (ag_safetensors_open_memory(&file, data, size) != AG_IO_OK) {
        FUZZ_REQUIRE(file == NULL && ag_io_last_message()[0] != '\0');
        return 0;
    }
    for (int n = 0; n < 8; n++) {
        header_length |= (uint64_t)data[n] << (8 * n);
    }
    FUZZ_REQUIRE((uint64_t)fuzz_read_file(file) <= size - 8 - header_length);
    ag_io_close(file);
    return 0;
}
