/* Times the maps of one problem together with probes of the processor's peak. */
#ifndef ATTNGRAD_CLI_BENCH_TIME_H
#define ATTNGRAD_CLI_BENCH_TIME_H

#include "check/arrays.h"
#include "probe.h"

#include <stdbool.h>

enum { BENCH_MAPS = 5, BENCH_ISA_SIZE = 16 };

struct bench_map {
    const char *name;
    uint32_t bit; /* AG_MAP_* */
    ag_status (*run)(const ag_plan *, const ag_args *, const ag_exec *, void *, size_t);
    uint32_t prerequisite; /* the map whose outputs it reads; 0: none */
    double flops;          /* per visible pair and per channel of (Dk + Dv) / 2 */
};

extern const struct bench_map bench_maps[BENCH_MAPS];

struct bench_result {
    const struct bench_map *map;
    double seconds; /* of one call, the best round */
    double flops;   /* of one call */
    size_t workspace_bytes;
};

struct bench {
    struct arrays *arrays;
    int threads;
    char isa[BENCH_ISA_SIZE];
    enum probe_kind kind; /* of the probe that the maps are compared with */
    int count;
    struct bench_result results[BENCH_MAPS];
    double probe, probe_one; /* operations per second of all threads, and of one: in the best round */
    double fed;              /* the same with factors from the L1 cache; 0 for AMX */
    double exp2;             /* exponentials per second of all threads */
    int on_gpu;              /* the probe is that of tensor cores, and there is no other */
};

/* maps: bits of AG_MAP_*. given_o: jvp runs with AG_GIVEN_O. threads, isa and kind are taken from the plan. */
ag_status bench_begin(struct bench *b, struct arrays *arrays, uint32_t maps, bool given_o);

/* Runs one round: for each map a probe, then the map. Returns the status of the maps. */
ag_status bench_round(struct bench *b);

double bench_percent(const struct bench *b, const struct bench_result *r); /* of the probe; 0 without one */

#endif
