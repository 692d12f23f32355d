/* A helper of the tests with Python: copy IN OUT reads a .npy or .safetensors file with the library and
 * writes what it read, in the format of OUT's name. The array of a .npy file is called x. */
#include <attngrad_io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_npy(const char *path)
{
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".npy") == 0;
}

static ag_io_status copy(const ag_io_file *file, const char *path, int named)
{
    const ag_io_array *arrays;
    const ag_io_pair *pairs;
    int64_t count = ag_io_arrays(file, &arrays), n_pairs = ag_io_metadata(file, &pairs);
    if (is_npy(path)) {
        return ag_npy_write(NULL, path, &arrays[0]);
    }
    if (named) {
        return ag_safetensors_write(NULL, path, arrays, count, pairs, n_pairs);
    }
    ag_io_array array = arrays[0];
    array.name = "x";
    return ag_safetensors_write(NULL, path, &array, 1, NULL, 0);
}

int main(int argc, char **argv)
{
    ag_io_file *file;
    if (argc != 3) {
        fprintf(stderr, "usage: copy IN OUT\n");
        return 2;
    }
    int npy = is_npy(argv[1]);
    ag_io_status status = npy ? ag_npy_open(&file, argv[1]) : ag_safetensors_open(&file, argv[1]);
    if (status == AG_IO_OK) {
        status = copy(file, argv[2], !npy);
        ag_io_close(file);
    }
    if (status != AG_IO_OK) {
        fprintf(stderr, "%s\n", ag_io_last_message());
    }
    return status == AG_IO_OK ? 0 : 1;
}
