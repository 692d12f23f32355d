/* Probes of the processor: how many operations per second it can do, on numbers that stay in registers.
 * The ceiling that a map's rate is compared with. On processors whose clock drops when loads go with the multiply-adds,
 * the probes that load from the L1 cache say by how much. */
#ifndef ATTNGRAD_CLI_PROBE_H
#define ATTNGRAD_CLI_PROBE_H

enum probe_kind {
    PROBE_FMA_F32 = 0, /* multiply and add: two operations each */
    PROBE_FMA_F64 = 1,
    PROBE_EXP2_F32 = 2, /* 2^x by a polynomial of degree 5: one operation each */
    PROBE_AMX_BF16 = 3, /* products of tiles of bfloat16, "amx" only; multiply-adds count two */
    PROBE_FED_F32 =
        4, /* multiply-adds whose factors come from the first cache, as in a product of matrices */
    PROBE_FED_F64 = 5,
    PROBE_KINDS = 6
};

/* Operations a second of `threads` threads at once, in the vectors of an instruction set ("scalar": those of
 * every processor of this kind, "avx2", "avx512", "neon"; "amx": AVX-512 beside the tiles). A processor is faster for its first milliseconds
 * under load than it can stay: the same work runs for `settle` seconds before `seconds` of it are counted. 0
 * if the processor has no such instruction set or a thread cannot be started. */
double probe_rate(const char *isa, enum probe_kind kind, int threads, double settle, double seconds);

#endif
