/* Times rounds of probes and maps: see bench_time.h. Maps and probes are timed over windows of the same
 * length, one directly after the other, so that both run at the clock rate that the processor sustains. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "bench_time.h"

#include "check/stage.h"
#include "probe_gpu.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const double settle_seconds = 0.2, window_seconds = 0.05;

/* flops: 2 for each of the 2, 5, 6, 12 and 10 matrix products of a map; exact for vjp, vjp_jvp and jvp_jvp only if
 * Dk = Dv. */
const struct bench_map bench_maps[BENCH_MAPS] = {
    {"forward", AG_MAP_FORWARD, ag_forward, 0, 4},
    {"vjp", AG_MAP_VJP, ag_vjp, AG_MAP_FORWARD, 10},
    {"jvp", AG_MAP_JVP, ag_jvp, 0, 12},
    {"vjp_jvp", AG_MAP_VJP_JVP, ag_vjp_jvp, AG_MAP_JVP, 24},
    {"jvp_jvp", AG_MAP_JVP_JVP, ag_jvp_jvp, AG_MAP_JVP, 20},
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- The size of the work ---- */

/* Number of keys that query i of a sequence sees, without regard to masks and biases. */
static int64_t visible_keys(const ag_problem *p, int64_t i, int64_t n_q, int64_t n_k)
{
    const int64_t position = i + (p->align == AG_ALIGN_BOTTOM_RIGHT ? n_k - n_q : 0);
    int64_t first = 0, last = n_k - 1;
    if ((p->flags & AG_CAUSAL) && last > position) {
        last = position;
    }
    if ((p->flags & AG_WINDOW) && p->window_right >= 0 && last - position > p->window_right) {
        last = position + p->window_right;
    }
    if ((p->flags & AG_WINDOW) && p->window_left >= 0 && position - first > p->window_left) {
        first = position - p->window_left;
    }
    return last < first ? 0 : last - first + 1;
}

static double visible_pairs(const struct arrays *arrays)
{
    double pairs = 0;
    for (int64_t b = 0; b < arrays->p->batch; b++) {
        const int64_t n_q = agc_arrays_q_length(arrays, b), n_k = agc_arrays_k_length(arrays, b);
        for (int64_t i = 0; i < n_q; i++) {
            pairs += (double)visible_keys(arrays->p, i, n_q, n_k);
        }
    }
    return pairs * (double)arrays->p->heads;
}

/* ---- Beginning ---- */

/* The probe of the unit that computes the plan's products: AMX for bfloat16 only. */
static enum probe_kind probe_of(const struct bench *b)
{
    const ag_dtype dtype = b->arrays->p->dtype;
    if (dtype == AG_BF16 && strcmp(b->isa, "amx") == 0) {
        return PROBE_AMX_BF16;
    }
    return dtype == AG_F64 ? PROBE_FMA_F64 : PROBE_FMA_F32;
}

/* From now on jvp is given o and lse, which spares it one of its six products. */
static ag_status give_o(struct bench *b)
{
    const ag_status status = agc_arrays_run(b->arrays, AG_MAP_FORWARD);
    b->arrays->args.flags = AG_GIVEN_O;
    for (int n = 0; n < b->count; n++) {
        b->results[n].flops *= b->results[n].map->bit == AG_MAP_JVP ? 5.0 / 6 : 1;
    }
    return status;
}

ag_status bench_begin(struct bench *b, struct arrays *arrays, uint32_t maps, bool given_o)
{
    const double channels = 0.5 * (double)(arrays->p->dim_qk + arrays->p->dim_v);
    const double work = visible_pairs(arrays) * channels;
    ag_plan_info info = {.struct_size = sizeof info};
    ag_status status = ag_plan_info_get(arrays->plan, &info);
    memset(b, 0, sizeof *b);
    b->arrays = arrays;
    b->threads = info.threads;
    snprintf(b->isa, sizeof b->isa, "%s", info.isa == AG_ISA_AUTO ? "scalar" : info.isa_name);
    b->kind = probe_of(b);
    b->on_gpu = agc_on_device(arrays->plan);
    if (status == AG_OK && maps & AG_MAP_JVP_JVP) {
        status = agc_arrays_add_second_direction(arrays);
        status = status == AG_OK ? agc_arrays_run_along_s(arrays) : status;
    }
    for (int n = 0; n < BENCH_MAPS && status == AG_OK; n++) {
        const struct bench_map *map = &bench_maps[n];
        if ((maps & map->bit) == 0) {
            continue;
        }
        struct bench_result *r = &b->results[b->count++];
        *r = (struct bench_result){.map = map, .flops = map->flops * work};
        status = ag_plan_workspace(arrays->plan, map->bit, &r->workspace_bytes);
        if (status == AG_OK && map->prerequisite != 0) {
            status = agc_arrays_run(arrays, map->prerequisite);
        }
    }
    return status == AG_OK && given_o ? give_o(b) : status;
}

/* ---- Rounds ---- */

static void keep_highest(double *best, double value)
{
    *best = value > *best ? value : *best;
}

/* Calls the map until the window is full; the mean time per call is the round's time. */
static ag_status time_map(struct bench *b, struct bench_result *r)
{
    struct arrays *arrays = b->arrays;
    const double start = now_seconds();
    double elapsed = 0;
    int64_t calls = 0;
    do {
        const ag_status status =
            r->map->run(arrays->plan, &arrays->args, NULL, arrays->workspace, arrays->workspace_bytes);
        if (status != AG_OK) {
            return status;
        }
        calls++;
        elapsed = now_seconds() - start;
    } while (elapsed < window_seconds);
    const double seconds = elapsed / (double)calls;
    r->seconds = r->seconds == 0 || seconds < r->seconds ? seconds : r->seconds;
    return AG_OK;
}

/* ---- On a GPU ---- */

/* Enqueues more and more calls until the window is full; a shorter row of calls is a warm-up. */
static ag_status time_rows(const struct arrays *x, struct bench_result *r, const struct agc_stage *stage,
                           const ag_args *args, void *workspace)
{
    const ag_exec exec = AG_EXEC_INIT;
    ag_status status = AG_OK;
    for (int64_t calls = 1; status == AG_OK; calls *= 2) {
        const double start = now_seconds();
        for (int64_t n = 0; n < calls && status == AG_OK; n++) {
            status = r->map->run(x->plan, args, &exec, workspace, r->workspace_bytes);
        }
        status = status == AG_OK ? agc_stage_wait(stage) : status;
        const double elapsed = now_seconds() - start, seconds = elapsed / (double)calls;
        if (elapsed >= window_seconds) {
            r->seconds = r->seconds == 0 || seconds < r->seconds ? seconds : r->seconds;
            break;
        }
    }
    return status;
}

static ag_status time_map_on_gpu(struct bench *b, struct bench_result *r)
{
    struct agc_stage stage;
    ag_args args = b->arrays->args;
    void *workspace = NULL;
    ag_status status =
        agc_stage_map(&stage, b->arrays->plan, r->map->bit, &args, &workspace, r->workspace_bytes);
    if (status == AG_OK) {
        status = time_rows(b->arrays, r, &stage, &args, workspace);
    }
    return agc_stage_end(&stage, status);
}

static ag_status round_on_gpu(struct bench *b)
{
    ag_status status = AG_OK;
    for (int n = 0; n < b->count && status == AG_OK; n++) {
        double rate = 0;
        status = probe_gpu_rate(b->arrays->p->dtype, window_seconds, &rate);
        keep_highest(&b->probe, rate);
        status = status == AG_OK ? time_map_on_gpu(b, &b->results[n]) : status;
    }
    return status;
}

ag_status bench_round(struct bench *b)
{
    ag_status status = AG_OK;
    if (b->on_gpu) {
        return round_on_gpu(b);
    }
    keep_highest(&b->exp2, probe_rate(b->isa, PROBE_EXP2_F32, b->threads, settle_seconds, window_seconds));
    if (b->threads > 1) {
        keep_highest(&b->probe_one, probe_rate(b->isa, b->kind, 1, settle_seconds, window_seconds));
    }
    for (int n = 0; n < b->count && status == AG_OK; n++) {
        keep_highest(&b->probe, probe_rate(b->isa, b->kind, b->threads, settle_seconds, window_seconds));
        status = time_map(b, &b->results[n]);
    }
    if (b->kind != PROBE_AMX_BF16) {
        const enum probe_kind fed = b->kind == PROBE_FMA_F64 ? PROBE_FED_F64 : PROBE_FED_F32;
        keep_highest(&b->fed, probe_rate(b->isa, fed, b->threads, settle_seconds, window_seconds));
    }
    if (b->threads == 1) {
        b->probe_one = b->probe;
    }
    return status;
}

double bench_percent(const struct bench *b, const struct bench_result *r)
{
    return b->probe > 0 && r->seconds > 0 ? 100 * r->flops / r->seconds / b->probe : 0;
}
