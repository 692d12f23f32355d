/* The commands forward, grad, jvp, jvp2 and hvp: their steps in order, and their help. */
#include "files.h"

#include "commands.h"
#include "usage.h"

#include <stdio.h>
#include <stdlib.h>

static const char help_inputs[] =
    "files: NAME.npy, or NAME.safetensors:TENSOR; floats are f64, f32, f16 or (in\n"
    "safetensors) bf16, the same in all inputs; but dlse and tdlse are f64, and\n"
    "bias, table and sink may all be f32.\n"
    "  --q F --k F --v F   [n, d], [heads, n, d] or [batch, heads, n, d]; with packed\n"
    "                      offsets [total, heads, d]; k and v may have fewer heads\n"
    "  --bias F            added to the scores: [nq, nk], [heads, nq, nk] or\n"
    "                      [batch, heads, nq, nk], each axis full or 1\n"
    "  --mask F            bool or u8, likewise; not zero = may attend\n"
    "  --bias-table F      bias by relative position: [heads, columns] or [columns]\n"
    "  --buckets F         i32 or i64 [2R + 1]: the column of each of -R .. R\n"
    "  --sink F            one extra logit per head: [heads]\n"
    "  --kv-lengths F, --q-lengths F    i32 or i64 [batch]\n"
    "  --q-packed F --k-packed F        i32 or i64 [batch + 1]: where sequences start\n"
    "  --q-offsets F, --k-offsets F     i32 or i64 [batch]: --q-offset and --k-offset\n"
    "                                   of each sequence\n";

static const char help_cotangents[] = "cotangents, at least one:\n"
                                      "  --do F, --dlse F    of o, shaped as o; of lse, shaped as lse, f64\n";

static const char help_tangents[] = "tangents, at least one, each shaped as what it belongs to:\n"
                                    "  --tq F, --tk F, --tv F, --tbias F, --ttable F, --tsink F\n";

static const char help_direction[] =
    "the second direction likewise; without any of these it is the first one:\n"
    "  --sq F, --sk F, --sv F, --sbias F, --stable F, --ssink F\n";

static const char help_second[] = "  --tdo F, --tdlse F  of the cotangents\n";

static const char help_options[] =
    "options:\n"
    "  --causal[=A]             a query sees no later key; with =A also --align A\n"
    "  --align A                top-left: query 0 stands at key 0, the default;\n"
    "                           bottom-right: the last query at the last key; matters\n"
    "                           for causal, window, alibi and the bias table\n"
    "  --window L,R             keys this far before and after are seen; -1 = all\n"
    "  --softcap C              scores become C tanh(score / C)\n"
    "  --scale S                of the scores; default 1 / sqrt(d)\n"
    "  --dropout P,SEED         probability that a weight is dropped\n"
    "  --alibi[=F]              linear bias by distance; F: [heads] slopes,\n"
    "                           f64, f32, f16 or bf16\n"
    "  --q-offset N, --k-offset N    positions of query 0 and of key 0\n"
    "  --threads T              default: ATTNGRAD_THREADS, else one per processor\n"
    "  --backend B              cpu, reference or cuda; default: ATTNGRAD_BACKEND,\n"
    "                           else cpu\n"
    "  --device N               the number of the GPU, with cuda; default 0\n"
    "  --invariant              bits independent of the rest of the batch\n"
    "  --out DIR                folder of the results; it and those on the\n"
    "                           way to it are made if they are missing\n"
    "  -h, --help               this text\n"
    "\n"
    "Results are DIR/NAME.npy in the inputs' dtype, lse, mu, smu and nu in f64; bf16\n"
    "inputs give DIR/out.safetensors. All are first written to temporary files; if\n"
    "that fails, no file has changed. If one cannot then be put in place, the message\n"
    "names those that already were.\n"
    "\n"
    "exit codes: 0 done, 1 the output failed, 2 wrong arguments or files\n";

static void print_help(const struct run *run, const char *words, const char *what)
{
    printf("usage: attngrad %s --q F --k F --v F %s[OPTION]... --out DIR\n\n%s\n\n", run->command, words,
           what);
    fputs(help_inputs, stdout);
    fputs(run->maps & AG_MAP_VJP ? help_cotangents : "", stdout);
    fputs(run->maps & AG_MAP_JVP ? help_tangents : "", stdout);
    fputs(run->maps & AG_MAP_JVP_JVP ? help_direction : "", stdout);
    fputs(run->maps & AG_MAP_VJP_JVP ? help_second : "", stdout);
    fputs(help_options, stdout);
}

static int run_steps(struct run *run)
{
    int status = open_inputs(run);
    if (status == EXIT_PASS) {
        status = derive_problem(run);
    }
    if (status == EXIT_PASS) {
        status = run_maps(run);
    }
    return status == EXIT_PASS ? save_results(run) : status;
}

/* words: what the usage line lists after q, k and v; what: the first paragraph of the help. */
static int run_command(int argc, char **argv, uint32_t maps, const char *words, const char *what)
{
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return file_error(argv[0], "out of memory");
    }
    run->command = argv[0];
    run->maps = maps;
    int status = parse_options(run, argc, argv, NULL, 0);
    if (status == EXIT_PASS && run->help) {
        print_help(run, words, what);
    } else if (status == EXIT_PASS) {
        status = run_steps(run);
    }
    free_run(run);
    free(run);
    return status;
}

int forward_main(int argc, char **argv)
{
    return run_command(argc, argv, AG_MAP_FORWARD, "",
                       "Attention of arrays in files: o, and lse, the logarithm of each row's sum of\n"
                       "exponentials.");
}

int grad_main(int argc, char **argv)
{
    return run_command(argc, argv, AG_MAP_FORWARD | AG_MAP_VJP, "--do F ",
                       "Attention of arrays in files and its gradients: o, lse, dq, dk, dv, and dbias,\n"
                       "dtable, dsink if there is a bias, a table, a sink.");
}

int jvp_main(int argc, char **argv)
{
    return run_command(argc, argv, AG_MAP_JVP, "--tq F ",
                       "Attention of arrays in files and its derivative along tangents: o, lse, to, and\n"
                       "mu, the tangent of lse.");
}

int jvp2_main(int argc, char **argv)
{
    return run_command(argc, argv, AG_MAP_JVP | AG_MAP_JVP_JVP, "--tq F ",
                       "Attention of arrays in files and its second derivative along two directions t\n"
                       "and s: o, lse, to, mu, sto and nu, the second derivatives of o and lse, and, if\n"
                       "there is a direction s, so and smu, the first ones along it.");
}

int hvp_main(int argc, char **argv)
{
    return run_command(argc, argv, AG_MAP_JVP | AG_MAP_VJP | AG_MAP_VJP_JVP, "--do F --tq F ",
                       "Attention of arrays in files, its gradients and their derivative along tangents:\n"
                       "o, lse, to, mu, dq, dk, dv, tdq, tdk, tdv, and dbias, dtable, dsink, tdbias,\n"
                       "tdtable, tdsink if there is a bias, a table, a sink.");
}
