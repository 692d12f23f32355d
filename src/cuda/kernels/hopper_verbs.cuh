/* The verbs of Hopper (sm_90a), beside those of verbs.cuh: everything that is PTX, and nothing else. With AGI_EMULATE
 * defined the same verbs are plain C++ (hopper_emulate.h).
 *
 * Shared memory is filled by the copy engine, a box of rows of 64 numbers of 16 bits at a time, 128 bytes per row,
 * with the 16-byte chunks of row r exchanged: chunk c is at c ^ (r % 8). A copy reports its bytes to a barrier. Four
 * warps, a warpgroup, multiply 64 rows by tiles that lie in shared memory, without waiting for the result. */
#pragma once
#include "cuda/hopper_params.h"
#include "cuda/kernels/formats.cuh"
#ifdef AGI_EMULATE
#include "cuda/hopper_emulate.h"
#else

/* ---- Barriers in shared memory: a phase ends when all have arrived and all expected bytes have come ---- */

VERB void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/* After all of them, by the thread that did it; a __syncthreads must follow. */
VERB void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
VERB void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and lets the phase wait for so many bytes of copies too. */
VERB void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits until the phase of this parity has ended: 0 for the first, 1 for the second, 0 for the third. */
VERB void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\n"
                 "again%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- Barriers of some warps, by number ---- */

VERB void named_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/* The same without waiting. */
VERB void named_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* A number that all lanes of the warp agree on, told to the compiler. */
VERB int uniform(int x)
{
    return __shfl_sync(~0u, x, 0);
}

/* The next number of a counter that the blocks share, from 0 on. */
VERB uint32_t draw(int64_t *counter)
{
    return (uint32_t)atomicAdd((unsigned long long *)counter, 1ull);
}
/* x, told to the compiler as a new number: it keeps nothing in registers that it has computed of x before. */
VERB int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* ---- Registers: those that one warpgroup gives up, another may take ---- */

template <int COUNT> VERB void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> VERB void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- Boxes of a tensor; what lies outside of the tensor is zero, and is not stored ---- */

VERB void box_prefetch(const agi_cuda_tensor_map &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
VERB void box_load(uint32_t to, const agi_cuda_tensor_map &map, uint32_t barrier, int channel, int row,
                   int head, int batch)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(channel), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
/* `bytes` bytes in a row, a multiple of 16, as both addresses are. */
VERB void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
VERB void box_store(const agi_cuda_tensor_map &map, uint32_t from, int channel, int row, int head, int batch)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
        "r"(from), "r"(channel), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
/* Until the thread's stores have read shared memory, which must not change or end before that. */
VERB void box_store_wait()
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* ---- Sums in global memory that blocks add to one after another ----
 *
 * A block waits until so many others have passed, adds its numbers or reads the sum, and passes. The copy engine moves
 * them, `bytes` bytes in a row, a multiple of 16, as both addresses are. */

VERB void bulk_store(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
VERB void bulk_add(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
/* Until what the thread has stored or added has been read from shared memory, and until it is in global memory. */
VERB void bulk_wait_read()
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
VERB void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
VERB void wait_for_passes(const int32_t *passes, int count)
{
    int now = 0;
    while (now < count) {
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(passes) : "memory");
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
VERB void pass(int32_t *passes)
{
    asm volatile("fence.proxy.async.global;\nred.release.gpu.global.add.s32 [%0], 1;" ::"l"(passes)
                 : "memory");
}
/* A number that no other block of the launch gets: 0, 1, 2 in the order of the calls. */
VERB int draw_ticket(int32_t *tickets)
{
    return atomicAdd(tickets, 1);
}

/* ---- Plain stores into shared memory: products and boxes see them after the thread's shared_fence, a barrier ---- */

VERB void shared_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* 16 bytes, the same word four times. */
VERB void shared_fill_16(uint32_t address, uint32_t word)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(word) : "memory");
}
VERB void shared_zero_16(uint32_t address)
{
    shared_fill_16(address, 0);
}
/* Four matrices of 8 x 8 numbers of 16 bits, in the lanes as load_matrices has them. */
VERB void store_matrices(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
                 "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}
/* A matrix of 8 x 8 numbers of 16 bits, two neighbours of a row in each lane: its transpose. */
VERB uint32_t transpose_matrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
VERB void shared_store(uint32_t address, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
template <int N> VERB void shared_store_4(uint32_t address, const float (&x)[N], int i)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[i]), "f"(x[i + 1]),
                 "f"(x[i + 2]), "f"(x[i + 3])
                 : "memory");
}
/* x[i .. i + 3] += what is there. */
template <int N> VERB void shared_add_4(float (&x)[N], int i, uint32_t address)
{
    float y[4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])
                 : "r"(address)
                 : "memory");
    for (int n = 0; n < 4; n++) {
        x[i + n] += y[n];
    }
}
VERB float2 shared_load_2(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}
VERB float shared_load(uint32_t address)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    return x;
}
/* Four of them, 16 bytes in a row. */
VERB void shared_load(float (&x)[4], uint32_t address)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address));
}

/* ---- Products of a warpgroup: 64 x N x 16 ---- */

/* A tile in shared memory as an operand. Only the low word changes from one step of 16 numbers to the next. */
struct operand_tile {
    uint32_t low, high;
};
VERB uint64_t operand_at(operand_tile t, uint32_t offset)
{
    return (uint64_t)t.high << 32 | (t.low + (offset >> 4));
}

/* Before the first product after the accumulators or the registers of the first operand were written. */
VERB void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
VERB void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most so many of the groups that were committed are unfinished. */
template <int GROUPS> VERB void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
/* The compiler moves no use of x across this. */
template <int N> VERB void hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(x[i])::"memory");
    }
}

template <int N> VERB void hold(uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+r"(x[i])::"memory");
    }
}

/* x, of which the compiler computes nothing before this, where registers may be few. */
VERB int here(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* The registers of an accumulator in an instruction, and as operands of the compiler's. */
/* clang-format off */
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_24 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_32 REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_36 REGISTERS_32 ", %32, %33, %34, %35"
#define REGISTERS_40 REGISTERS_36 ", %36, %37, %38, %39"
#define REGISTERS_48 REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_56 REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_64 REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_68 REGISTERS_64 ", %64, %65, %66, %67"
#define REGISTERS_128 REGISTERS_68 ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, " \
    "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR(mode, d, i) mode(d[i]), mode(d[i + 1]), mode(d[i + 2]), mode(d[i + 3])
#define EIGHT(mode, d, i) mode(d[i]), mode(d[i + 1]), mode(d[i + 2]), mode(d[i + 3]), mode(d[i + 4]), \
    mode(d[i + 5]), mode(d[i + 6]), mode(d[i + 7])
#define OPERANDS_16(mode, d) EIGHT(mode, d, 0), EIGHT(mode, d, 8)
#define OPERANDS_24(mode, d) OPERANDS_16(mode, d), EIGHT(mode, d, 16)
#define OPERANDS_32(mode, d) OPERANDS_24(mode, d), EIGHT(mode, d, 24)
#define OPERANDS_36(mode, d) OPERANDS_32(mode, d), FOUR(mode, d, 32)
#define OPERANDS_40(mode, d) OPERANDS_32(mode, d), EIGHT(mode, d, 32)
#define OPERANDS_48(mode, d) OPERANDS_40(mode, d), EIGHT(mode, d, 40)
#define OPERANDS_56(mode, d) OPERANDS_48(mode, d), EIGHT(mode, d, 48)
#define OPERANDS_64(mode, d) OPERANDS_56(mode, d), EIGHT(mode, d, 56)
#define OPERANDS_68(mode, d) OPERANDS_64(mode, d), FOUR(mode, d, 64)
#define OPERANDS_96(mode, d) OPERANDS_64(mode, d), EIGHT(mode, d, 64), EIGHT(mode, d, 72), EIGHT(mode, d, 80), \
    EIGHT(mode, d, 88)
#define OPERANDS_128(mode, d) OPERANDS_96(mode, d), EIGHT(mode, d, 96), EIGHT(mode, d, 104), EIGHT(mode, d, 112), \
    EIGHT(mode, d, 120)
/* clang-format on */
#define WRITTEN(x) "=f"(x)
#define ADDED_TO(x) "+f"(x)
#define PRODUCT(N, type) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #type "." #type " "

/* d = a b; d's old numbers do not live on until then. COUNT: registers of d; the next ones: operands 0 and 1. */
#define PRODUCT_FIRST(N, type, COUNT, A, B)                                                                  \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n" PRODUCT(N, type) "{" REGISTERS_##COUNT       \
                 "}, %" #A ", %" #B ", add, 1, 1, 0, 0;\n}"                                                  \
                 : OPERANDS_##COUNT(WRITTEN, d)                                                              \
                 : "l"(a), "l"(b))
/* d += a b */
#define PRODUCT_NEXT(N, type, COUNT, A, B)                                                                   \
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n" PRODUCT(N, type) "{" REGISTERS_##COUNT       \
                 "}, %" #A ", %" #B ", add, 1, 1, 0, 0;\n}"                                                  \
                 : OPERANDS_##COUNT(ADDED_TO, d)                                                             \
                 : "l"(a), "l"(b))
/* The same with the sum over the rows of both tiles. */
#define PRODUCT_COLUMNS_NEXT(N, type, COUNT, A, B)                                                           \
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n" PRODUCT(N, type) "{" REGISTERS_##COUNT       \
                 "}, %" #A ", %" #B ", add, 1, 1, 1, 1;\n}"                                                  \
                 : OPERANDS_##COUNT(ADDED_TO, d)                                                             \
                 : "l"(a), "l"(b))
#define PRODUCT_COLUMNS_FIRST(N, type, COUNT, A, B)                                                          \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n" PRODUCT(N, type) "{" REGISTERS_##COUNT       \
                 "}, %" #A ", %" #B ", add, 1, 1, 1, 1;\n}"                                                  \
                 : OPERANDS_##COUNT(WRITTEN, d)                                                              \
                 : "l"(a), "l"(b))
/* d += a b, a in registers, b's rows along the sum */
#define PRODUCT_REGISTERS(N, type, COUNT, A0, A1, A2, A3, B)                                                 \
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n" PRODUCT(N, type) "{" REGISTERS_##COUNT       \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, 1;\n}"                    \
                 : OPERANDS_##COUNT(ADDED_TO, d)                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* The same, d = a b */
#define PRODUCT_REGISTERS_FIRST(N, type, COUNT, A0, A1, A2, A3, B)                                           \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n" PRODUCT(N, type) "{" REGISTERS_##COUNT       \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, 1;\n}"                    \
                 : OPERANDS_##COUNT(WRITTEN, d)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

template <class F, class G> struct same_format {
    static constexpr bool value = false;
};
template <class F> struct same_format<F, F> {
    static constexpr bool value = true;
};

/* d = a b^T, both with rows of 16 numbers along the sum. */
template <class F, int N> VERB void product_first(float (&d)[N / 2], uint64_t a, uint64_t b)
{
    constexpr bool BFLOAT = same_format<F, bf16>::value;
    static_assert(N == 32 || N == 48 || N == 64 || N == 80 || N == 96 || N == 112 || N == 128,
                  "no product of this width");
    if constexpr (N == 32 && BFLOAT) {
        PRODUCT_FIRST(32, bf16, 16, 16, 17);
    } else if constexpr (N == 32) {
        PRODUCT_FIRST(32, f16, 16, 16, 17);
    } else if constexpr (N == 48 && BFLOAT) {
        PRODUCT_FIRST(48, bf16, 24, 24, 25);
    } else if constexpr (N == 48) {
        PRODUCT_FIRST(48, f16, 24, 24, 25);
    } else if constexpr (N == 64 && BFLOAT) {
        PRODUCT_FIRST(64, bf16, 32, 32, 33);
    } else if constexpr (N == 64) {
        PRODUCT_FIRST(64, f16, 32, 32, 33);
    } else if constexpr (N == 80 && BFLOAT) {
        PRODUCT_FIRST(80, bf16, 40, 40, 41);
    } else if constexpr (N == 80) {
        PRODUCT_FIRST(80, f16, 40, 40, 41);
    } else if constexpr (N == 96 && BFLOAT) {
        PRODUCT_FIRST(96, bf16, 48, 48, 49);
    } else if constexpr (N == 96) {
        PRODUCT_FIRST(96, f16, 48, 48, 49);
    } else if constexpr (N == 112 && BFLOAT) {
        PRODUCT_FIRST(112, bf16, 56, 56, 57);
    } else if constexpr (N == 112) {
        PRODUCT_FIRST(112, f16, 56, 56, 57);
    } else if constexpr (BFLOAT) {
        PRODUCT_FIRST(128, bf16, 64, 64, 65);
    } else {
        PRODUCT_FIRST(128, f16, 64, 64, 65);
    }
}

/* d += a b^T */
template <class F, int N> VERB void product_next(float (&d)[N / 2], uint64_t a, uint64_t b)
{
    constexpr bool BFLOAT = same_format<F, bf16>::value;
    static_assert(N == 32 || N == 48 || N == 64 || N == 80 || N == 96 || N == 112 || N == 128,
                  "no product of this width");
    if constexpr (N == 32 && BFLOAT) {
        PRODUCT_NEXT(32, bf16, 16, 16, 17);
    } else if constexpr (N == 32) {
        PRODUCT_NEXT(32, f16, 16, 16, 17);
    } else if constexpr (N == 48 && BFLOAT) {
        PRODUCT_NEXT(48, bf16, 24, 24, 25);
    } else if constexpr (N == 48) {
        PRODUCT_NEXT(48, f16, 24, 24, 25);
    } else if constexpr (N == 64 && BFLOAT) {
        PRODUCT_NEXT(64, bf16, 32, 32, 33);
    } else if constexpr (N == 64) {
        PRODUCT_NEXT(64, f16, 32, 32, 33);
    } else if constexpr (N == 80 && BFLOAT) {
        PRODUCT_NEXT(80, bf16, 40, 40, 41);
    } else if constexpr (N == 80) {
        PRODUCT_NEXT(80, f16, 40, 40, 41);
    } else if constexpr (N == 96 && BFLOAT) {
        PRODUCT_NEXT(96, bf16, 48, 48, 49);
    } else if constexpr (N == 96) {
        PRODUCT_NEXT(96, f16, 48, 48, 49);
    } else if constexpr (N == 112 && BFLOAT) {
        PRODUCT_NEXT(112, bf16, 56, 56, 57);
    } else if constexpr (N == 112) {
        PRODUCT_NEXT(112, f16, 56, 56, 57);
    } else if constexpr (BFLOAT) {
        PRODUCT_NEXT(128, bf16, 64, 64, 65);
    } else {
        PRODUCT_NEXT(128, f16, 64, 64, 65);
    }
}

/* d += a b: a[0 .. 3] in registers, which must not change until the product is done; b has 16 rows of N numbers. */
template <class F, int N> VERB void product_weights(float (&d)[N / 2], const uint32_t *a, uint64_t b)
{
    constexpr bool BFLOAT = same_format<F, bf16>::value;
    static_assert(N == 64 || N == 72 || N == 128 || N == 136 || N == 256, "no product of this width");
    if constexpr (N == 64 && BFLOAT) {
        PRODUCT_REGISTERS(64, bf16, 32, 32, 33, 34, 35, 36);
    } else if constexpr (N == 64) {
        PRODUCT_REGISTERS(64, f16, 32, 32, 33, 34, 35, 36);
    } else if constexpr (N == 72 && BFLOAT) {
        PRODUCT_REGISTERS(72, bf16, 36, 36, 37, 38, 39, 40);
    } else if constexpr (N == 72) {
        PRODUCT_REGISTERS(72, f16, 36, 36, 37, 38, 39, 40);
    } else if constexpr (N == 136 && BFLOAT) {
        PRODUCT_REGISTERS(136, bf16, 68, 68, 69, 70, 71, 72);
    } else if constexpr (N == 136) {
        PRODUCT_REGISTERS(136, f16, 68, 68, 69, 70, 71, 72);
    } else if constexpr (N == 256 && BFLOAT) {
        PRODUCT_REGISTERS(256, bf16, 128, 128, 129, 130, 131, 132);
    } else if constexpr (N == 256) {
        PRODUCT_REGISTERS(256, f16, 128, 128, 129, 130, 131, 132);
    } else if constexpr (BFLOAT) {
        PRODUCT_REGISTERS(128, bf16, 64, 64, 65, 66, 67, 68);
    } else {
        PRODUCT_REGISTERS(128, f16, 64, 64, 65, 66, 67, 68);
    }
}

/* The same, d = a b, of float16. */
template <class F, int N> VERB void product_weights_first(float (&d)[N / 2], const uint32_t *a, uint64_t b)
{
    static_assert((N == 64 || N == 128) && !same_format<F, bf16>::value,
                  "no product of this width or format");
    if constexpr (N == 64) {
        PRODUCT_REGISTERS_FIRST(64, f16, 32, 32, 33, 34, 35, 36);
    } else {
        PRODUCT_REGISTERS_FIRST(128, f16, 64, 64, 65, 66, 67, 68);
    }
}

/* d = a^T b and d += a^T b: 16 rows each, of 64 numbers and of 64 or 32. */
template <class F, int COUNT> VERB void product_columns_first(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    constexpr bool BFLOAT = same_format<F, bf16>::value;
    static_assert(COUNT == 16 || COUNT == 32, "no product of this width");
    if constexpr (COUNT == 16 && BFLOAT) {
        PRODUCT_COLUMNS_FIRST(32, bf16, 16, 16, 17);
    } else if constexpr (COUNT == 16) {
        PRODUCT_COLUMNS_FIRST(32, f16, 16, 16, 17);
    } else if constexpr (BFLOAT) {
        PRODUCT_COLUMNS_FIRST(64, bf16, 32, 32, 33);
    } else {
        PRODUCT_COLUMNS_FIRST(64, f16, 32, 32, 33);
    }
}
template <class F, int COUNT> VERB void product_columns_next(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    constexpr bool BFLOAT = same_format<F, bf16>::value;
    static_assert(COUNT == 16 || COUNT == 32, "no product of this width");
    if constexpr (COUNT == 16 && BFLOAT) {
        PRODUCT_COLUMNS_NEXT(32, bf16, 16, 16, 17);
    } else if constexpr (COUNT == 16) {
        PRODUCT_COLUMNS_NEXT(32, f16, 16, 16, 17);
    } else if constexpr (BFLOAT) {
        PRODUCT_COLUMNS_NEXT(64, bf16, 32, 32, 33);
    } else {
        PRODUCT_COLUMNS_NEXT(64, f16, 32, 32, 33);
    }
}

/* ---- Integers ---- */

struct wide_product {
    uint32_t low, high;
};
VERB wide_product multiply_wide(uint32_t x, uint32_t y)
{
    wide_product p;
    asm("{\n.reg .b64 xy;\nmul.wide.u32 xy, %2, %3;\nmov.b64 {%0, %1}, xy;\n}"
        : "=r"(p.low), "=r"(p.high)
        : "r"(x), "r"(y));
    return p;
}
/* bits = 2 bits + (x >= below); below is not 0. */
VERB void append_bit(uint32_t &bits, uint32_t x, uint32_t below)
{
    asm("{\n.reg .b32 rest;\nadd.cc.u32 rest, %1, %2;\naddc.u32 %0, %0, %0;\n}"
        : "+r"(bits)
        : "r"(x), "r"(0u - below));
}
/* Byte n of the result: that of the eight of x and y which digit n of the selector, a hexadecimal number, says; 8 more:
 * eight times its highest bit. */
VERB uint32_t permute_bytes(uint32_t x, uint32_t y, uint32_t selector)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(selector));
    return r;
}

/* The larger ones of the low and of the high halves. */
VERB uint32_t max_of_halves(uint32_t x, uint32_t y)
{
    uint32_t r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    return r;
}

/* ---- 2^x within 2^-22 of itself; below 2^-126 it is 0 ---- */

VERB float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* ---- 1 / x within 2^-23 of itself; below 2^-126 it is 0 ---- */

VERB float reciprocal_fast(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
#endif
