/* How messages travel: a table that the rest of this folder runs on, with an implementation on MPI (transport_mpi.c)
 * and one for tests, in which the ranks are threads of one process. */
#ifndef AGI_MPI_TRANSPORT_H
#define AGI_MPI_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message under way is named by a slot, from 0 to slots - 1, which the caller chooses: a free one. Messages between
 * two ranks with the same tag arrive in the order in which they were sent. */
typedef struct agi_mpi_transport {
    void *ctx;
    int32_t rank, size;

    /* From which threads the functions may be called. Never from two at once. */
    enum { AGI_MPI_ONE_THREAD, AGI_MPI_SERIALIZED, AGI_MPI_ANY_THREAD } threads;

    /* Makes room for this many slots; called once, before the first message. False: no memory. */
    bool (*begin)(void *ctx, int32_t slots);

    /* Ends all of it; collective, unless failed: then a message may still be under way. */
    void (*finish)(void *ctx, bool failed);

    /* Starts a message. The memory belongs to the transport until test has returned 1. False: it failed. */
    bool (*send)(void *ctx, int32_t slot, int32_t to, int32_t tag, const void *data, size_t bytes);
    bool (*receive)(void *ctx, int32_t slot, int32_t from, int32_t tag, void *data, size_t bytes);

    /* Moves all messages on. Returns 1 if that of the slot is complete, 0 if not yet, -1 if it failed. */
    int (*test)(void *ctx, int32_t slot);

    /* Tells all other ranks that this one computes, and asks whether one has done so since the last question. A sign
     * may get lost: messages that fail are found by test. */
    void (*sign)(void *ctx);
    bool (*has_sign)(void *ctx);

    /* Gives up the message of a slot after a failure. MPI may still read its memory, or write to it if the message has
     * begun to arrive: it must stay allocated. */
    void (*abandon)(void *ctx, int32_t slot);

    /* Why the last function failed. */
    const char *(*reason)(void *ctx);
} agi_mpi_transport;

#endif
