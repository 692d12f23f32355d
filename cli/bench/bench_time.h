/* The timing of one problem's maps beside probes of the ceiling. */
#ifndef ATTNGRAD_CLI_BENCH_TIME_H
#define ATTNGRAD_CLI_BENCH_TIME_H

#include "check/arrays.h"
#include "probe.h"

enum { BENCH_MAPS = 4, BENCH_ISA = 16 };

struct bench_map {
    const char *name;
    uint32_t bit; /* AG_MAP_* */
    ag_status (*run)(const ag_plan *, const ag_args *, const ag_exec *, void *, size_t);
    uint32_t before; /* the map whose outputs it reads; 0: none */
    double flops;    /* for each visible pair and each channel of (Dk + Dv) / 2 */
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
    int64_t rounds;
    char isa[BENCH_ISA];
    enum probe_kind kind; /* of the probe that the maps are compared with */
    int count;
    struct bench_result results[BENCH_MAPS];
    double probe, probe_one; /* operations a second of all threads and of one: the best round's */
    double fed;              /* the same with factors from the first cache; 0: bf16 tiles */
    double exp2;             /* exponentials a second of all threads */
};

/* Which maps are timed: bits of AG_MAP_*. threads, isa and kind follow from the plan. */
ag_status bench_begin(struct bench *b, struct arrays *x, uint32_t maps, int64_t rounds);

/* One round: for each map a probe, then the map. Call it `rounds` times. The status is the maps'. */
ag_status bench_round(struct bench *b);

double bench_percent(const struct bench *b, const struct bench_result *r); /* of the probe; 0 without one */

#endif
