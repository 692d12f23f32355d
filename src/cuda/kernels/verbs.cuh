/* The verbs of the kernels: everything that is PTX, and nothing else. With AGI_EMULATE defined the same verbs are plain
 * C++ (emulate.h), so that the kernels' own source runs on a machine without a GPU. */
#pragma once
#ifdef AGI_EMULATE
#include "cuda/emulate.h"
#else
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

#define KERNEL extern "C" __global__
#define VERB __device__ __forceinline__
#define CALLED __device__ __noinline__ /* too long to be copied for each element of a tile */
#define SHARED_MEMORY(name) extern __shared__ __align__(128) char name[]

/* ---- Pairs of 16-bit numbers ---- */

VERB uint32_t pack_half(float x, float y)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}
VERB float2 unpack_half(uint32_t r)
{
    return __half22float2(*reinterpret_cast<__half2 *>(&r));
}

VERB uint32_t pack_bfloat(float x, float y)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}
VERB float2 unpack_bfloat(uint32_t r)
{
    return make_float2(__uint_as_float(r << 16), __uint_as_float(r & 0xffff0000u));
}

/* ---- Products: c += a b, 16 x 8 x 16 in 16 bits, 16 x 8 x 8 in float64 ---- */

VERB void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
VERB void mma_bfloat(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* From Hopper on in one instruction; before it in four, with the same registers and the same order of summation. */
VERB void mma_double(double (&c)[4], const double (&a)[4], double b0, double b1)
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
                : "d"(a[2 * k + half]), "d"(k ? b1 : b0));
        }
    }
#endif
}

/* ---- Shared memory ---- */

VERB uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes, zeros unless `there`; they have arrived after the thread's copy_wait and a barrier. */
VERB void copy_16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}
VERB void copy_commit()
{
    asm volatile("cp.async.commit_group;");
}
VERB void copy_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

VERB void load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
VERB void load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
VERB double load_double(uint32_t address)
{
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address));
    return x;
}

/* ---- A warp together ---- */

VERB uint32_t or_over_warp(uint32_t x)
{
    return __reduce_or_sync(~0u, x);
}
/* How many bits are 1. */
VERB int count_bits(uint32_t x)
{
    return __popc(x);
}

/* ---- Arithmetic that the compiler must not contract: scores have the same bits in all maps ---- */

VERB float mul_rn(float x, float y)
{
    return __fmul_rn(x, y);
}
VERB double mul_rn(double x, double y)
{
    return __dmul_rn(x, y);
}
VERB float add_rn(float x, float y)
{
    return __fadd_rn(x, y);
}
VERB double add_rn(double x, double y)
{
    return __dadd_rn(x, y);
}

/* ---- e^x: within 2^-22 of itself for float ---- */

VERB float exp_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
    return r;
}

/* ---- The bits of a double ---- */

VERB int low_word(double x)
{
    return __double2loint(x);
}
VERB double power_of_two(int n) /* 2^n, if that is a normal number */
{
    return __hiloint2double((n + 1023) << 20, 0);
}
#endif

/* e^x in float64, within an ulp or so of itself if that is a normal number: e^x = 2^n e^r, |r| <= ln 2 / 2. It has no
 * branch, so that those of the elements of a tile run beside each other. */
VERB double exp_fast(double x)
{
    const double ROUND = 6755399441055744.0; /* 1.5 2^52: added, it leaves an integer in the low word */
    const double y = x < -746.0 ? -746.0 : x > 710.0 ? 710.0 : x; /* NaN stays */
    const double shifted = fma(y, 1.4426950408889634, ROUND), k = shifted - ROUND;
    const int n = low_word(shifted), half = n >> 1;
    const double r = fma(k, -2.3190468138462996e-17, fma(k, -0.69314718055994529, y));
    double e = 2.5022322536502990e-8;
    e = fma(e, r, 2.7630903488173108e-7);
    e = fma(e, r, 2.7557514545882439e-6);
    e = fma(e, r, 2.4801491039099165e-5);
    e = fma(e, r, 1.9841269589115497e-4);
    e = fma(e, r, 1.3888888945916380e-3);
    e = fma(e, r, 8.3333333334550432e-3);
    e = fma(e, r, 4.1666666666519754e-2);
    e = fma(e, r, 1.6666666666666477e-1);
    e = fma(e, r, 5.0000000000000122e-1);
    e = fma(e, r, 1.0);
    e = fma(e, r, 1.0);
    return e * power_of_two(half) * power_of_two(n - half); /* in two steps, as 2^n may be no normal number */
}
