/* Probes of the processor: the number of operations per second that it can do on numbers that stay in
 * registers, as the peak that a map's rate is compared with. Some processors lower their clock when loads are
 * mixed with multiply-adds; the probes that load from the L1 cache show by how much. */
#ifndef ATTNGRAD_CLI_PROBE_H
#define ATTNGRAD_CLI_PROBE_H

enum probe_kind {
    PROBE_FMA_F32 = 0, /* multiply and add: two operations each */
    PROBE_FMA_F64 = 1,
    PROBE_EXP2_F32 = 2, /* 2^x by a polynomial of degree 5: one operation each */
    PROBE_AMX_BF16 = 3, /* products of tiles of bfloat16, "amx" only; multiply-adds count two */
    PROBE_FED_F32 = 4,  /* multiply-adds whose factors come from the L1 cache */
    PROBE_FED_F64 = 5,
    PROBE_KINDS = 6
};

/* Returns the operations per second of `threads` threads at once, in the vectors of an instruction set:
 * "scalar" (what every processor of the architecture has), "avx2", "avx512", "neon" or "amx" (AVX-512, and
 * tiles). A processor is faster in its first milliseconds under load than it can sustain: the same work runs
 * for `settle` seconds before `seconds` of it are counted. Returns 0 if the processor has no such instruction
 * set or a thread cannot be started. */
double probe_rate(const char *isa, enum probe_kind kind, int threads, double settle, double seconds);

#endif
