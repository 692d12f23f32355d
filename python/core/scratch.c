/* Workspace of the maps. A thread keeps the workspace of its largest call, so that a small call does not wait
 * for new pages from the system; a workspace of more than MAX_KEPT bytes is freed after its call. What is kept is
 * freed when the thread ends. */
#include "core.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_KEPT = 32 << 20 };

typedef struct {
    size_t bytes;
    void *memory;
} kept_memory;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int have_key;

static void free_kept(void *arg)
{
    kept_memory *kept = arg;
    free(kept->memory);
    free(kept);
}

static void make_key(void)
{
    have_key = pthread_key_create(&key, free_kept) == 0;
}

static kept_memory *kept_of_thread(void)
{
    pthread_once(&once, make_key);
    kept_memory *kept = have_key ? pthread_getspecific(key) : NULL;
    if (kept == NULL && have_key) {
        kept = calloc(1, sizeof *kept);
        if (kept != NULL && pthread_setspecific(key, kept) != 0) {
            free(kept);
            kept = NULL;
        }
    }
    return kept;
}

core_scratch core_scratch_take(size_t bytes)
{
    kept_memory *kept = bytes <= MAX_KEPT ? kept_of_thread() : NULL;
    if (kept == NULL) {
        return (core_scratch){malloc(bytes > 0 ? bytes : 1), 0};
    }
    if (kept->memory == NULL || kept->bytes < bytes) {
        free(kept->memory);
        kept->memory = malloc(bytes > 0 ? bytes : 1);
        kept->bytes = bytes;
    }
    return (core_scratch){kept->memory, 1};
}

void core_scratch_end(core_scratch scratch)
{
    if (!scratch.kept) {
        free(scratch.memory);
    }
}
