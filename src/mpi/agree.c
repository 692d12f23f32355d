/* What all ranks agree on, and sums over the ranks. Both send each rank a logarithmic number of messages. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "mpi/comm.h"
#include "mpi/message.h"
#include "mpi/public.h"

uint64_t agi_mpi_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *x = data;
    for (size_t n = 0; n < bytes; n++) {
        hash = (hash ^ x[n]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

void agi_mpi_record_begin(agi_mpi_record *record, const agi_mpi_comm *c, ag_status status)
{
    memset(record, 0, sizeof *record);
    record->status = status;
    record->rank = c->t.rank;
    if (status != AG_OK) {
        snprintf(record->field, sizeof record->field, "%s", ag_mpi_last_field());
        snprintf(record->message, sizeof record->message, "%s", ag_mpi_last_message());
    }
}

void agi_mpi_record_add(agi_mpi_record *record, const agi_mpi_comm *c, uint64_t value)
{
    record->values[record->count++] = (agi_mpi_spread){value, value, c->t.rank, c->t.rank};
}

static void widen(agi_mpi_spread *to, const agi_mpi_spread *from)
{
    if (from->min < to->min || (from->min == to->min && from->min_rank < to->min_rank)) {
        to->min = from->min;
        to->min_rank = from->min_rank;
    }
    if (from->max > to->max || (from->max == to->max && from->max_rank < to->max_rank)) {
        to->max = from->max;
        to->max_rank = from->max_rank;
    }
}

/* Combining twice what is already combined changes nothing, so records may arrive on several paths. */
static void combine(agi_mpi_record *to, const agi_mpi_record *from)
{
    if (from->status != AG_OK && (to->status == AG_OK || from->rank < to->rank)) {
        to->status = from->status;
        to->rank = from->rank;
        memcpy(to->field, from->field, sizeof to->field);
        memcpy(to->message, from->message, sizeof to->message);
    }
    for (int32_t n = 0; n < to->count; n++) {
        widen(&to->values[n], &from->values[n]);
    }
}

/* In round n each rank sends to the one 2^n after it all that it knows. */
static ag_status spread(agi_mpi_comm *c, agi_mpi_record *record)
{
    const size_t bytes = offsetof(agi_mpi_record, values) + (size_t)record->count * sizeof record->values[0];
    ag_status status = AG_OK;
    for (int32_t hop = 1; hop < c->t.size && status == AG_OK; hop *= 2) {
        c->sent = *record;
        const int32_t from = (c->t.rank - hop + c->t.size) % c->t.size, to = (c->t.rank + hop) % c->t.size;
        const int32_t in = agi_mpi_receive(c, from, AGI_MPI_TAG_AGREE, &c->received, bytes);
        const int32_t out = agi_mpi_send(c, to, AGI_MPI_TAG_AGREE, &c->sent, bytes);
        status = agi_mpi_wait(c, in);
        status = status == AG_OK ? agi_mpi_wait(c, out) : status;
        if (status == AG_OK) {
            combine(record, &c->received);
        }
    }
    return status;
}

ag_status agi_mpi_agree(agi_mpi_comm *c, agi_mpi_record *record, const char *const *names, ag_status mismatch)
{
    const ag_status status = spread(c, record);
    if (status != AG_OK) {
        return status;
    }
    if (record->status != AG_OK) {
        return agi_mpi_fail(record->status, record->field, "rank %d: %s", (int)record->rank, record->message);
    }
    for (int32_t n = 0; n < record->count; n++) {
        const agi_mpi_spread *x = &record->values[n];
        if (x->min != x->max) {
            const int32_t low = x->min_rank < x->max_rank ? x->min_rank : x->max_rank;
            const int32_t high = x->min_rank < x->max_rank ? x->max_rank : x->min_rank;
            return agi_mpi_fail(mismatch, names[n], "rank %d: %s differs from that of rank %d", (int)high,
                                names[n], (int)low);
        }
    }
    return AG_OK;
}

/* ---- Sums ---- */

static void add(void *x, const void *y, int64_t count, ag_dtype dtype)
{
    for (int64_t n = 0; n < count; n++) {
        if (dtype == AG_F64) {
            ((double *)x)[n] += ((const double *)y)[n];
        } else {
            ((float *)x)[n] += ((const float *)y)[n];
        }
    }
}

/* The highest power of two that divides the rank; for rank 0 one that is not below the number of ranks. */
static int32_t reach(const agi_mpi_comm *c)
{
    int32_t hop = 1;
    while (hop < c->t.size && c->t.rank % (2 * hop) == 0) {
        hop *= 2;
    }
    return hop;
}

ag_status agi_mpi_sum(agi_mpi_comm *c, void *x, void *room, int64_t count, ag_dtype dtype)
{
    const size_t bytes = (size_t)count * ag_dtype_size(dtype);
    const int32_t rank = c->t.rank, size = c->t.size, end = reach(c);
    ag_status status = AG_OK;
    for (int32_t hop = 1; hop < end && status == AG_OK; hop *= 2) { /* the subtrees of this rank */
        if (rank + hop < size) {
            status = agi_mpi_wait(c, agi_mpi_receive(c, rank + hop, AGI_MPI_TAG_SUM, room, bytes));
            if (status == AG_OK) {
                add(x, room, count, dtype);
            }
        }
    }
    if (rank > 0 && status == AG_OK) { /* to the parent, and the sum back */
        status = agi_mpi_wait(c, agi_mpi_send(c, rank - end, AGI_MPI_TAG_SUM, x, bytes));
        status = status == AG_OK ? agi_mpi_wait(c, agi_mpi_receive(c, rank - end, AGI_MPI_TAG_SUM, x, bytes))
                                 : status;
    }
    for (int32_t hop = end / 2; hop >= 1 && status == AG_OK; hop /= 2) {
        if (rank + hop < size) {
            status = agi_mpi_wait(c, agi_mpi_send(c, rank + hop, AGI_MPI_TAG_SUM, x, bytes));
        }
    }
    return status;
}
