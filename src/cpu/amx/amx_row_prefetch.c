/* The prefetches of the row ops on AMX: the next block of keys, or after the last block, the next item. */
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
static void prefetch_item(agi_amx_row_scratch *s, const agi_head *x, const agi_head *y, int64_t i0, int64_t n)
{
    const ag_args *a = &x->call->a;
    agi_amx_prefetch_rows(&s->after, agi_query_slice(y, &a->q, AG_BF16, y->Dk), i0, n);
    if (y->seq.view != x->seq.view || y->seq.k0 != x->seq.k0 || y->hk != x->hk) {
        int64_t from, to;
        REAL(agi_key_range)(y, i0, n, &from, &to);
        prefetch_keys(&s->after, y, from, agi_min(to, from / BLOCK_KEYS * BLOCK_KEYS + BLOCK_KEYS) - from);
    }
}

void agi_amx_prefetch_next_item(const agi_row_job *w, agi_amx_row_scratch *s, const agi_head *x, int64_t item)
{
    const agi_row_schedule *schedule = &w->cpu->rows;
    s->after = (agi_prefetch_rows){.n = 0};
    if (schedule->kv_splits == 1 && item + 1 < schedule->items && x->call->map == AGI_FORWARD) {
        agi_head y;
        const int64_t i0 = REAL(agi_row_begin_item)(w, item + 1, &y),
                      n = agi_min(schedule->rows, y.seq.n_q - i0);
        if (n > 0) {
            prefetch_item(s, x, &y, i0, n);
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
    } else { /* if causal, the last block has about half of the groups */
        s->prefetch = s->after;
        agi_prefetch_rows_begin(&s->prefetch, (groups + 1) / 2);
    }
}
