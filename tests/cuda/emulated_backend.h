/* A backend that runs the kernels of src/cuda on the processor: see emulated_backend.c. */
#ifndef ATTNGRAD_TEST_EMULATED_BACKEND_H
#define ATTNGRAD_TEST_EMULATED_BACKEND_H

#include "core/backend.h"

extern const agi_backend agi_emulated_backend;

/* The limit of shared memory and the number of multiprocessors that the launches are made for. */
extern int32_t emulated_shared_limit, emulated_processors;

/* Does the table sm90 run, where it has a kernel? The environment's EMULATED_HOPPER turns it on. */
extern bool emulated_hopper;

/* Blocks of a ring of vjp in one kernel at most; 64 as on a GPU. */
extern int32_t emulated_ring_most;

#endif
