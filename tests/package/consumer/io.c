/* A program outside the project's tree that uses the installed library of files: an array goes into a
 * .safetensors file and comes back. usage: io FILE */
#include <attngrad_io.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const float numbers[2] = {1.5f, -2.0f};
    const ag_io_array array = {"x", numbers, AG_IO_F32, 1, {2}};
    const ag_io_array *read;
    ag_io_file *file;

    if (argc != 2 || ag_safetensors_write(NULL, argv[1], &array, 1, NULL, 0) != AG_IO_OK ||
        ag_safetensors_open(&file, argv[1]) != AG_IO_OK || ag_io_find(file, "x", &read) != AG_IO_OK) {
        printf("%s\n", ag_io_last_message());
        return 1;
    }
    int same = memcmp(read->data, numbers, sizeof numbers) == 0;
    ag_io_close(file);
    return same ? 0 : 1;
}
