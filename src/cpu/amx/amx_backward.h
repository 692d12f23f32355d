/* vjp and vjp_jvp on the AMX unit: see amx_backward.c. For float32's instance of the maps alone. */
#ifndef AGI_CPU_AMX_BACKWARD_H
#define AGI_CPU_AMX_BACKWARD_H

#include "cpu/drivers/backward.h"

void agi_amx_backward_lay_out(agi_amx_backward_scratch *s, agi_arena *arena, const ag_plan *plan,
                              agi_map map);

/* A pass begins: none of its span's keys is there. */
void agi_amx_begin_pass(agi_backward_scratch *s, int64_t span0);

/* The operands of the tile whose statistics are loaded, and those of keys from .. to - 1 of the sequence. The tile that
 * follows begins with query `after`. */
void agi_amx_begin_tile(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t after);

/* The tile's dQ, scaled, to rows i0 .. i0 + ni - 1 of the caller's. */
void agi_amx_put_queries(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                         bool accumulate);

/* Sums of n keys, from the first of a tile on, times factor, to rows first .. first + n - 1 of the caller's. */
void agi_amx_put_keys(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width);

/* Added to D and tD: those of rows i .. i + n - 1 of the sequence, at most SOME_ROWS, without dL and tdL. */
void agi_amx_row_products(const agi_backward_scratch *s, const agi_head *x, int64_t i, int64_t n, double *D,
                          double *tD);

/* The tile against one block of keys; of `keys`, j0, nj, dK and dV are given. */
void agi_amx_backward_block(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                            const agi_key_tile *keys);

#endif
