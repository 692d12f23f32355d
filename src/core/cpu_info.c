/* Processor name and features: by cpuid on x86-64; elsewhere what the target guarantees. */
#define _GNU_SOURCE /* syscall, sched_getaffinity */
#include "core/cpu_info.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/pool.h"

static void append_word(char *text, size_t size, const char *word)
{
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? " " : "", word);
}

int32_t agi_usable_cpus(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set) > AGI_MAX_THREADS ? AGI_MAX_THREADS : CPU_COUNT(&set);
    }
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > AGI_MAX_THREADS ? AGI_MAX_THREADS : (int32_t)n;
}

#if defined(__x86_64__) || defined(__i386__)

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

void agi_cpu_name(char *name, size_t size)
{
    unsigned words[12] = {0};
    char brand[sizeof words + 1] = "";
    if ((unsigned)__get_cpuid_max(0x80000000u, NULL) >= 0x80000004u) {
        for (unsigned leaf = 0; leaf < 3; leaf++) {
            unsigned *w = words + 4 * (size_t)leaf;
            __get_cpuid(0x80000002u + leaf, &w[0], &w[1], &w[2], &w[3]);
        }
    }
    memcpy(brand, words, sizeof words);
    snprintf(name, size, "%s", brand[0] ? brand + strspn(brand, " ") : "x86");
}

/* __builtin_cpu_supports of current compilers does not know AMX. So this reads cpuid leaf 7 and, by xgetbv,
 * whether the operating system saves the tile registers. */
static bool has_amx_bf16(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27))) {
        return false; /* no xgetbv */
    }
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & (3u << 17)) != (3u << 17)) { /* tile configuration and tile data */
        return false;
    }
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx_bf16) && (d & amx_tile);
}

/* A Linux process must request, once, permission to use the tile registers. On other systems the library does
 * not use them. */
static bool may_use_tiles(void)
{
#if defined(__linux__)
    static _Atomic int answer;                 /* 0: not requested yet; all threads get the same answer */
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    if (answer == 0) {
        answer = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? 1 : -1;
    }
    return answer > 0;
#else
    return false;
#endif
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
}

/* The tests also compile this file with an emulated AMX, which needs AVX-512 only. */
#if !defined(AGI_EMULATED_AMX)
#define AGI_EMULATED_AMX 0
#endif

static bool has_amx(void)
{
    const bool vectors = has_avx512() && __builtin_cpu_supports("bmi2");
    return vectors && (AGI_EMULATED_AMX || (has_amx_bf16() && __builtin_cpu_supports("avx512bf16") &&
                                            __builtin_cpu_supports("avx512vbmi") && may_use_tiles()));
}

void agi_cpu_features(char *features, size_t size)
{
    features[0] = '\0';
    __builtin_cpu_init();
    const struct {
        const char *name;
        int present;
    } sets[] = {
        {"sse4.2", __builtin_cpu_supports("sse4.2")},
        {"avx2", __builtin_cpu_supports("avx2")},
        {"fma", __builtin_cpu_supports("fma")},
        {"bmi2", __builtin_cpu_supports("bmi2")},
        {"avx512f", __builtin_cpu_supports("avx512f")},
        {"avx512bw", __builtin_cpu_supports("avx512bw")},
        {"avx512dq", __builtin_cpu_supports("avx512dq")},
        {"avx512vl", __builtin_cpu_supports("avx512vl")},
        {"avx512bf16", __builtin_cpu_supports("avx512bf16")},
        {"avx512vbmi", __builtin_cpu_supports("avx512vbmi")},
        {"amx-bf16", has_amx_bf16()},
    };
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].present) {
            append_word(features, size, sets[i].name);
        }
    }
}

bool agi_cpu_supports(ag_isa isa)
{
    __builtin_cpu_init();
    switch (isa) {
    case AG_ISA_AUTO:
    case AG_ISA_SCALAR: return true;
    case AG_ISA_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case AG_ISA_AVX512: return has_avx512();
    case AG_ISA_AMX: return has_amx();
    default: return false;
    }
}

#else

bool agi_cpu_supports(ag_isa isa)
{
#if defined(__aarch64__)
    return isa == AG_ISA_AUTO || isa == AG_ISA_SCALAR || isa == AG_ISA_NEON;
#else
    return isa == AG_ISA_AUTO || isa == AG_ISA_SCALAR;
#endif
}

void agi_cpu_name(char *name, size_t size)
{
#if defined(__aarch64__)
    snprintf(name, size, "aarch64");
#else
    snprintf(name, size, "unknown");
#endif
}

void agi_cpu_features(char *features, size_t size)
{
    features[0] = '\0';
#if defined(__aarch64__)
    append_word(features, size, "neon");
#endif
}

#endif
