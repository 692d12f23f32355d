/* The prefetches of the row ops on AMX: during a block of keys the next block, during the last one the next item. */
#include "cpu/amx/amx_rows.h"

static void prefetch_keys(agi_prefetch_rows *to, const agi_head *x, int64_t first, int64_t n)
{
    const ag_args *a = &x->call->a;
    agi_amx_prefetch_rows(to, agi_key_slice(x, &a->k, x->Dk), first, n);
    agi_amx_prefetch_rows(to, agi_key_slice(x, &a->v, x->Dv), first, n);
    if (x->call->map == AGI_JVP) {
        agi_amx_prefetch_rows(to, agi_key_slice(x, &a->tk, x->Dk), first, n);
        agi_amx_prefetch_rows(to, agi_key_slice(x, &a->tv, x->Dv), first, n);
    }
}

/* The queries of the next item and, if it has other keys, its first block of keys. */
static void prefetch_item(agi_amx_row_scratch *s, const agi_head *x, const agi_head *next, int64_t i0,
                          int64_t n)
{
    const ag_args *a = &x->call->a;
    agi_amx_prefetch_rows(&s->next_item, agi_query_slice(next, &a->q, AG_BF16, next->Dk), i0, n);
    if (next->seq.view != x->seq.view || next->seq.k0 != x->seq.k0 || next->hk != x->hk) {
        int64_t from, to;
        REAL(agi_key_range)(next, i0, n, &from, &to);
        prefetch_keys(&s->next_item, next, from,
                      agi_min(to, from / BLOCK_KEYS * BLOCK_KEYS + BLOCK_KEYS) - from);
    }
}

void agi_amx_prefetch_next_item(const agi_row_job *w, agi_amx_row_scratch *s, const agi_head *x, int64_t item)
{
    const agi_row_schedule *schedule = &w->cpu->rows;
    s->next_item = (agi_prefetch_rows){.n = 0};
    if (schedule->kv_splits == 1 && item + 1 < schedule->items && x->call->map == AGI_FORWARD) {
        agi_head next;
        const int64_t i0 = REAL(agi_row_begin_item)(w->call, schedule, item + 1, &next),
                      n = agi_min(schedule->rows, next.seq.n_q - i0);
        if (n > 0) {
            prefetch_item(s, x, &next, i0, n);
        }
    }
}

void agi_amx_begin_row_prefetch(agi_amx_row_scratch *s, const agi_head *x, int64_t next, int64_t n,
                                int64_t groups)
{
    if (n > 0) {
        s->prefetch = (agi_prefetch_rows){.n = 0};
        prefetch_keys(&s->prefetch, x, next, n);
        agi_prefetch_rows_begin(&s->prefetch, groups);
    } else { /* causal: only about half of the last block's groups are visible */
        s->prefetch = s->next_item;
        agi_prefetch_rows_begin(&s->prefetch, (groups + 1) / 2);
    }
}
