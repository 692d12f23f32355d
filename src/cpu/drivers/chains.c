/* Which span of the chains a thread begins: see backward.h. A thread stays with one chain, so that the sums of dQ stay
 * in its caches: it runs the next span of that chain's group or, if all of them have begun, the first span of a new
 * group in the same memory. It goes to another chain only if all groups have begun and its own has no span left. So
 * threads wait for each other only while there are more of them than groups at work. No bit depends on this order. */
#include "cpu/drivers/backward.h"

int64_t REAL(agi_chains_of)(const ag_plan *plan, const agi_backward_schedule *schedule)
{
    return schedule->chained ? agi_min(schedule->max_chains, plan->threads) : 0;
}

void REAL(agi_begin_chains)(agi_backward_job *w)
{
    const ag_plan *plan = w->call->plan;
    w->groups_begun = 0;
    for (int64_t c = 0; c < REAL(agi_chains_of)(plan, w->schedule); c++) {
        w->shared.chains[c] = (agi_chain){.group = -1, .spans_begun = w->schedule->passes};
    }
    for (int64_t slot = 0; slot < plan->threads; slot++) {
        w->shared.scratch[slot].chain = -1;
    }
}

static int64_t spans_left(const agi_backward_job *w, int64_t chain)
{
    return w->schedule->passes - w->shared.chains[chain].spans_begun;
}

/* A chain that can take a new group, if possible one that has had none; -1 if there is none. */
static int64_t free_chain(const agi_backward_job *w)
{
    int64_t best = -1;
    for (int64_t c = 0; c < REAL(agi_chains_of)(w->call->plan, w->schedule); c++) {
        if (spans_left(w, c) == 0 && (best < 0 || w->shared.chains[c].group < 0)) {
            best = c;
        }
    }
    return best;
}

static int64_t chain_with_most_left(const agi_backward_job *w)
{
    int64_t best = 0;
    for (int64_t c = 1; c < REAL(agi_chains_of)(w->call->plan, w->schedule); c++) {
        best = spans_left(w, c) > spans_left(w, best) ? c : best;
    }
    return best;
}

/* The chain that a thread works at next; own: the one that it has worked at, -1 if none. */
static int64_t choose_chain(const agi_backward_job *w, int64_t own)
{
    const bool new_groups = w->groups_begun < w->schedule->groups;
    if (own >= 0 && (new_groups || spans_left(w, own) > 0)) {
        return own;
    }
    const int64_t unused = new_groups ? free_chain(w) : -1;
    return unused >= 0 ? unused : chain_with_most_left(w);
}

static void begin_group(agi_backward_job *w, agi_chain *chain)
{
    w->shared.group_before[w->groups_begun] = chain->group;
    *chain = (agi_chain){.group = w->groups_begun++, .spans_begun = 0};
}

agi_chain_span REAL(agi_begin_span)(agi_backward_job *w, agi_backward_scratch *s)
{
    pthread_mutex_lock(&w->chains_mutex);
    s->chain = choose_chain(w, s->chain);
    agi_chain *const chain = &w->shared.chains[s->chain];
    if (spans_left(w, s->chain) == 0) {
        begin_group(w, chain);
    }
    const agi_chain_span span = {s->chain, chain->group, chain->spans_begun++};
    pthread_mutex_unlock(&w->chains_mutex);
    return span;
}
