/* A transport whose ranks are threads of one process: sends copy nothing; the receiver copies from the sender's memory
 * when both have come. So ThreadSanitizer sees every byte that moves between ranks. */
#ifndef AG_TEST_THREAD_RANKS_H
#define AG_TEST_THREAD_RANKS_H

#include "mpi/transport.h"

#include <pthread.h>

enum { THREAD_RANKS = 8 };

struct thread_world;

struct thread_rank {
    struct thread_world *world;
    int32_t rank;
    int32_t silent_after; /* tests: after this many sends it sends nothing more; -1: never */
};

/* Runs task(rank, transport, arg) on as many threads as ranks, and waits for them. */
typedef void (*rank_task)(const agi_mpi_transport *t, void *arg);
void on_thread_ranks(int32_t ranks, rank_task task, void *arg);

/* The next worlds: this rank falls silent after so many sends; -1: none. */
void thread_ranks_silence(int32_t rank, int32_t after);

#endif
