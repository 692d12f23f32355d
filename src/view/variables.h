/* The variables of attention that a page shows: names, shapes, where their numbers come from. */
#ifndef ATTNGRAD_VIEW_VARIABLES_H
#define ATTNGRAD_VIEW_VARIABLES_H

#include <attngrad.h>
#include <stdbool.h>

/* name, axes, columns, map that has it, feature without which it is not shown, origin, its place there. Origin: INPUT
 * and OUTPUT are tensors of ag_args, TRACE is an array of ag_trace_args. hidden is 1 for a pair of a query and a key
 * that it does not see, else 0. */
#define AGV_VARIABLES(X)                                                                                     \
    X(Q, "ic", WIDTH_QK, AG_MAP_FORWARD, HAS_ALWAYS, INPUT, offsetof(ag_args, q))                            \
    X(K, "jc", WIDTH_QK, AG_MAP_FORWARD, HAS_ALWAYS, INPUT, offsetof(ag_args, k))                            \
    X(V, "jc", WIDTH_V, AG_MAP_FORWARD, HAS_ALWAYS, INPUT, offsetof(ag_args, v))                             \
    X(hidden, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_ALWAYS, COMPUTED, 0)                                     \
    X(s, "rr", WIDTH_ONE, AG_MAP_FORWARD, HAS_SINK, INPUT, offsetof(ag_args, sink))                          \
    X(Z, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, Z))                    \
    X(B, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_BIAS, TRACE, offsetof(ag_trace_args, B))                      \
    X(S, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, S))                    \
    X(L, "ir", WIDTH_ONE, AG_MAP_FORWARD, HAS_ALWAYS, OUTPUT, offsetof(ag_args, lse))                        \
    X(P, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, P))                    \
    X(Ps, "ir", WIDTH_ONE, AG_MAP_FORWARD, HAS_SINK, TRACE, offsetof(ag_trace_args, Ps))                     \
    X(M, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_DROPOUT, TRACE, offsetof(ag_trace_args, M))                   \
    X(R, "ij", WIDTH_KEYS, AG_MAP_FORWARD, HAS_DROPOUT, TRACE, offsetof(ag_trace_args, R))                   \
    X(O, "ic", WIDTH_V, AG_MAP_FORWARD, HAS_ALWAYS, OUTPUT, offsetof(ag_args, o))                            \
    X(dO, "ic", WIDTH_V, AG_MAP_VJP, HAS_ALWAYS, INPUT, offsetof(ag_args, d_o))                              \
    X(dL, "ir", WIDTH_ONE, AG_MAP_VJP, HAS_DL, INPUT, offsetof(ag_args, d_lse))                              \
    X(D, "ir", WIDTH_ONE, AG_MAP_VJP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, D))                         \
    X(dP, "ij", WIDTH_KEYS, AG_MAP_VJP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, dP))                      \
    X(dS, "ij", WIDTH_KEYS, AG_MAP_VJP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, dS))                      \
    X(dZ, "ij", WIDTH_KEYS, AG_MAP_VJP, HAS_SOFTCAP, TRACE, offsetof(ag_trace_args, dZ))                     \
    X(dQ, "ic", WIDTH_QK, AG_MAP_VJP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, dq))                             \
    X(dK, "jc", WIDTH_QK, AG_MAP_VJP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, dk))                             \
    X(dV, "jc", WIDTH_V, AG_MAP_VJP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, dv))                              \
    X(ds, "rr", WIDTH_ONE, AG_MAP_VJP, HAS_SINK, OUTPUT, offsetof(ag_args, dsink))                           \
    X(phi1, "ij", WIDTH_KEYS, AG_MAP_VJP | AG_MAP_JVP, HAS_SOFTCAP, TRACE, offsetof(ag_trace_args, phi1))    \
    X(tQ, "ic", WIDTH_QK, AG_MAP_JVP, HAS_ALWAYS, INPUT, offsetof(ag_args, tq))                              \
    X(tK, "jc", WIDTH_QK, AG_MAP_JVP, HAS_ALWAYS, INPUT, offsetof(ag_args, tk))                              \
    X(tV, "jc", WIDTH_V, AG_MAP_JVP, HAS_ALWAYS, INPUT, offsetof(ag_args, tv))                               \
    X(ts, "rr", WIDTH_ONE, AG_MAP_JVP, HAS_SINK, INPUT, offsetof(ag_args, tsink))                            \
    X(tZ, "ij", WIDTH_KEYS, AG_MAP_JVP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, tZ))                      \
    X(tS, "ij", WIDTH_KEYS, AG_MAP_JVP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, tS))                      \
    X(tB, "ij", WIDTH_KEYS, AG_MAP_JVP, HAS_TB, COMPUTED, 0)                                                 \
    X(mu, "ir", WIDTH_ONE, AG_MAP_JVP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, mu))                            \
    X(tP, "ij", WIDTH_KEYS, AG_MAP_JVP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, tP))                      \
    X(tO, "ic", WIDTH_V, AG_MAP_JVP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, to))                              \
    X(tdO, "ic", WIDTH_V, AG_MAP_VJP_JVP, HAS_ALWAYS, INPUT, offsetof(ag_args, td_o))                        \
    X(tdL, "ir", WIDTH_ONE, AG_MAP_VJP_JVP, HAS_TDL, INPUT, offsetof(ag_args, td_lse))                       \
    X(tD, "ir", WIDTH_ONE, AG_MAP_VJP_JVP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, tD))                   \
    X(tdP, "ij", WIDTH_KEYS, AG_MAP_VJP_JVP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, tdP))                \
    X(tdS, "ij", WIDTH_KEYS, AG_MAP_VJP_JVP, HAS_ALWAYS, TRACE, offsetof(ag_trace_args, tdS))                \
    X(phi2, "ij", WIDTH_KEYS, AG_MAP_VJP_JVP, HAS_SOFTCAP, TRACE, offsetof(ag_trace_args, phi2))             \
    X(tdZ, "ij", WIDTH_KEYS, AG_MAP_VJP_JVP, HAS_SOFTCAP, TRACE, offsetof(ag_trace_args, tdZ))               \
    X(tdQ, "ic", WIDTH_QK, AG_MAP_VJP_JVP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, tdq))                       \
    X(tdK, "jc", WIDTH_QK, AG_MAP_VJP_JVP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, tdk))                       \
    X(tdV, "jc", WIDTH_V, AG_MAP_VJP_JVP, HAS_ALWAYS, OUTPUT, offsetof(ag_args, tdv))                        \
    X(tds, "rr", WIDTH_ONE, AG_MAP_VJP_JVP, HAS_SINK, OUTPUT, offsetof(ag_args, tdsink))

typedef enum agv_kind {
#define AGV_NUMBER(name, axes, width, map, feature, origin, offset) AGV_##name,
    AGV_VARIABLES(AGV_NUMBER)
#undef AGV_NUMBER
        AGV_KINDS
} agv_kind;

typedef enum { WIDTH_QK, WIDTH_V, WIDTH_KEYS, WIDTH_ONE } agv_width;
typedef enum { INPUT, OUTPUT, TRACE, COMPUTED } agv_origin;
typedef enum {
    HAS_ALWAYS,
    HAS_SINK,
    HAS_BIAS,
    HAS_DROPOUT,
    HAS_SOFTCAP,
    HAS_DL,
    HAS_TB,
    HAS_TDL
} agv_feature;

typedef struct agv_info {
    const char *name, *axes;
    agv_width width;
    uint32_t maps; /* shown if one of these maps is */
    agv_feature feature;
    agv_origin origin;
    size_t offset; /* of an ag_tensor in ag_args, or of a pointer in ag_trace_args */
} agv_info;

extern const agv_info agv_infos[AGV_KINDS];

/* The tensor of an input or output. */
const ag_tensor *agv_tensor_of(const ag_args *args, const agv_info *info);

/* Whether a call has the feature. */
bool agv_has(const ag_problem *p, const ag_args *args, agv_feature feature);

#endif
