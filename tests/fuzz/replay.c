/* Runs a fuzz target once on every file of a folder, without libFuzzer: replay FOLDER. A violated requirement
 * aborts the process, so the test passes if it reaches the end. */
#include "target.h"

#include <dirent.h>
#include <string.h>

static int replay_file(const char *folder, const char *name)
{
    static uint8_t data[1 << 16];
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        printf("cannot read %s\n", path);
        return 0;
    }
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    /* A copy of the exact size lets AddressSanitizer see a read past the end. */
    uint8_t *copy = malloc(size + (size == 0));
    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 1;
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (folder == NULL) {
        printf("usage: replay FOLDER (of inputs)\n");
        return 2;
    }
    int passed = 0, failed = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] == '.')
            continue;
        if (replay_file(argv[1], entry->d_name))
            passed++;
        else
            failed++;
    }
    closedir(folder);
    printf("%d checks passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
