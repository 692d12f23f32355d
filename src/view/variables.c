/* The table of attention's variables. */
#include "view/variables.h"

const agv_info agv_infos[AGV_KINDS] = {
#define AGV_ROW(name, axes, width, map, feature, origin, offset)                                             \
    {#name, axes, width, map, feature, origin, offset},
    AGV_VARIABLES(AGV_ROW)
#undef AGV_ROW
};

const ag_tensor *agv_tensor_of(const ag_args *args, const agv_info *info)
{
    return (const ag_tensor *)(const void *)((const char *)args + info->offset);
}

bool agv_has(const ag_problem *p, const ag_args *args, agv_feature feature)
{
    switch (feature) {
    case HAS_SINK: return (p->flags & AG_SINK) != 0;
    case HAS_BIAS: return (p->flags & (AG_BIAS | AG_TABLE | AG_ALIBI | AG_SLOPES)) != 0;
    case HAS_DROPOUT: return p->dropout > 0;
    case HAS_SOFTCAP: return p->softcap > 0;
    case HAS_DL: return args->d_lse.data != NULL;
    case HAS_TB: return args->tbias.data != NULL || args->ttable.data != NULL;
    case HAS_TDL: return args->td_lse.data != NULL;
    default: return true;
    }
}
