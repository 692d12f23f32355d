/* Writing of files: what is written is read back the same; whatever stops a writer, the old file is whole and
 * nothing else is left in the folder. */
#define _GNU_SOURCE
#include "io_folder.h"

#include <attngrad_io.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { LARGE = 3 << 20 }; /* bytes; a writer writes them in several chunks */

static const double numbers[6] = {0.5, -1.0, 2.0, 1e300, -0.0, 3.25};
static unsigned char large[LARGE];

static ag_io_array array_of(const char *name, ag_io_dtype dtype, int64_t rows, int64_t columns,
                            const void *data)
{
    return (ag_io_array){name, data, dtype, 2, {rows, columns}};
}

static void same_array(const ag_io_array *got, const ag_io_array *wanted)
{
    size_t bytes = (size_t)ag_io_elements(wanted) * ag_io_dtype_size(wanted->dtype);
    CHECK(got->dtype == wanted->dtype && got->ndim == wanted->ndim &&
              memcmp(got->shape, wanted->shape, (size_t)wanted->ndim * sizeof wanted->shape[0]) == 0,
          "%s: another dtype or shape", wanted->name);
    CHECK(bytes == 0 || memcmp(got->data, wanted->data, bytes) == 0, "%s: other bytes", wanted->name);
}

static int io_ok(ag_io_status status, const char *what)
{
    return CHECK(status == AG_IO_OK, "%s: status %d: %s", what, (int)status, ag_io_last_message());
}

static void io_refused(ag_io_status status, ag_io_status wanted, const char *says)
{
    CHECK(status == wanted && strstr(ag_io_last_message(), says) != NULL,
          "status %d instead of %d, '%s' says no '%s'", (int)status, (int)wanted, ag_io_last_message(), says);
}

/* ---- Read back ---- */

static void check_npy(ag_io_dtype dtype, int ndim)
{
    ag_io_file *file;
    const ag_io_array *got;
    ag_io_array array = {"x", numbers, dtype, ndim, {1, 2, 1, 1, 1, 1, 1, 1}};
    if (io_ok(ag_npy_write(NULL, folder_path("x.npy"), &array), "write") &&
        io_ok(ag_npy_open(&file, folder_path("x.npy")), "open")) {
        ag_io_arrays(file, &got);
        same_array(got, &array);
        ag_io_close(file);
    }
}

static void check_safetensors(void)
{
    const ag_io_array arrays[] = {
        array_of("flags", AG_IO_BOOL, 1, 3, numbers), array_of("half", AG_IO_BF16, 1, 3, numbers),
        array_of("a \"b\" \xc3\xbc\n", AG_IO_F64, 2, 3, numbers), array_of("none", AG_IO_F32, 0, 3, NULL),
        array_of("", AG_IO_I32, 1, 1, numbers)};
    const ag_io_pair pairs[] = {{"key", "value"}, {"text", "two\nlines"}};
    ag_io_file *file;
    const ag_io_array *got;
    const ag_io_pair *read;
    const char *path = folder_path("x.safetensors");
    if (!io_ok(ag_safetensors_write(NULL, path, arrays, 5, pairs, 2), "write") ||
        !io_ok(ag_safetensors_open(&file, path), "open")) {
        return;
    }
    CHECK_INT(ag_io_arrays(file, &got), 5);
    for (int n = 0; n < 5; n++) {
        if (io_ok(ag_io_find(file, arrays[n].name, &got), "find")) {
            same_array(got, &arrays[n]);
        }
    }
    CHECK_INT(ag_io_metadata(file, &read), 2);
    CHECK(strcmp(read[1].key, "text") == 0 && strcmp(read[1].value, "two\nlines") == 0, "%s", read[1].value);
    ag_io_close(file);
}

/* A file stays readable while it is replaced. */
static void check_replace(void)
{
    ag_io_array first = array_of("x", AG_IO_F64, 2, 3, numbers),
                second = array_of("x", AG_IO_U8, 1, LARGE, large);
    ag_io_file *file;
    const ag_io_array *got;
    io_ok(ag_npy_write(NULL, folder_path("x.npy"), &first), "first");
    if (io_ok(ag_npy_open(&file, folder_path("x.npy")), "open")) {
        io_ok(ag_npy_write(NULL, folder_path("x.npy"), &second), "second");
        ag_io_arrays(file, &got);
        same_array(got, &first);
        ag_io_close(file);
    }
    check_npy(AG_IO_F32, 2);
}

static int mode_of(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 ? (int)(about.st_mode & 07777) : -1;
}

/* A file that is replaced keeps its mode, whatever the umask; that of a new one follows the umask. */
static void check_mode(uint32_t flags)
{
    static const mode_t modes[] = {0600, 0640, 0644, 0400, 0666};
    ag_io_array array = array_of("x", AG_IO_F64, 2, 3, numbers);
    ag_io_writer_options options = AG_IO_WRITER_OPTIONS_INIT;
    ag_io_writer *writer;
    const mode_t old = umask(027);
    options.flags = flags;
    unlink(folder_path("x.npy"));
    for (size_t n = 0; n <= sizeof modes / sizeof modes[0]; n++) {
        const int wanted = n == 0 ? 0640 : (int)modes[n - 1];
        CHECK(n == 0 || chmod(folder_path("x.npy"), modes[n - 1]) == 0, "chmod");
        if (io_ok(ag_io_writer_create(&writer, &options), "create")) {
            io_ok(ag_npy_write(writer, folder_path("x.npy"), &array), "write");
            io_ok(ag_io_writer_commit(writer), "commit");
            ag_io_writer_destroy(writer);
        }
        CHECK(mode_of(folder_path("x.npy")) == wanted, "mode %o instead of %o",
              (unsigned)mode_of(folder_path("x.npy")), (unsigned)wanted);
    }
    umask(old);
}

/* ---- Stopped ---- */

/* Empties the folder and writes a.npy and c.safetensors; check_old checks that it still holds these two, and no other
 * file. */
static void write_old(void)
{
    ag_io_array old = array_of("x", AG_IO_F64, 2, 3, numbers);
    folder_files(1);
    io_ok(ag_npy_write(NULL, folder_path("a.npy"), &old), "old a");
    io_ok(ag_safetensors_write(NULL, folder_path("c.safetensors"), &old, 1, NULL, 0), "old c");
}

static void check_old(const char *what)
{
    ag_io_file *file = NULL;
    const ag_io_array *got;
    ag_io_array old = array_of("x", AG_IO_F64, 2, 3, numbers);
    CHECK(folder_files(0) == 2, "%s: %d files instead of the 2 old ones", what, folder_files(0));
    if (io_ok(ag_npy_open(&file, folder_path("a.npy")), what)) {
        ag_io_arrays(file, &got);
        same_array(got, &old);
        ag_io_close(file);
    }
    if (io_ok(ag_safetensors_open(&file, folder_path("c.safetensors")), what)) {
        ag_io_arrays(file, &got);
        same_array(got, &old);
        ag_io_close(file);
    }
}

/* Replaces a.npy and c.safetensors and adds b.npy, with one writer. */
static ag_io_status write_new(uint32_t flags, int (*cancelled)(void *ctx), void *ctx)
{
    ag_io_writer *writer;
    ag_io_writer_options options = {sizeof options, flags, cancelled, ctx};
    ag_io_array wide = array_of("x", AG_IO_U8, 1, LARGE, large);
    ag_io_status status = ag_io_writer_create(&writer, &options);
    if (status == AG_IO_OK) {
        status = ag_npy_write(writer, folder_path("a.npy"), &wide);
    }
    if (status == AG_IO_OK) {
        status = ag_npy_write(writer, folder_path("b.npy"), &wide);
    }
    if (status == AG_IO_OK) {
        status = ag_safetensors_write(writer, folder_path("c.safetensors"), &wide, 1, NULL, 0);
    }
    if (status == AG_IO_OK) {
        status = ag_io_writer_commit(writer);
    }
    ag_io_writer_destroy(writer);
    return status;
}

static int countdown(void *ctx)
{
    return --*(int *)ctx < 0;
}

/* Cancels at the first, second, ... call of `cancelled`, until the writer is done before that call. */
static void check_cancel(uint32_t flags)
{
    int stops = 0;
    for (int left = 0;; left++, stops++) {
        int counter = left;
        write_old();
        ag_io_status status = write_new(flags, countdown, &counter);
        if (status == AG_IO_OK) {
            break;
        }
        io_refused(status, AG_IO_CANCELLED, "cancelled");
        check_old("cancelled");
    }
    CHECK(stops > 12, "a writer of 9 MiB asked %d times only", stops);
    CHECK_INT(folder_files(0), 3);
}

/* What was written is not in place before commit, and is removed if commit is never called. */
static void check_destroy(uint32_t flags)
{
    ag_io_writer *writer;
    ag_io_writer_options options = {sizeof options, flags, NULL, NULL};
    ag_io_array wide = array_of("x", AG_IO_U8, 1, 8, large);
    write_old();
    io_ok(ag_io_writer_create(&writer, &options), "create");
    io_ok(ag_npy_write(writer, folder_path("a.npy"), &wide), "write");
    io_refused(ag_npy_write(writer, folder_path("a.npy"), &wide), AG_IO_INVALID_ARGUMENT, "written twice");
    /* A named temporary file is visible; an unnamed one, if the file system has these, is not. */
    CHECK(folder_files(0) == 3 || (flags == 0 && folder_files(0) == 2), "%d files", folder_files(0));
    ag_io_writer_destroy(writer);
    check_old("destroyed");
}

/* A limit of the file size stands for a full disk: the writer's first file is too large. */
static void check_full(uint32_t flags)
{
    struct rlimit old_limit, limit;
    write_old();
    test_need(getrlimit(RLIMIT_FSIZE, &old_limit) == 0, "no limit of the size of files");
    limit = old_limit;
    limit.rlim_cur = LARGE / 2;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    io_refused(write_new(flags, NULL, NULL), AG_IO_SYSTEM, "a.npy': File too large");
    setrlimit(RLIMIT_FSIZE, &old_limit);
    check_old("full");
}

/* Killed at a random moment, again and again: each time the files are complete, old or new, and after the next write no
 * temporary file is left. */
static void check_killed(uint32_t flags)
{
    uint32_t random = 1;
    ag_io_array small = array_of("x", AG_IO_F64, 2, 3, numbers);
    for (int round = 0, rounds = test_count(60); round < rounds; round++) {
        ag_io_file *file;
        write_old();
        pid_t child = fork();
        test_need(child >= 0, "no fork");
        if (child == 0) {
            for (;;) {
                write_new(flags, NULL, NULL);
            }
        }
        random = random * 1664525U + 1013904223U;
        struct timespec pause = {0, (long)(random >> 8) % 20000000L};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (io_ok(ag_npy_open(&file, folder_path("a.npy")), "killed")) {
            ag_io_close(file);
        }
        if (io_ok(ag_safetensors_open(&file, folder_path("c.safetensors")), "killed")) {
            ag_io_close(file);
        }
        io_ok(ag_npy_write(NULL, folder_path("a.npy"), &small), "after a kill");
        const int files = 2 + (access(folder_path("b.npy"), F_OK) == 0);
        CHECK(folder_files(0) == files, "%d files instead of %d after the next writing", folder_files(0),
              files);
    }
}

/* The next write removes the temporary files of a killed process, but neither those that a living one has locked nor
 * files with a similar name. */
static void check_stale(void)
{
    static const char *const names[] = {".attngrad-1-0.tmp", ".attngrad-99999999-12.tmp",
                                        ".attngrad-1-1.tmp", ".attngrad-1.tmp",
                                        ".attngrad-1-.tmp",  ".attngrad-1-1.tmp.txt"};
    int fds[6];
    write_old();
    for (int n = 0; n < 6; n++) {
        fds[n] = open(folder_path(names[n]), O_CREAT | O_EXCL | O_RDWR, 0666);
        test_need(fds[n] >= 0, "no file in the folder of temporary files");
    }
    mkdir(folder_path(".attngrad-2-2.tmp"), 0777);
    const bool locks = flock(fds[2], LOCK_EX) == 0;
    ag_io_array array = array_of("x", AG_IO_F64, 2, 3, numbers);
    io_ok(ag_npy_write(NULL, folder_path("a.npy"), &array), "next to stale files");
    for (int n = 0; n < 6; n++) {
        const bool exists = access(folder_path(names[n]), F_OK) == 0;
        CHECK(!locks || exists == (n >= 2), "%s is %s", names[n], exists ? "still there" : "gone");
        close(fds[n]);
        unlink(folder_path(names[n]));
    }
    CHECK(rmdir(folder_path(".attngrad-2-2.tmp")) == 0, "a folder was removed");
    check_old("stale");
}

/* The number of inotify events since the last call that name a temporary file. */
static int temporary_names(int watch)
{
    _Alignas(struct inotify_event) char events[4096];
    int count = 0;
    for (ssize_t size = read(watch, events, sizeof events); size > 0;
         size = read(watch, events, sizeof events)) {
        for (const char *at = events; at < events + size;) {
            const struct inotify_event *event = (const void *)at;
            count += event->len > 0 && strncmp(event->name, ".attngrad-", 10) == 0;
            at += sizeof *event + event->len;
        }
    }
    return count;
}

/* A new file never has a temporary name; one that replaces another has one for a moment. */
static void check_new_names(void)
{
    ag_io_array array = array_of("x", AG_IO_F64, 2, 3, numbers);
    const int probe = open(folder, O_TMPFILE | O_WRONLY, 0666), watch = inotify_init1(IN_NONBLOCK);
    if (probe < 0 || watch < 0 || inotify_add_watch(watch, folder, IN_CREATE | IN_MOVE) < 0) {
        printf("not checked: the names of temporary files, as the system shows none\n");
    } else {
        folder_files(1);
        temporary_names(watch);
        io_ok(ag_npy_write(NULL, folder_path("a.npy"), &array), "new");
        CHECK_INT(temporary_names(watch), 0);
        io_ok(ag_npy_write(NULL, folder_path("a.npy"), &array), "again");
        CHECK(temporary_names(watch) > 0, "the watch sees nothing");
    }
    close(probe);
    close(watch);
}

/* The second of three files cannot be put in place: the message names the first, and the third is unchanged. */
static void check_partial(void)
{
    ag_io_writer *writer;
    ag_io_file *file;
    ag_io_array wide = array_of("x", AG_IO_U8, 1, 8, large);
    write_old();
    mkdir(folder_path("d"), 0777);
    io_ok(ag_io_writer_create(&writer, NULL), "create");
    io_ok(ag_npy_write(writer, folder_path("a.npy"), &wide), "first");
    io_ok(ag_npy_write(writer, folder_path("d/b.npy"), &wide), "second");
    io_ok(ag_safetensors_write(writer, folder_path("c.safetensors"), &wide, 1, NULL, 0), "third");
    if (rmdir(folder_path("d")) != 0) {
        printf("not checked: a place that is lost after the writing, as temporary files have names here\n");
    } else {
        io_refused(ag_io_writer_commit(writer), AG_IO_SYSTEM, "d/b.npy': No such file or directory");
        CHECK(strstr(ag_io_last_message(), "; 1 of 3 files are in place: 'a.npy'") != NULL, "it says '%s'",
              ag_io_last_message());
        CHECK_INT(folder_files(0), 2);
        io_ok(ag_safetensors_open(&file, folder_path("c.safetensors")), "the third is the old one");
        ag_io_close(file);
    }
    ag_io_writer_destroy(writer);
    rmdir(folder_path("d"));
}

/* If a folder takes the name of a file before commit, commit changes nothing. */
static void check_blocked(uint32_t flags)
{
    ag_io_writer *writer;
    ag_io_writer_options options = {sizeof options, flags, NULL, NULL};
    ag_io_array wide = array_of("x", AG_IO_U8, 1, 8, large);
    write_old();
    io_ok(ag_io_writer_create(&writer, &options), "create");
    io_ok(ag_npy_write(writer, folder_path("a.npy"), &wide), "first");
    io_ok(ag_npy_write(writer, folder_path("b.npy"), &wide), "second");
    mkdir(folder_path("b.npy"), 0777);
    io_refused(ag_io_writer_commit(writer), AG_IO_SYSTEM, "it is a directory");
    ag_io_writer_destroy(writer);
    rmdir(folder_path("b.npy"));
    check_old("blocked");
}

static void check_bytes(void)
{
    char back[8] = "";
    write_old();
    io_refused(ag_io_write(NULL, folder_path("t"), NULL, 1), AG_IO_INVALID_ARGUMENT, "bytes is NULL");
    check_old("bytes");
    io_ok(ag_io_write(NULL, folder_path("t"), "text", 4), "bytes");
    FILE *file = fopen(folder_path("t"), "r");
    test_need(file != NULL, "no file of bytes");
    CHECK(fread(back, 1, sizeof back, file) == 4 && strcmp(back, "text") == 0, "'%s' was written", back);
    fclose(file);
    io_ok(ag_io_write(NULL, folder_path("t"), NULL, 0), "no bytes");
    CHECK(access(folder_path("t"), R_OK) == 0, "a file without bytes is missing");
}

/* Read again and again while it is replaced: at every moment there is a complete file. */
static void check_readers(void)
{
    ag_io_array array = array_of("x", AG_IO_F64, 2, 3, numbers);
    int missing = 0, reads = test_count(20000);
    write_old();
    pid_t child = fork();
    test_need(child >= 0, "no fork");
    if (child == 0) {
        for (;;) {
            ag_npy_write(NULL, folder_path("a.npy"), &array);
        }
    }
    for (int n = 0; n < reads; n++) {
        ag_io_file *file;
        missing += ag_npy_open(&file, folder_path("a.npy")) != AG_IO_OK;
        ag_io_close(file);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(missing == 0, "%d of %d times the file was not there: %s", missing, reads, ag_io_last_message());
}

/* ---- Refused ---- */

static void check_targets(void)
{
    ag_io_array array = array_of("x", AG_IO_F64, 2, 3, numbers);
    write_old();
    mkdir(folder_path("d"), 0777);
    io_refused(ag_npy_write(NULL, folder_path("d"), &array), AG_IO_SYSTEM, "it is a directory");
    io_refused(ag_npy_write(NULL, folder_path("d/"), &array), AG_IO_SYSTEM, "not the name of a file");
    io_refused(ag_npy_write(NULL, "/dev/null", &array), AG_IO_SYSTEM, "not a regular file");
    io_refused(ag_npy_write(NULL, folder_path("no/x.npy"), &array), AG_IO_SYSTEM,
               "No such file or directory");
    io_refused(ag_npy_write(NULL, folder_path("a.npy/x.npy"), &array), AG_IO_SYSTEM, "Not a directory");
    io_refused(ag_npy_write(NULL, "", &array), AG_IO_SYSTEM, "not the name of a file");
    rmdir(folder_path("d"));
    check_old("refused");
}

static void check_arguments(void)
{
    const char *path = folder_path("a.npy");
    ag_io_array array = array_of("x", AG_IO_F64, 2, 3, numbers), two[2] = {array, array};
    const ag_io_pair pairs[2] = {{"a", "1"}, {"a", "2"}}, null = {"a", NULL};
    write_old();
    io_refused(ag_npy_write(NULL, NULL, &array), AG_IO_INVALID_ARGUMENT, "path is NULL");
    io_refused(ag_npy_write(NULL, path, NULL), AG_IO_INVALID_ARGUMENT, "array is NULL");
    io_refused(ag_safetensors_write(NULL, path, two, 2, NULL, 0), AG_IO_INVALID_ARGUMENT, "'x' stands twice");
    io_refused(ag_safetensors_write(NULL, path, two, 1, pairs, 2), AG_IO_INVALID_ARGUMENT,
               "'a' stands twice");
    io_refused(ag_safetensors_write(NULL, path, two, 1, &null, 1), AG_IO_INVALID_ARGUMENT, "NULL");
    io_refused(ag_safetensors_write(NULL, path, NULL, 1, NULL, 0), AG_IO_INVALID_ARGUMENT, "NULL");
    io_refused(ag_safetensors_write(NULL, path, two, -1, NULL, 0), AG_IO_INVALID_ARGUMENT, "count is -1");
    array.dtype = AG_IO_BF16;
    io_refused(ag_npy_write(NULL, path, &array), AG_IO_INVALID_ARGUMENT, "bf16");
    array.dtype = 5;
    io_refused(ag_npy_write(NULL, path, &array), AG_IO_INVALID_ARGUMENT, "dtype is 5");
    array = array_of("__metadata__", AG_IO_F64, 2, 3, numbers);
    io_refused(ag_safetensors_write(NULL, path, &array, 1, NULL, 0), AG_IO_INVALID_ARGUMENT, "__metadata__");
    array.name = "\xff";
    io_refused(ag_safetensors_write(NULL, path, &array, 1, NULL, 0), AG_IO_INVALID_ARGUMENT, "UTF-8");
    array.name = NULL;
    io_refused(ag_safetensors_write(NULL, path, &array, 1, NULL, 0), AG_IO_INVALID_ARGUMENT, "NULL");
    array = array_of("x", AG_IO_F64, -1, 3, numbers);
    io_refused(ag_npy_write(NULL, path, &array), AG_IO_INVALID_ARGUMENT, "out of range");
    array = array_of("x", AG_IO_F64, INT64_MAX, 3, numbers);
    io_refused(ag_npy_write(NULL, path, &array), AG_IO_INVALID_ARGUMENT, "out of range");
    array = array_of("x", AG_IO_F64, 2, 3, NULL);
    io_refused(ag_npy_write(NULL, path, &array), AG_IO_INVALID_ARGUMENT, "data is NULL");
    array.ndim = 9;
    io_refused(ag_npy_write(NULL, path, &array), AG_IO_INVALID_ARGUMENT, "ndim is 9");
    check_old("arguments");
}

/* The options of a caller built against an older header are shorter; those of a newer one are longer, and what this
 * library does not know must be zero. */
static void check_options(void)
{
    ag_io_writer *writer;
    struct {
        ag_io_writer_options options;
        uint64_t more;
    } newer = {AG_IO_WRITER_OPTIONS_INIT, 0};
    io_refused(ag_io_writer_create(NULL, NULL), AG_IO_INVALID_ARGUMENT, "NULL");
    io_refused(ag_io_writer_commit(NULL), AG_IO_INVALID_ARGUMENT, "NULL");
    newer.options.struct_size = 4;
    io_refused(ag_io_writer_create(&writer, &newer.options), AG_IO_INVALID_ARGUMENT, "struct_size is 4");
    CHECK(writer == NULL, "a writer came of a refusal");
    newer.options.struct_size = 8;
    io_ok(ag_io_writer_create(&writer, &newer.options), "an older caller");
    io_ok(ag_io_writer_commit(writer), "nothing to commit");
    ag_io_writer_destroy(writer);
    newer.options.struct_size = sizeof newer;
    io_ok(ag_io_writer_create(&writer, &newer.options), "a newer caller");
    ag_io_writer_destroy(writer);
    newer.more = 1;
    io_refused(ag_io_writer_create(&writer, &newer.options), AG_IO_INVALID_ARGUMENT, "not known here");
    newer.more = 0;
    newer.options.flags = 2;
    io_refused(ag_io_writer_create(&writer, &newer.options), AG_IO_INVALID_ARGUMENT, "flags is 0x2");
    ag_io_writer_destroy(NULL);
}

int main(void)
{
    static const ag_io_dtype dtypes[] = {AG_IO_F64, AG_IO_F32, AG_IO_F16, AG_IO_I64,
                                         AG_IO_I32, AG_IO_U8,  AG_IO_BOOL};
    folder_make();
    for (int n = 0; n < 7; n++) {
        check_npy(dtypes[n], n);
    }
    check_npy(AG_IO_F64, 8);
    check_safetensors();
    check_replace();
    for (uint32_t flags = 0; flags <= AG_IO_NAMED_TEMPORARY; flags++) {
        check_mode(flags);
        check_cancel(flags);
        check_destroy(flags);
        check_full(flags);
        check_killed(flags);
        check_blocked(flags);
    }
    check_stale();
    check_new_names();
    check_partial();
    check_bytes();
    check_readers();
    check_targets();
    check_arguments();
    check_options();
    folder_remove();
    return test_summary();
}
