/* Makes a plan: checks the problem on every rank, compares it between them, and makes the plans of libattngrad. */
#include "mpi/plan.h"

#include <stdlib.h>
#include <string.h>

#include "mpi/message.h"
#include "mpi/structs.h"
#include "mpi/workspace.h"

ag_dtype agi_mpi_wide(const ag_problem *p)
{
    return p->dtype == AG_F64 ? AG_F64 : AG_F32;
}

agi_mpi_kind agi_mpi_kind_of(agi_map map)
{
    return map == AGI_VJP || map == AGI_VJP_JVP ? AGI_MPI_WIDE_GRADS : AGI_MPI_WIDE_OUT;
}

/* ---- Options ---- */

static ag_status read_options(ag_mpi_options *o, ag_options *inside, const ag_mpi_options *given)
{
    *o = (ag_mpi_options)AG_MPI_OPTIONS_INIT;
    *inside = (ag_options)AG_OPTIONS_INIT;
    ag_status status =
        given == NULL ? AG_OK : agi_mpi_read_struct(o, sizeof *o, given, "options", AG_INVALID_PROBLEM);
    if (status == AG_OK && o->plan != NULL) {
        status = agi_mpi_read_struct(inside, sizeof *inside, o->plan, "options.plan", AG_INVALID_PROBLEM);
    }
    if (status != AG_OK) {
        return status;
    }
    if (o->progress < AG_MPI_PROGRESS_AUTO || o->progress > AG_MPI_PROGRESS_THREAD) {
        return agi_mpi_fail(AG_INVALID_PROBLEM, "options.progress", "options: progress is %d: no such value",
                            (int)o->progress);
    }
    if (o->way < AG_MPI_AUTO || o->way > AG_MPI_ALL_TO_ALL) {
        return agi_mpi_fail(AG_INVALID_PROBLEM, "options.way", "options: way is %d: no such way",
                            (int)o->way);
    }
    if (o->layout < AG_MPI_ZIGZAG || o->layout > AG_MPI_CONTIGUOUS) {
        return agi_mpi_fail(AG_INVALID_PROBLEM, "options.layout", "options: layout is %d: no such layout",
                            (int)o->layout);
    }
    if (!(o->timeout_s >= 0)) {
        return agi_mpi_fail(AG_INVALID_PROBLEM, "options.timeout_s",
                            "options: timeout_s is %g: must not be negative", o->timeout_s);
    }
    return AG_OK;
}

/* The maps inside must call poll, and the tensors are sent from the host's memory. */
static ag_status refuse_device(const char *field)
{
    return agi_mpi_fail(AG_UNSUPPORTED, field, "%s is cuda: maps over ranks run on the host only", field);
}

/* ---- Plans of libattngrad ---- */

static ag_status make(ag_plan **to, const ag_mpi_plan *plan, const ag_problem *p)
{
    const ag_status status = ag_plan_create(to, p, &plan->options);
    return status == AG_OK ? AG_OK : agi_mpi_fail_inside(status);
}

static bool runs_on_device(const ag_plan *plan)
{
    ag_plan_info info = {.struct_size = sizeof info};
    return ag_plan_info_get(plan, &info) == AG_OK && info.backend == AG_BACKEND_CUDA;
}

/* The sizes of a bias or mask for a pair of chunks. Those of packed sequences begin at another place in each sequence
 * of a chunk: the pair gets copies, one per sequence. */
static void pair_size(const ag_problem *pair, const agi_mpi_cut *cut, int64_t size[4])
{
    const bool cut_up = size[2] != 1 || size[3] != 1;
    size[0] = agi_has(cut->p, AG_PACKED) && cut_up ? pair->batch : size[0];
    size[2] = size[2] != 1 ? pair->q_len : 1;
    size[3] = size[3] != 1 ? pair->kv_len : 1;
}

static ag_problem pair_problem(const agi_mpi_cut *cut, const agi_mpi_pair_plan *key)
{
    ag_problem p = *cut->p;
    const bool packed = agi_has(&p, AG_PACKED);
    p.q_total = packed ? key->q_rows : 0;
    p.kv_total = packed ? key->k_rows : 0;
    p.q_len = packed && p.q_len < key->q_rows ? p.q_len : key->q_rows;
    p.kv_len = packed && p.kv_len < key->k_rows ? p.kv_len : key->k_rows;
    pair_size(&p, cut, p.bias_size);
    pair_size(&p, cut, p.mask_size);
    p.align = AG_ALIGN_TOP_LEFT;
    if (!key->sink) {
        p.flags &= ~(uint32_t)AG_SINK;
    }
    if (key->kind == AGI_MPI_WIDE_OUT) {
        p.out_dtype = agi_mpi_wide(&p);
    } else {
        p.grad_dtype = p.aux_dtype = agi_mpi_wide(&p);
    }
    return p;
}

const ag_plan *agi_mpi_pair_plan_of(const ag_mpi_plan *plan, int64_t q_rows, int64_t k_rows, bool sink,
                                    agi_mpi_kind kind)
{
    for (int n = 0; n < plan->n_pairs; n++) {
        const agi_mpi_pair_plan *x = &plan->pairs[n];
        if (x->q_rows == q_rows && x->k_rows == k_rows && x->sink == sink && x->kind == kind) {
            return x->plan;
        }
    }
    return NULL;
}

static ag_status add_pair_plan(ag_mpi_plan *plan, agi_mpi_pair_plan key)
{
    if (agi_mpi_pair_plan_of(plan, key.q_rows, key.k_rows, key.sink, key.kind) != NULL) {
        return AG_OK;
    }
    const ag_problem p = pair_problem(&plan->cut, &key);
    const ag_status status = make(&key.plan, plan, &p);
    if (status == AG_OK) {
        plan->pairs[plan->n_pairs++] = key;
    }
    return status;
}

/* Chunks of all ranks have floor or ceil of the mean number of rows. */
static ag_status make_pair_plans(ag_mpi_plan *plan)
{
    const int64_t q = agi_mpi_max_rows(&plan->cut, AGI_MPI_QUERIES);
    const int64_t k = agi_mpi_max_rows(&plan->cut, AGI_MPI_KEYS);
    ag_status status = AG_OK;
    for (int n = 0; n < AGI_MPI_MAX_PAIR_PLANS && status == AG_OK; n++) {
        const agi_mpi_pair_plan key = {.q_rows = q - (n & 1),
                                       .k_rows = k - (n >> 1 & 1),
                                       .sink = (n >> 2 & 1) != 0,
                                       .kind = (agi_mpi_kind)(n >> 3)};
        const bool exists = (!(n & 1) || agi_mpi_has_shorter(&plan->cut, AGI_MPI_QUERIES)) &&
                            (!(n >> 1 & 1) || agi_mpi_has_shorter(&plan->cut, AGI_MPI_KEYS)) &&
                            (!key.sink || agi_has(plan->cut.p, AG_SINK));
        status = exists ? add_pair_plan(plan, key) : AG_OK;
    }
    return status;
}

static ag_problem heads_problem(const agi_mpi_cut *cut, int64_t first, int64_t count)
{
    ag_problem p = *cut->p;
    const int64_t group = p.heads / p.kv_heads;
    p.heads = count * group;
    p.kv_heads = count;
    p.head_offset += first * group;
    p.bias_size[1] = p.bias_size[1] != 1 ? p.heads : 1;
    p.mask_size[1] = p.mask_size[1] != 1 ? p.heads : 1;
    p.table_heads = p.table_heads != 1 ? p.heads : p.table_heads;
    if (agi_has(&p, AG_ALIBI | AG_SLOPES)) {
        p.flags = (p.flags & ~(uint32_t)AG_ALIBI) | AG_SLOPES;
        p.alibi_slopes += first * group;
    }
    p.aux_dtype = agi_mpi_wide(&p);
    return p;
}

static ag_status make_heads_plan(ag_mpi_plan *plan)
{
    int64_t first, count;
    agi_mpi_kv_heads(&plan->cut, plan->comm.t.rank, &first, &count);
    if (count == 0) {
        return AG_OK;
    }
    const ag_problem p = heads_problem(&plan->cut, first, count);
    return make(&plan->heads, plan, &p);
}

static ag_status start_progress(ag_mpi_plan *plan, ag_mpi_progress progress)
{
    agi_mpi_comm *c = &plan->comm;
    if (progress == AG_MPI_PROGRESS_THREAD && c->t.threads < AGI_MPI_SERIALIZED) {
        return agi_mpi_fail(AG_UNSUPPORTED, "options.progress",
                            "options: progress is a thread, but MPI was initialized for one: ask for "
                            "MPI_THREAD_SERIALIZED");
    }
    const bool thread = progress == AG_MPI_PROGRESS_THREAD ||
                        (progress == AG_MPI_PROGRESS_AUTO && c->t.threads == AGI_MPI_ANY_THREAD);
    const bool needed = thread && c->t.size > 1;
    return needed && !agi_mpi_start_thread(c)
               ? agi_mpi_fail(AG_NO_MEMORY, "", "no thread to move messages on: the system has no more")
               : AG_OK;
}

/* ---- Ways ---- */

/* The cheapest way that is allowed and keeps all ranks at work. One rank sends nothing anyway, and all-to-all is one
 * call on the whole problem. */
static ag_mpi_way cheapest(const agi_mpi_cut *cut, agi_map map, const double rows[2])
{
    static const ag_mpi_way ways[] = {AG_MPI_RING_KEYS, AG_MPI_RING_QUERIES, AG_MPI_ALL_TO_ALL};
    ag_mpi_way best = AG_MPI_RING_KEYS;
    const char *why;
    if (cut->ranks == 1) {
        return AG_MPI_ALL_TO_ALL;
    }
    for (int n = 1; n < 3; n++) {
        const bool balanced = ways[n] != AG_MPI_ALL_TO_ALL || cut->p->kv_heads % cut->ranks == 0;
        if (balanced && agi_mpi_way_allowed(cut, ways[n], &why) &&
            agi_mpi_bytes_of_way(cut, map, ways[n], rows) < agi_mpi_bytes_of_way(cut, map, best, rows)) {
            best = ways[n];
        }
    }
    return best;
}

static ag_status choose_ways(ag_mpi_plan *plan, ag_mpi_way way)
{
    const char *why = "";
    double rows[2] = {0, 0};
    if (way != AG_MPI_AUTO && !agi_mpi_way_allowed(&plan->cut, way, &why)) {
        return agi_mpi_fail(AG_UNSUPPORTED, "options.way", "options: way is %d: %s", (int)way, why);
    }
    for (agi_mpi_side side = AGI_MPI_QUERIES; side <= AGI_MPI_KEYS && way == AG_MPI_AUTO; side++) {
        rows[side] = agi_mpi_travelling_rows(&plan->cut, side);
    }
    for (agi_map map = AGI_FORWARD; map < AGI_N_MAPS; map++) {
        const bool queries = map == AGI_VJP || map == AGI_VJP_JVP;
        plan->way[map] = way == AG_MPI_AUTO                       ? cheapest(&plan->cut, map, rows)
                         : way == AG_MPI_RING_QUERIES && !queries ? AG_MPI_RING_KEYS
                                                                  : way;
    }
    return AG_OK;
}

/* ---- Creation ---- */

/* What this rank can find wrong by itself. */
static ag_status build(ag_mpi_plan *plan, const ag_problem *problem, const ag_mpi_options *options)
{
    ag_mpi_options o;
    ag_status status = read_options(&o, &plan->options, options);
    if (status == AG_OK) {
        plan->comm.timeout_s = o.timeout_s > 0 ? o.timeout_s : AGI_MPI_DEFAULT_TIMEOUT_S;
        status = plan->options.backend == AG_BACKEND_CUDA ? refuse_device("options.plan.backend")
                                                          : make(&plan->whole, plan, problem);
    }
    if (status == AG_OK &&
        runs_on_device(plan->whole)) { /* AG_BACKEND_AUTO goes there by the environment only */
        status = refuse_device("ATTNGRAD_BACKEND");
    }
    if (status != AG_OK) {
        return status;
    }
    plan->cut = (agi_mpi_cut){ag_plan_problem(plan->whole), plan->comm.t.size, o.layout};
    const ag_problem shard = agi_mpi_shard_problem(&plan->cut, plan->comm.t.rank);
    status = make(&plan->shard, plan, &shard);
    status = status == AG_OK ? make_pair_plans(plan) : status;
    status = status == AG_OK ? make_heads_plan(plan) : status;
    status = status == AG_OK ? choose_ways(plan, o.way) : status;
    status = status == AG_OK ? agi_mpi_size_workspaces(plan) : status;
    return status == AG_OK ? start_progress(plan, o.progress) : status;
}

/* The fields of the problem that must be equal: all but its arrays, which are compared by their hashes. */
#define FIELD(member)                                                                                        \
    {                                                                                                        \
#member, offsetof(ag_problem, member), sizeof(((ag_problem *)0)->member)                             \
    }
static const struct {
    const char *name;
    size_t offset, size;
} fields[] = {
    FIELD(flags),       FIELD(dtype),     FIELD(out_dtype),    FIELD(grad_dtype),    FIELD(aux_dtype),
    FIELD(align),       FIELD(batch),     FIELD(heads),        FIELD(kv_heads),      FIELD(q_len),
    FIELD(kv_len),      FIELD(dim_qk),    FIELD(dim_v),        FIELD(q_total),       FIELD(kv_total),
    FIELD(scale),       FIELD(softcap),   FIELD(dropout),      FIELD(window_left),   FIELD(window_right),
    FIELD(bias_size),   FIELD(mask_size), FIELD(table_radius), FIELD(table_buckets), FIELD(table_heads),
    FIELD(head_offset),
};
enum { FIELDS = sizeof fields / sizeof fields[0], OTHERS = 6 };

static void add_values(agi_mpi_record *record, const ag_mpi_plan *plan, const char *names[FIELDS + OTHERS])
{
    const ag_problem *p = plan->cut.p;
    const agi_mpi_comm *c = &plan->comm;
    for (int n = 0; n < FIELDS; n++) {
        names[n] = fields[n].name;
        agi_mpi_record_add(
            record, c,
            p == NULL ? 0 : agi_mpi_hash(AGI_MPI_HASH, (const char *)p + fields[n].offset, fields[n].size));
    }
    const size_t buckets = p == NULL || p->buckets == NULL ? 0 : (size_t)(2 * p->table_radius + 1) * 4;
    const size_t slopes = p == NULL || p->alibi_slopes == NULL ? 0 : (size_t)p->heads * sizeof(double);
    names[FIELDS] = "buckets";
    agi_mpi_record_add(record, c, agi_mpi_hash(AGI_MPI_HASH, buckets > 0 ? p->buckets : NULL, buckets));
    names[FIELDS + 1] = "alibi_slopes";
    agi_mpi_record_add(record, c, agi_mpi_hash(AGI_MPI_HASH, slopes > 0 ? p->alibi_slopes : NULL, slopes));
    names[FIELDS + 2] = "options.layout";
    agi_mpi_record_add(record, c, (uint64_t)plan->cut.layout);
    names[FIELDS + 3] = "options.way";
    agi_mpi_record_add(record, c, agi_mpi_hash(AGI_MPI_HASH, plan->way, sizeof plan->way));
    names[FIELDS + 4] = "options.plan.flags";
    agi_mpi_record_add(record, c, plan->options.flags);
    names[FIELDS + 5] = "options.timeout_s"; /* by it a rank that waits knows how often others give a sign */
    agi_mpi_record_add(record, c, agi_mpi_hash(AGI_MPI_HASH, &c->timeout_s, sizeof c->timeout_s));
}

static ag_status agree(ag_mpi_plan *plan, ag_status status)
{
    agi_mpi_record record;
    const char *names[FIELDS + OTHERS];
    agi_mpi_record_begin(&record, &plan->comm, status);
    add_values(&record, plan, names);
    return agi_mpi_agree(&plan->comm, &record, names, AG_INVALID_PROBLEM);
}

static void release(ag_mpi_plan *plan)
{
    for (int n = 0; n < plan->n_pairs; n++) {
        ag_plan_destroy(plan->pairs[n].plan);
    }
    ag_plan_destroy(plan->heads);
    ag_plan_destroy(plan->shard);
    ag_plan_destroy(plan->whole);
    agi_mpi_comm_finish(&plan->comm);
    free(plan);
}

ag_status agi_mpi_plan_create(ag_mpi_plan **to, const ag_problem *problem, const agi_mpi_transport *t,
                              const ag_mpi_options *options)
{
    ag_mpi_plan *plan = calloc(1, sizeof *plan);
    *to = NULL;
    if (plan == NULL) {
        t->finish(t->ctx, true);
    }
    if (plan == NULL || !agi_mpi_comm_begin(&plan->comm, t)) {
        free(plan);
        return agi_mpi_fail(AG_NO_MEMORY, "", "rank %d: no memory for the plan", (int)t->rank);
    }
    plan->comm.timeout_s = AGI_MPI_DEFAULT_TIMEOUT_S;
    plan->traffic.struct_size = sizeof plan->traffic;
    const ag_status status = agree(plan, build(plan, problem, options));
    if (status != AG_OK) {
        release(plan);
        return status;
    }
    *to = plan;
    return AG_OK;
}

void ag_mpi_plan_destroy(ag_mpi_plan *plan)
{
    if (plan != NULL) {
        release(plan);
    }
}
