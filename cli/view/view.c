/* `attngrad view`: writes a page that shows every variable of a call, or of the worked example. */
#include "commands.h"
#include "files/files.h"
#include "view_page.h"

#include "alloc.h"
#include "bar.h"
#include "folders.h"
#include "options.h"
#include "signals.h"
#include "usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: attngrad view --out PAGE.html\n"
                           "       attngrad view PROBLEM [--seed S] [OPTION]... --out PAGE.html\n"
                           "       attngrad view --q F --k F --v F [ARRAY]... [OPTION]... --out PAGE.html\n"
                           "\n"
                           "Writes one file for the browser that shows every variable of attention and of\n"
                           "its derivatives as heat maps and numbers, with the arithmetic behind each: of\n"
                           "the worked example; of a problem with random numbers, as in 'attngrad check';\n"
                           "or of arrays in files. The file needs no network and has at most 20 MB.\n"
                           "\n"
                           "arrays, as 'attngrad hvp --help' has them; cotangents add vjp, tangents jvp,\n"
                           "both vjp_jvp: --q --k --v --do --dlse --tq --tk --tv --tbias --ttable --tsink\n"
                           "--tdo --tdlse --bias --mask --bias-table --buckets --sink --kv-lengths\n"
                           "--q-lengths --q-packed --k-packed --q-offsets --k-offsets\n"
                           "features of these, likewise: --causal --align --window --softcap --scale\n"
                           "--dropout --alibi --q-offset --k-offset\n"
                           "\n"
                           "options:\n"
                           "  --heads A,B,...       heads to show; default: all if they are small, else 0\n"
                           "  --sequences A,B,...   sequences to show; likewise\n"
                           "  --maps A,B,...        of forward, vjp, jvp, vjp_jvp; default: all that there\n"
                           "                        are inputs for, of a long sequence two\n"
                           "  --rows A-B            of a long sequence: queries and keys to move along the\n"
                           "  --keys A-B            tangent and, if not every number fits into the page, to\n"
                           "                        show in full; default 0-63\n"
                           "  --title TEXT          headline of the page\n"
                           "  --seed S              of a PROBLEM's random numbers; default 1\n"
                           "  --threads T           default: ATTNGRAD_THREADS, else one per processor\n"
                           "  --out FILE            the page; folders on the way to it are made\n"
                           "  -h, --help            this text\n"
                           "\n"
                           "exit codes: 0 done, 1 the output failed, 2 wrong arguments or files\n";

enum { MAX_LIST = 256, MAX_MAPS = 4 };

/* What the command line asks for. */
struct wish {
    const char *heads, *sequences, *maps, *rows, *keys, *title, *seed_text;
    uint64_t seed;
    int64_t head_list[MAX_LIST], sequence_list[MAX_LIST];
    agv_request request;
};

/* ---- Options ---- */

/* Reads a number from text up to one of the characters in `ends` or the end; returns what follows, NULL if it is no
 * number from 0 on. */
static const char *read_index(const char *text, char end, int64_t *value)
{
    char *rest;
    errno = 0;
    if (text[0] < '0' || text[0] > '9') {
        return NULL;
    }
    *value = strtoll(text, &rest, 10);
    return errno == 0 && (*rest == end || *rest == '\0') ? rest : NULL;
}

static int read_list(const char *option, const char *text, int64_t list[MAX_LIST], int64_t *count)
{
    const char *at = text;
    while (at != NULL && *count < MAX_LIST) {
        at = read_index(at, ',', &list[*count]);
        if (at == NULL) {
            return usage_error("view", "--%s: '%s' is not a list of numbers from 0 on: 0,2,5", option, text);
        }
        (*count)++;
        at = *at == ',' ? at + 1 : NULL;
    }
    return at == NULL ? 0 : usage_error("view", "--%s: more than %d numbers", option, MAX_LIST);
}

/* "A-B", both shown; range: [A, B + 1). */
static int read_range(const char *option, const char *text, int64_t range[2])
{
    const char *at = text != NULL ? read_index(text, '-', &range[0]) : NULL;
    at = at != NULL && *at == '-' ? read_index(at + 1, '\0', &range[1]) : NULL;
    if (text != NULL && (at == NULL || range[1] < range[0] || range[1] == INT64_MAX)) {
        return usage_error("view", "--%s: '%s' is not a range such as 0-63", option, text);
    }
    range[1] += text != NULL;
    return 0;
}

static int read_map(const char *word, size_t length, uint32_t *maps)
{
    static const char *const names[MAX_MAPS] = {"forward", "vjp", "jvp", "vjp_jvp"};
    static const uint32_t bits[MAX_MAPS] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP};
    for (int n = 0; n < MAX_MAPS; n++) {
        if (strlen(names[n]) == length && strncmp(word, names[n], length) == 0) {
            *maps |= bits[n];
            return 0;
        }
    }
    return usage_error("view", "--maps: no map '%.*s': forward, vjp, jvp, vjp_jvp", (int)length, word);
}

static int read_maps(const char *text, uint32_t *maps)
{
    int status = 0;
    while (text != NULL && status == 0) {
        size_t length = strcspn(text, ",");
        status = read_map(text, length, maps);
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    return status;
}

static int read_wish(struct wish *w)
{
    agv_request *r = &w->request;
    int status = w->heads != NULL ? read_list("heads", w->heads, w->head_list, &r->n_heads) : 0;
    if (status == 0 && w->sequences != NULL) {
        status = read_list("sequences", w->sequences, w->sequence_list, &r->n_batches);
    }
    if (status == 0 && w->seed_text != NULL) {
        status = option_set("view", &(struct option){"seed", OPTION_SEED, &w->seed, 0, 0}, w->seed_text);
    }
    status = status == 0 ? read_range("rows", w->rows, r->rows) : status;
    status = status == 0 ? read_range("keys", w->keys, r->keys) : status;
    status = status == 0 ? read_maps(w->maps, &r->maps) : status;
    r->heads = w->head_list;
    r->batches = w->sequence_list;
    return status;
}

/* The worked example is shown as it is, and a problem has its features in its text: options that would have no effect
 * are refused. */
static int check_combination(const struct run *run, const struct wish *w)
{
    const bool chosen = w->heads || w->sequences || w->maps || w->rows || w->keys;
    if (run->backend.name != NULL || run->backend.device >= 0) {
        return usage_error("view", "--%s: a page has no choice of it",
                           run->backend.name != NULL ? "backend" : "device");
    }
    if (run->word != NULL && any_input(run)) {
        return usage_error("view", "'%s' and arrays: one of them", run->word);
    }
    if (run->word == NULL && !any_input(run) && chosen) {
        return usage_error("view",
                           "the worked example is shown as a whole: give a problem or --q, --k and --v");
    }
    if (run->feature != NULL && !any_input(run)) {
        return usage_error("view", "--%s is for arrays%s", run->feature,
                           run->word != NULL ? ": a problem has its features in its text" : "");
    }
    if (w->seed_text != NULL && run->word == NULL) {
        return usage_error("view", "--seed is for the random numbers of a problem");
    }
    return 0;
}

/* ---- The page ---- */

static int show_progress(void *ctx, double share)
{
    (void)ctx;
    ticker_share(share, "view");
    return 0;
}

static int page_of_call(agv_page *page, struct run *run, const ag_plan *plan, const ag_args *args,
                        struct wish *w)
{
    char message[AGV_LINE_SIZE];
    w->request.progress = show_progress;
    ticker_begin(100);
    const ag_status status = agv_page_of_call(page, plan, args, &w->request, message);
    ticker_end();
    if (status == AG_INVALID_ARGUMENT) {
        return usage_error(run->command, "%s", message);
    }
    return status == AG_OK ? EXIT_PASS : file_error(run->command, "%s", message);
}

/* A problem with random numbers. */
static int page_of_problem(agv_page *page, struct run *run, struct wish *w)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    struct arrays x;
    options.threads = (int32_t)run->threads;
    if (ag_problem_parse(run->word, &problem) != AG_OK) {
        return usage_error(run->command, "%s", ag_last_message());
    }
    const ag_status status = agc_arrays_create(&x, &problem, &options, w->seed);
    if (status != AG_OK) {
        return usage_error(run->command, "%s", status == AG_NO_MEMORY ? "out of memory" : ag_last_message());
    }
    snprintf(page->title, sizeof page->title, "Attention on random numbers");
    agv_add_line(&page->facts, "seed %" PRIu64, w->seed);
    const int code = page_of_call(page, run, x.plan, &x.args, w);
    agc_arrays_destroy(&x);
    return code;
}

static void add_sources(agv_page *page, const struct run *run)
{
    char line[4 * AGV_LINE_SIZE];
    size_t used = 0;
    line[0] = '\0';
    for (enum tensor t = 0; t < T_COUNT && used < sizeof line; t++) {
        if (run->tensors[t].path != NULL) {
            used += (size_t)snprintf(line + used, sizeof line - used, "%s%s %s", used > 0 ? ", " : "",
                                     run->tensors[t].option, run->tensors[t].path);
        }
    }
    agv_add_line(&page->facts, "%s", line);
}

static int page_of_files(agv_page *page, struct run *run, struct wish *w)
{
    int status = open_inputs(run);
    for (enum tensor t = 0; t < T_COUNT; t++) { /* vjp reads a cotangent of o, which may be absent */
        if (run->tensors[t].path != NULL && agc_tensor_info[t].role == ROLE_COTANGENT) {
            run->maps |= AG_MAP_VJP;
        }
    }
    if (status == EXIT_PASS) {
        status = derive_problem(run);
    }
    if (run->tensors[T_D_O].path == NULL) {
        run->args.d_o.data = NULL; /* vjp requires one, the page says that it is absent */
    }
    snprintf(page->title, sizeof page->title, "Attention");
    add_sources(page, run);
    return status == EXIT_PASS ? page_of_call(page, run, run->plan, &run->args, w) : status;
}

static int page_of_example(agv_page *page, const struct run *run)
{
    const ag_status status = view_example(page);
    snprintf(page->title, sizeof page->title, "Every variable of attention and of its derivatives");
    return status == AG_OK ? EXIT_PASS
                           : run_error(run->command, "%s: %s", ag_status_string(status), ag_last_message());
}

/* ---- The file ---- */

static int is_stopped(void *ctx)
{
    (void)ctx;
    return signals_held() > 0;
}

static ag_io_status write_file(const char *path, const char *bytes, size_t size)
{
    ag_io_writer *writer;
    ag_io_writer_options options = AG_IO_WRITER_OPTIONS_INIT;
    options.cancelled = is_stopped;
    ag_io_status status = ag_io_writer_create(&writer, &options);
    if (status == AG_IO_OK) {
        status = ag_io_write(writer, path, bytes, size);
    }
    if (status == AG_IO_OK) {
        status = ag_io_writer_commit(writer);
    }
    ag_io_writer_destroy(writer);
    return status;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL || slash == path ? 1 : (size_t)(slash - path);
    char *folder = alloc_or_exit("a path", (int64_t)length + 1, 1);
    memcpy(folder, slash != NULL ? path : ".", length);
    folder[length] = '\0';
    return folder;
}

static int save(const struct run *run, const char *bytes, size_t size)
{
    struct folders folders;
    char *folder = folder_of(run->out);
    int status = EXIT_PASS;
    signals_hold();
    if (!folders_make(&folders, folder)) {
        status = run_error(run->command, "cannot make the folder '%s': %s", folder, strerror(errno));
    } else if (write_file(run->out, bytes, size) != AG_IO_OK) {
        status = run_error(run->command, "%s", ag_io_last_message());
        folders_unmake(&folders);
    }
    folders_free(&folders);
    free(folder);
    signals_release();
    return status;
}

/* Prints a note in lines of at most 80 characters. */
static void print_note(const char *note)
{
    int column = 0;
    while (*note != '\0') {
        const int length = (int)strcspn(note, " ");
        const bool wraps = column > 0 && column + 1 + length > 80;
        printf("%s%.*s", column == 0 ? "" : wraps ? "\n" : " ", length, note);
        column = (wraps || column == 0 ? 0 : column + 1) + length;
        note += length + (note[length] == ' ');
    }
    printf("\n");
}

static int write_page(const struct run *run, const agv_page *page)
{
    char *bytes;
    size_t size;
    if (agv_page_write(page, &bytes, &size) != AG_OK) {
        return file_error(run->command, "out of memory");
    }
    const int status = save(run, bytes, size);
    free(bytes);
    if (status == EXIT_PASS) {
        printf("%s  %.1f MB\n", run->out, (double)size / 1e6);
        for (int n = 0; n < page->notes.count; n++) {
            print_note(page->notes.lines[n]);
        }
    }
    return status;
}

static int make_page(struct run *run, struct wish *w)
{
    agv_page *page = alloc_or_exit("the page", 1, sizeof *page);
    memset(page, 0, sizeof *page);
    int status = run->word != NULL ? page_of_problem(page, run, w)
                 : any_input(run)  ? page_of_files(page, run, w)
                                   : page_of_example(page, run);
    if (w->title != NULL) {
        agv_copy_text(page->title, w->title);
    }
    if (status == EXIT_PASS) {
        status = write_page(run, page);
    }
    agv_page_free(page);
    free(page);
    return status;
}

static int view(struct run *run, struct wish *w, int argc, char **argv)
{
    const struct option own[] = {
        {"heads", OPTION_TEXT, &w->heads, 0, 0},    {"sequences", OPTION_TEXT, &w->sequences, 0, 0},
        {"maps", OPTION_TEXT, &w->maps, 0, 0},      {"rows", OPTION_TEXT, &w->rows, 0, 0},
        {"keys", OPTION_TEXT, &w->keys, 0, 0},      {"title", OPTION_TEXT, &w->title, 0, 0},
        {"seed", OPTION_TEXT, &w->seed_text, 0, 0},
    };
    run->command = argv[0];
    run->maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP;
    run->is_optional = true;
    int status = parse_options(run, argc, argv, own, sizeof own / sizeof own[0]);
    if (status == EXIT_PASS && run->help) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    run->maps = AG_MAP_FORWARD;
    status = status == EXIT_PASS ? read_wish(w) : status;
    status = status == EXIT_PASS ? check_combination(run, w) : status;
    return status == EXIT_PASS ? make_page(run, w) : status;
}

int view_main(int argc, char **argv)
{
    struct run *run = calloc(1, sizeof *run);
    struct wish *w = calloc(1, sizeof *w);
    int status = EXIT_USAGE;
    if (run == NULL || w == NULL) {
        status = file_error(argv[0], "out of memory");
    } else {
        w->seed = 1;
        status = view(run, w, argc, argv);
        free_run(run);
    }
    free(run);
    free(w);
    return status;
}
