/* Allocates the results, runs the maps, frees everything. */
#include "files.h"

#include "alloc.h"
#include "bar.h"
#include "check/stage.h"
#include "usage.h"

#include <stdlib.h>
#include <string.h>

/* In the order in which they run, as forward and jvp compute what vjp, vjp_jvp and jvp_jvp read. */
static const struct {
    uint32_t map;
    const char *name;
} maps_in_order[] = {{AG_MAP_FORWARD, "forward"},
                     {AG_MAP_JVP, "jvp"},
                     {AG_MAP_VJP, "vjp"},
                     {AG_MAP_VJP_JVP, "vjp_jvp"},
                     {AG_MAP_JVP_JVP, "jvp_jvp"}};
enum { MAPS = sizeof maps_in_order / sizeof maps_in_order[0] };

/* Returns memory for a result of the size and dtype of tensor t, or NULL if the problem has no such tensor. */
static void *make_like(const struct run *run, enum tensor t, const char *name)
{
    int64_t size[4];
    if (!agc_tensor_size(run->p, t, size)) {
        return NULL;
    }
    return alloc_or_exit(name, size[0] * size[1] * size[2] * size[3],
                         ag_dtype_size(agc_tensor_dtype(run->p, t)));
}

static void make_result(struct run *run, enum tensor t)
{
    run->results[t] = make_like(run, t, agc_tensor_info[t].name);
    if (run->results[t] != NULL) {
        *args_tensor(run, t) = agc_tensor_view(run->p, t, run->results[t]);
    }
}

/* If no tangent of the second direction is given, it is the first one, and its mu is smu. */
static void make_second_direction(struct run *run)
{
    bool given = false;
    for (int n = 0; n < FAMILY_VARIABLES; n++) {
        given = given || run->tensors[agc_families[n].s].path != NULL;
    }
    if (given) {
        make_result(run, T_SMU);
        run->so_results = make_like(run, T_TO, "so");
        run->so = agc_tensor_view(run->p, T_TO, run->so_results);
        return;
    }
    for (int n = 0; n < FAMILY_VARIABLES; n++) {
        *args_tensor(run, agc_families[n].s) = *args_tensor(run, agc_families[n].t);
    }
    run->args.smu = run->args.mu;
}

static void make_results(struct run *run)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if ((agc_tensor_info[t].writers & run->maps) != 0 && agc_tensor_info[t].role != ROLE_LOW_HALF) {
            make_result(run, t);
        }
    }
    if (run->maps & AG_MAP_JVP_JVP) {
        make_second_direction(run);
    }
}

/* jvp along the second direction, given o and lse: writes so and smu. */
static ag_status run_along_s(const struct run *run, void *workspace, size_t bytes)
{
    ag_args args = run->args;
    args.flags |= AG_GIVEN_O;
    for (int n = 0; n < FAMILY_VARIABLES; n++) {
        const size_t to = agc_tensor_info[agc_families[n].t].offset,
                     from = agc_tensor_info[agc_families[n].s].offset;
        memcpy((char *)&args + to, (const char *)&run->args + from, sizeof(ag_tensor));
    }
    args.to = run->so;
    args.mu = run->args.smu;
    return agc_run_map(run->plan, AG_MAP_JVP, &args, workspace, bytes);
}

/* Shows a ticker, as a map is one call that does not report its progress. */
static ag_status call_maps(struct run *run, void *workspace, size_t bytes)
{
    ag_status status = AG_OK;
    int64_t count = 0, done = 0;
    for (int n = 0; n < MAPS; n++) {
        count += (run->maps & maps_in_order[n].map) != 0;
    }
    ticker_begin(count);
    for (int n = 0; n < MAPS && status == AG_OK; n++) {
        if (run->maps & maps_in_order[n].map) {
            ticker_part(done++, maps_in_order[n].name);
            if (maps_in_order[n].map == AG_MAP_JVP_JVP && run->so_results != NULL) {
                status = run_along_s(run, workspace, bytes);
            }
            if (status == AG_OK) {
                status = agc_run_map(run->plan, maps_in_order[n].map, &run->args, workspace, bytes);
            }
        }
    }
    ticker_end();
    return status;
}

int run_maps(struct run *run)
{
    size_t bytes = 0;
    ag_status status = ag_plan_workspace(run->plan, run->maps, &bytes);
    if (status != AG_OK) {
        return run_library_error(run);
    }
    make_results(run);
    void *workspace = alloc_or_exit("the workspace", (int64_t)bytes, 1);
    status = call_maps(run, workspace, bytes);
    free(workspace);
    return status == AG_OK ? EXIT_PASS : run_library_error(run);
}

void free_run(struct run *run)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        ag_io_close(run->tensors[t].file);
        free(run->results[t]);
    }
    for (enum list l = 0; l < LIST_COUNT; l++) {
        ag_io_close(run->lists[l].file);
        free(run->integers[l]);
    }
    free(run->so_results);
    ag_plan_destroy(run->plan);
    free(run->buckets);
    free(run->slopes);
}
