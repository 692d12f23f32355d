/* The transport on MPI, and the public function that takes a communicator: the only file that knows MPI. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "attngrad_mpi.h"
#include "mpi/message.h"
#include "mpi/plan.h"
#include "mpi/structs.h"

/* MPI counts in int, so that messages of more bytes than this are sent as pieces and a rest. Tests make it small. */
#ifndef AGI_MPI_MAX_BYTES
#define AGI_MPI_MAX_BYTES (1 << 30)
#endif
enum { MAX_BYTES = AGI_MPI_MAX_BYTES, PIECE = MAX_BYTES / 1024 > 0 ? MAX_BYTES / 1024 : 8, PARTS = 2 };

typedef struct {
    MPI_Request part[PARTS]; /* whole pieces, and the rest */
    bool is_receive;
} request;

typedef struct {
    MPI_Comm comm;
    MPI_Datatype piece;
    request *requests; /* [slots] */
    char reason[MPI_MAX_ERROR_STRING + 8];
} context;

static bool good(context *x, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (error == MPI_SUCCESS) {
        return true;
    }
    MPI_Error_string(error, text, &length);
    snprintf(x->reason, sizeof x->reason, "MPI: %s", text);
    return false;
}

static bool begin(void *ctx, int32_t slots)
{
    context *x = ctx;
    x->requests = malloc((size_t)slots * sizeof x->requests[0]);
    for (int32_t n = 0; n < slots && x->requests != NULL; n++) {
        x->requests[n] = (request){{MPI_REQUEST_NULL, MPI_REQUEST_NULL}, false};
    }
    return x->requests != NULL;
}

/* The counts of the two parts of a message. */
static void split(size_t bytes, int count[PARTS])
{
    const size_t pieces = bytes > MAX_BYTES ? bytes / PIECE : 0;
    count[0] = (int)pieces;
    count[1] = (int)(bytes - pieces * PIECE);
}

static bool send_message(void *ctx, int32_t slot, int32_t to, int32_t tag, const void *data, size_t bytes)
{
    context *x = ctx;
    request *r = &x->requests[slot];
    int count[PARTS], error = MPI_SUCCESS;
    split(bytes, count);
    r->is_receive = false;
    if (count[0] > 0) {
        error = MPI_Isend(data, count[0], x->piece, to, tag, x->comm, &r->part[0]);
    }
    if (count[1] > 0 && error == MPI_SUCCESS) {
        error = MPI_Isend((const char *)data + (size_t)count[0] * PIECE, count[1], MPI_BYTE, to, tag, x->comm,
                          &r->part[1]);
    }
    return good(x, error);
}

static bool receive_message(void *ctx, int32_t slot, int32_t from, int32_t tag, void *data, size_t bytes)
{
    context *x = ctx;
    request *r = &x->requests[slot];
    int count[PARTS], error = MPI_SUCCESS;
    split(bytes, count);
    r->is_receive = true;
    if (count[0] > 0) {
        error = MPI_Irecv(data, count[0], x->piece, from, tag, x->comm, &r->part[0]);
    }
    if (count[1] > 0 && error == MPI_SUCCESS) {
        error = MPI_Irecv((char *)data + (size_t)count[0] * PIECE, count[1], MPI_BYTE, from, tag, x->comm,
                          &r->part[1]);
    }
    return good(x, error);
}

static int test(void *ctx, int32_t slot)
{
    context *x = ctx;
    MPI_Status statuses[PARTS];
    int done = 0;
    const int error = MPI_Testall(PARTS, x->requests[slot].part, &done, statuses);
    return good(x, error) ? done != 0 : -1;
}

/* Without bytes there is no memory that must outlive the message, so the request can be freed at once. */
static void sign(void *ctx)
{
    context *x = ctx;
    int rank, size;
    MPI_Comm_rank(x->comm, &rank);
    MPI_Comm_size(x->comm, &size);
    for (int distance = 1; distance < size; distance++) {
        MPI_Request r;
        if (MPI_Isend(NULL, 0, MPI_BYTE, (rank + distance) % size, AGI_MPI_TAG_SIGN, x->comm, &r) ==
            MPI_SUCCESS) {
            MPI_Request_free(&r);
        }
    }
}

static bool has_sign(void *ctx)
{
    context *x = ctx;
    MPI_Status from;
    bool any = false;
    int found = 1;
    while (MPI_Iprobe(MPI_ANY_SOURCE, AGI_MPI_TAG_SIGN, x->comm, &found, &from) == MPI_SUCCESS && found) {
        if (MPI_Recv(NULL, 0, MPI_BYTE, from.MPI_SOURCE, AGI_MPI_TAG_SIGN, x->comm, MPI_STATUS_IGNORE) !=
            MPI_SUCCESS) {
            break;
        }
        any = true;
    }
    return any;
}

/* Cancelling a receive is local, and does nothing if its message has begun to arrive; a send is left to MPI. */
static void abandon(void *ctx, int32_t slot)
{
    context *x = ctx;
    for (int n = 0; n < PARTS && x->requests[slot].is_receive; n++) {
        MPI_Request *r = &x->requests[slot].part[n];
        int done = 0;
        if (*r != MPI_REQUEST_NULL && MPI_Cancel(r) == MPI_SUCCESS) {
            MPI_Test(r, &done, MPI_STATUS_IGNORE);
        }
    }
}

/* MPI wants every message received before the communicator is freed. So each rank sends all others a last sign, of one
 * byte, which no other sign from it can overtake. */
static void receive_last_signs(context *x)
{
    int rank, size;
    MPI_Comm_rank(x->comm, &rank);
    MPI_Comm_size(x->comm, &size);
    for (int distance = 1; distance < size; distance++) {
        const int to = (rank + distance) % size, from = (rank - distance + size) % size;
        const char last = 0;
        char byte;
        int bytes = 0;
        MPI_Request r;
        bool good = MPI_Isend(&last, 1, MPI_BYTE, to, AGI_MPI_TAG_SIGN, x->comm, &r) == MPI_SUCCESS;
        const bool sent = good;
        while (good && bytes == 0) {
            MPI_Status status;
            good = MPI_Recv(&byte, 1, MPI_BYTE, from, AGI_MPI_TAG_SIGN, x->comm, &status) == MPI_SUCCESS &&
                   MPI_Get_count(&status, MPI_BYTE, &bytes) == MPI_SUCCESS;
        }
        if (sent) {
            MPI_Wait(&r, MPI_STATUS_IGNORE);
        }
    }
}

static void finish(void *ctx, bool failed)
{
    context *x = ctx;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) {
        MPI_Type_free(&x->piece);
        if (!failed) { /* both are collective: not if other ranks may be gone */
            receive_last_signs(x);
            MPI_Comm_free(&x->comm);
        }
    }
    free(x->requests);
    free(x);
}

static const char *reason(void *ctx)
{
    return ((context *)ctx)->reason;
}

/* That of the options, if they can be read: the plan checks them later. */
static double timeout_of(const ag_mpi_options *options)
{
    ag_mpi_options o = AG_MPI_OPTIONS_INIT;
    const bool read =
        options != NULL && agi_mpi_read_struct(&o, sizeof o, options, "options", AG_INVALID_PROBLEM) == AG_OK;
    return read && o.timeout_s > 0 ? o.timeout_s : AGI_MPI_DEFAULT_TIMEOUT_S;
}

/* Duplicates comm. That needs all ranks: one that does not come must not hold up the others for ever. */
static ag_status duplicate(context *x, MPI_Comm comm, double timeout_s)
{
    const struct timespec moment = {0, 50000};
    const double start = agi_mpi_seconds();
    MPI_Request pending;
    int done = 0, error = MPI_Comm_idup(comm, &x->comm, &pending);
    while (error == MPI_SUCCESS && !done) {
        error = MPI_Test(&pending, &done, MPI_STATUS_IGNORE);
        if (!done && agi_mpi_seconds() - start > timeout_s) {
            return agi_mpi_fail(AG_TIMEOUT, "", "a rank has not created the plan for %g seconds (timeout_s)",
                                timeout_s);
        }
        nanosleep(&moment, NULL);
    }
    return good(x, error) ? AG_OK : agi_mpi_fail(AG_INVALID_ARGUMENT, "comm", "comm: %s", x->reason);
}

static ag_status open_context(context *x, MPI_Comm comm, double timeout_s)
{
    const ag_status status = duplicate(x, comm, timeout_s);
    if (status != AG_OK) {
        return status;
    }
    const bool made = good(x, MPI_Comm_set_errhandler(x->comm, MPI_ERRORS_RETURN)) &&
                      good(x, MPI_Type_contiguous(PIECE, MPI_BYTE, &x->piece)) &&
                      good(x, MPI_Type_commit(&x->piece));
    return made ? AG_OK : agi_mpi_fail(AG_INVALID_ARGUMENT, "comm", "comm: %s", x->reason);
}

static ag_status check_mpi(MPI_Comm comm)
{
    int initialized = 0, level = 0, between = 0;
    MPI_Initialized(&initialized);
    if (!initialized) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, "comm",
                            "comm: MPI is not initialized: call MPI_Init_thread first");
    }
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_FUNNELED) {
        return agi_mpi_fail(AG_UNSUPPORTED, "comm",
                            "comm: MPI was initialized for one thread only: ask for MPI_THREAD_FUNNELED");
    }
    if (comm != MPI_COMM_NULL) {
        MPI_Comm_test_inter(comm, &between);
    }
    return comm != MPI_COMM_NULL && !between ? AG_OK
                                             : agi_mpi_fail(AG_INVALID_ARGUMENT, "comm", "comm is %s",
                                                            between ? "between two groups" : "MPI_COMM_NULL");
}

ag_status ag_mpi_plan_create(ag_mpi_plan **plan, const ag_problem *problem, MPI_Comm comm,
                             const ag_mpi_options *options)
{
    int rank = 0, size = 1, level = MPI_THREAD_SINGLE;
    if (plan == NULL) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    *plan = NULL;
    ag_status status = check_mpi(comm);
    if (status != AG_OK) {
        return status;
    }
    context *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return agi_mpi_fail(AG_NO_MEMORY, "", "no memory for the plan");
    }
    status = open_context(x, comm, timeout_of(options));
    if (status != AG_OK) {
        if (status != AG_TIMEOUT) { /* else MPI still writes to it */
            free(x);
        }
        return status;
    }
    MPI_Comm_rank(x->comm, &rank);
    MPI_Comm_size(x->comm, &size);
    MPI_Query_thread(&level);
    const agi_mpi_transport t = {.ctx = x,
                                 .rank = rank,
                                 .size = size,
                                 .threads = level >= MPI_THREAD_MULTIPLE     ? AGI_MPI_ANY_THREAD
                                            : level >= MPI_THREAD_SERIALIZED ? AGI_MPI_SERIALIZED
                                                                             : AGI_MPI_ONE_THREAD,
                                 .begin = begin,
                                 .finish = finish,
                                 .send = send_message,
                                 .receive = receive_message,
                                 .test = test,
                                 .sign = sign,
                                 .has_sign = has_sign,
                                 .abandon = abandon,
                                 .reason = reason};
    return agi_mpi_plan_create(plan, problem, &t, options);
}
