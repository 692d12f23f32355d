/* Streams and captured graphs of the CUDA driver, which the library does not make: for tests on a GPU, and on the fake
 * driver. */
#ifndef AG_TEST_GRAPHS_H
#define AG_TEST_GRAPHS_H

#include <attngrad_check.h>

#include "check/driver.h"
#include "cuda/driver.h"
#include "test.h"

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0, CAPTURE_RELAXED = 2 };

struct graph_functions {
    CUresult (*create)(CUstream *stream, unsigned flags, int priority);
    CUresult (*begin_capture)(CUstream stream, int mode);
    CUresult (*end_capture)(CUstream stream, CUgraph *graph);
    CUresult (*instantiate)(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
    CUresult (*replay)(CUgraphExec exec, CUstream stream);
    CUresult (*destroy_graph)(CUgraph graph);
    CUresult (*destroy_exec)(CUgraphExec exec);
};

static const struct agc_driver_function graph_names[] = {
    {"cuStreamCreateWithPriority", offsetof(struct graph_functions, create)},
    {"cuStreamBeginCapture_v2", offsetof(struct graph_functions, begin_capture)},
    {"cuStreamEndCapture", offsetof(struct graph_functions, end_capture)},
    {"cuGraphInstantiateWithFlags", offsetof(struct graph_functions, instantiate)},
    {"cuGraphLaunch", offsetof(struct graph_functions, replay)},
    {"cuGraphDestroy", offsetof(struct graph_functions, destroy_graph)},
    {"cuGraphExecDestroy", offsetof(struct graph_functions, destroy_exec)},
};

static struct graph_functions graphs;
static const agi_cuda_driver *cu;

/* Ends the program if the driver fails: all that follows would fail too. */
static inline void must(CUresult result, const char *what)
{
    char text[100];
    const char *name = NULL;
    cu->GetErrorName(result, &name);
    snprintf(text, sizeof text, "%s: error %d, %s", what, result, name == NULL ? "of no name" : name);
    test_need(result == 0, text);
}

/* After a plan has opened the driver. */
static inline void find_graph_functions(void)
{
    test_need(agi_cuda_open(&cu) == AG_OK, ag_last_message());
    test_need(agc_find_in_driver(&graphs, graph_names, sizeof graph_names / sizeof graph_names[0]) == AG_OK,
              ag_check_last_message());
}

/* Ends the capture of the stream. */
static inline CUgraphExec end_of_capture(CUstream stream)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    must(graphs.end_capture(stream, &graph), "the end of a capture");
    must(graphs.instantiate(&exec, graph, 0), "a graph");
    must(graphs.destroy_graph(graph), "a graph");
    return exec;
}

#endif
