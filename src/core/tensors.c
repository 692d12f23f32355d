/* The table of tensors and their shapes: see tensors.h. */
#include "core/tensors.h"

#include <string.h>

/* Short names, so that a row of the table fits on a line. */
#define NONE AGI_NONE
#define IN AGI_IN
#define IN_OPTIONAL AGI_IN_OPTIONAL
#define OUT AGI_OUT
#define OUT_OPTIONAL AGI_OUT_OPTIONAL
#define DTYPE AGI_DTYPE
#define OUT_DTYPE AGI_OUT_DTYPE
#define LOW_HALF AGI_LOW_HALF
#define GRAD_DTYPE AGI_GRAD_DTYPE
#define AUX_DTYPE AGI_AUX_DTYPE
#define FLOAT64 AGI_FLOAT64
#define BYTE AGI_BYTE
#define AT(member) #member, offsetof(ag_args, member)

const agi_tensor_info agi_tensors[AGI_N_TENSORS] = {
    {AT(q), AGI_SHAPE_Q, DTYPE, 0, 0, {IN, IN, IN, IN, IN}},
    {AT(k), AGI_SHAPE_K, DTYPE, 0, 0, {IN, IN, IN, IN, IN}},
    {AT(v), AGI_SHAPE_V, DTYPE, 0, 0, {IN, IN, IN, IN, IN}},
    {AT(bias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, 0, {IN, IN, IN, IN, IN}},
    {AT(mask), AGI_SHAPE_MASK, BYTE, AG_MASK, 0, {IN, IN, IN, IN, IN}},
    {AT(table), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, 0, {IN, IN, IN, IN, IN}},
    {AT(sink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, 0, {IN, IN, IN, IN, IN}},

    {AT(o), AGI_SHAPE_O, OUT_DTYPE, 0, AG_ACC_O, {OUT, IN, OUT_OPTIONAL, IN, IN}},
    {AT(lse), AGI_SHAPE_ROW, FLOAT64, 0, AG_ACC_LSE, {OUT_OPTIONAL, IN, OUT_OPTIONAL, IN, IN}},

    {AT(d_o), AGI_SHAPE_O, OUT_DTYPE, 0, 0, {NONE, IN, NONE, IN, NONE}},
    {AT(d_lse), AGI_SHAPE_ROW, FLOAT64, 0, 0, {NONE, IN_OPTIONAL, NONE, IN_OPTIONAL, NONE}},
    {AT(dq), AGI_SHAPE_Q, GRAD_DTYPE, 0, AG_ACC_DQ, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dk), AGI_SHAPE_K, GRAD_DTYPE, 0, AG_ACC_DK, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dv), AGI_SHAPE_V, GRAD_DTYPE, 0, AG_ACC_DV, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, AG_ACC_DBIAS, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dtable), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, AG_ACC_DTABLE, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dsink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, AG_ACC_DSINK, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},

    {AT(tq), AGI_SHAPE_Q, DTYPE, 0, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tk), AGI_SHAPE_K, DTYPE, 0, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tv), AGI_SHAPE_V, DTYPE, 0, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(ttable),
     AGI_SHAPE_TABLE,
     AUX_DTYPE,
     AG_TABLE,
     0,
     {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tsink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(to), AGI_SHAPE_O, OUT_DTYPE, 0, AG_ACC_TO, {NONE, NONE, OUT, IN, NONE}},
    {AT(mu), AGI_SHAPE_ROW, FLOAT64, 0, AG_ACC_MU, {NONE, NONE, OUT_OPTIONAL, IN, IN}},

    {AT(td_o), AGI_SHAPE_O, OUT_DTYPE, 0, 0, {NONE, NONE, NONE, IN_OPTIONAL, NONE}},
    {AT(td_lse), AGI_SHAPE_ROW, FLOAT64, 0, 0, {NONE, NONE, NONE, IN_OPTIONAL, NONE}},
    {AT(tdq), AGI_SHAPE_Q, GRAD_DTYPE, 0, AG_ACC_TDQ, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdk), AGI_SHAPE_K, GRAD_DTYPE, 0, AG_ACC_TDK, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdv), AGI_SHAPE_V, GRAD_DTYPE, 0, AG_ACC_TDV, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, AG_ACC_TDBIAS, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdtable),
     AGI_SHAPE_TABLE,
     AUX_DTYPE,
     AG_TABLE,
     AG_ACC_TDTABLE,
     {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdsink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, AG_ACC_TDSINK, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},

    {AT(o_low),
     AGI_SHAPE_O,
     LOW_HALF,
     0,
     AG_ACC_O,
     {OUT_OPTIONAL, IN_OPTIONAL, OUT_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(to_low), AGI_SHAPE_O, LOW_HALF, 0, AG_ACC_TO, {NONE, NONE, OUT_OPTIONAL, IN_OPTIONAL, NONE}},

    {AT(sq), AGI_SHAPE_Q, DTYPE, 0, 0, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(sk), AGI_SHAPE_K, DTYPE, 0, 0, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(sv), AGI_SHAPE_V, DTYPE, 0, 0, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(sbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, 0, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(stable), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, 0, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(ssink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, 0, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(smu), AGI_SHAPE_ROW, FLOAT64, 0, 0, {NONE, NONE, NONE, NONE, IN}},
    {AT(sto), AGI_SHAPE_O, OUT_DTYPE, 0, AG_ACC_STO, {NONE, NONE, NONE, NONE, OUT}},
    {AT(nu), AGI_SHAPE_ROW, FLOAT64, 0, AG_ACC_NU, {NONE, NONE, NONE, NONE, OUT_OPTIONAL}},
};

bool agi_is_output(agi_role role)
{
    return role == AGI_OUT || role == AGI_OUT_OPTIONAL;
}

agi_role agi_role_of(const agi_tensor_info *f, agi_map map, uint32_t flags)
{
    const bool given_o = map == AGI_JVP && (flags & AG_GIVEN_O) != 0;
    return f->role[given_o && agi_is_output(f->role[AGI_FORWARD]) ? AGI_VJP : map];
}

static void set_size(int64_t size[4], int64_t batch, int64_t heads, int64_t rows, int64_t channels)
{
    size[0] = batch;
    size[1] = heads;
    size[2] = rows;
    size[3] = channels;
}

void agi_shape_of(const ag_problem *p, agi_shape shape, int64_t size[4])
{
    const bool packed = agi_has(p, AG_PACKED);
    const int64_t B = packed ? 1 : p->batch;
    const int64_t q_rows = packed ? p->q_total : p->q_len;
    const int64_t k_rows = packed ? p->kv_total : p->kv_len;
    switch (shape) {
    case AGI_SHAPE_Q: set_size(size, B, p->heads, q_rows, p->dim_qk); break;
    case AGI_SHAPE_K: set_size(size, B, p->kv_heads, k_rows, p->dim_qk); break;
    case AGI_SHAPE_V: set_size(size, B, p->kv_heads, k_rows, p->dim_v); break;
    case AGI_SHAPE_O: set_size(size, B, p->heads, q_rows, p->dim_v); break;
    case AGI_SHAPE_ROW: set_size(size, B, p->heads, q_rows, 1); break;
    case AGI_SHAPE_BIAS: memcpy(size, p->bias_size, sizeof p->bias_size); break;
    case AGI_SHAPE_MASK: memcpy(size, p->mask_size, sizeof p->mask_size); break;
    case AGI_SHAPE_TABLE: set_size(size, 1, p->table_heads, 1, p->table_buckets); break;
    case AGI_SHAPE_SINK: set_size(size, 1, p->heads, 1, 1); break;
    }
}

bool agi_has_low_half(const ag_problem *p)
{
    return p->out_dtype == AG_F16 || p->out_dtype == AG_BF16;
}

size_t agi_element_size(const ag_problem *p, agi_element element)
{
    switch (element) {
    case AGI_DTYPE: return ag_dtype_size(p->dtype);
    case AGI_OUT_DTYPE:
    case AGI_LOW_HALF: return ag_dtype_size(p->out_dtype);
    case AGI_GRAD_DTYPE: return ag_dtype_size(p->grad_dtype);
    case AGI_AUX_DTYPE: return ag_dtype_size(p->aux_dtype);
    case AGI_FLOAT64: return sizeof(double);
    default: return 1;
    }
}
