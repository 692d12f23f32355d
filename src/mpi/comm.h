/* Messages of one plan: slots, waiting with a timeout, and what all ranks agree on. After a failure the communicator
 * is of no more use: every function then fails at once. */
#ifndef AGI_MPI_COMM_H
#define AGI_MPI_COMM_H

#include <pthread.h>

#include "attngrad.h"
#include "mpi/transport.h"

/* Tags, one per purpose. Between two ranks, messages of one purpose are sent and received in the same order. */
enum agi_mpi_tag {
    AGI_MPI_TAG_AGREE = 1,
    AGI_MPI_TAG_GUESTS,   /* rows that go round the ring */
    AGI_MPI_TAG_RETURNED, /* partial sums of their gradients */
    AGI_MPI_TAG_EXCHANGE, /* all-to-all */
    AGI_MPI_TAG_SUM,
    AGI_MPI_TAG_SIGN /* that the sender computes */
};

enum { AGI_MPI_MAX_VALUES = 48 };

/* A value that must be the same on all ranks, as the smallest and the largest that a rank has. */
typedef struct {
    uint64_t min, max;
    int32_t min_rank, max_rank; /* the lowest ranks that have them */
} agi_mpi_spread;

/* What each rank brings: its status with the message, and values with names. */
typedef struct {
    int32_t status, rank; /* of the lowest rank that failed */
    char field[64];
    char message[192];
    int32_t count;
    int32_t reserved;
    agi_mpi_spread values[AGI_MPI_MAX_VALUES];
} agi_mpi_record;

typedef struct {
    agi_mpi_transport t;
    int32_t slots;
    double timeout_s;

    /* A thread of the plan may move messages on: what it shares with the thread that calls the maps. */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    bool has_thread;
    bool active, quit;    /* a call runs; the thread is to end */
    unsigned char *state; /* [slots]: see comm.c */
    int32_t under_way;    /* messages: without any, the thread sleeps */
    double last_progress; /* time at which a message was last complete, or another rank gave a sign */
    double last_sign;     /* time at which this rank last gave one */
    ag_status failed;     /* AG_OK: usable */
    char reason[128];

    /* Of the call that runs. */
    const ag_exec *user; /* the caller's; NULL: none */
    bool cancelled;      /* the caller's poll has asked to end the call */
    int64_t bytes_sent;
    double seconds_waiting;

    /* Of an agreement: after a failure their messages may still be under way. */
    agi_mpi_record sent, received;
} agi_mpi_comm;

/* Begins a communicator on a transport, which then belongs to it, and ends it. False: no memory. */
bool agi_mpi_comm_begin(agi_mpi_comm *c, const agi_mpi_transport *t);
void agi_mpi_comm_finish(agi_mpi_comm *c);

/* Starts the thread that moves messages on. False: there is none. */
bool agi_mpi_start_thread(agi_mpi_comm *c);

/* A call begins and ends: between them the thread works. */
void agi_mpi_call_begin(agi_mpi_comm *c);
void agi_mpi_call_end(agi_mpi_comm *c);

double agi_mpi_seconds(void); /* a monotonic clock */

/* The slot of a message of 0 bytes, which is not sent, and of one that could not be started. */
enum { AGI_MPI_NO_SLOT = -1 };

/* Both return a slot, which must be waited for. */
int32_t agi_mpi_send(agi_mpi_comm *c, int32_t to, int32_t tag, const void *data, size_t bytes);
int32_t agi_mpi_receive(agi_mpi_comm *c, int32_t from, int32_t tag, void *data, size_t bytes);

/* Waits until the message of the slot is complete and frees the slot. */
ag_status agi_mpi_wait(agi_mpi_comm *c, int32_t slot);

/* Waits for all messages that are under way. */
ag_status agi_mpi_wait_all(agi_mpi_comm *c);

/* The poll of the maps inside: moves all messages on, tells waiting ranks that this one computes, and asks the caller's
 * poll. */
int32_t agi_mpi_poll(void *comm);

/* ---- Agreement ---- */

/* Begins a record with this rank's status; if that is not AG_OK, with the stored message. */
void agi_mpi_record_begin(agi_mpi_record *record, const agi_mpi_comm *c, ag_status status);
void agi_mpi_record_add(agi_mpi_record *record, const agi_mpi_comm *c, uint64_t value);

/* All ranks return the same status: that of the lowest rank that failed, or `mismatch` if a value differs; names[n] is
 * the field of value n. The message names the rank. */
ag_status agi_mpi_agree(agi_mpi_comm *c, agi_mpi_record *record, const char *const *names,
                        ag_status mismatch);

/* FNV-1a of some bytes, to compare arrays between ranks; start with AGI_MPI_HASH. */
#define AGI_MPI_HASH UINT64_C(0xcbf29ce484222325)
uint64_t agi_mpi_hash(uint64_t hash, const void *data, size_t bytes);

/* Adds up x[count] over all ranks, in an order that depends on their number alone; every rank gets the sum. room:
 * as x. dtype: AG_F32 or AG_F64. */
ag_status agi_mpi_sum(agi_mpi_comm *c, void *x, void *room, int64_t count, ag_dtype dtype);

#endif
