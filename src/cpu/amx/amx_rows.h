/* Forward and jvp on the AMX unit: see amx_rowwise.c. For float32's instance of the maps alone. */
#ifndef AGI_CPU_AMX_ROWWISE_H
#define AGI_CPU_AMX_ROWWISE_H

#include "cpu/drivers/rows.h"

void agi_amx_row_lay_out(agi_amx_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map);

/* The item after this one is queries i0 .. i0 + n - 1 of head y; NULL: there is none. */
void agi_amx_expect_item(agi_amx_row_scratch *s, const agi_head *x, const agi_head *y, int64_t i0, int64_t n);

/* Panel q of an item: its operands, its sums at zero. */
void agi_amx_begin_panel(agi_amx_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t q);

void agi_amx_end_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel, int64_t q);

/* Its sums, as rows, into the panel's own. */
void agi_amx_turn_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel, int64_t q);

/* Or its O, times a factor for each row, straight to where it belongs. */
void agi_amx_put_panel(const agi_amx_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t q,
                       const double *factor);

/* All panels against keys j0 .. j0 + nj - 1; those up to end - 1 come next. */
void agi_amx_row_block(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels,
                       int64_t j0, int64_t nj, int64_t end);

#endif
