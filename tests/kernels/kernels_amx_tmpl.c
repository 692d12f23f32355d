/* Compares the AMX table with plain loops: operands, products, roundings and stages, with guards around what they
 * write; and checks that the caller's tile configuration is restored. */
#include "core/cpu_info.h"
#include "kernels_amx_given_tmpl.c"

/* ---- The configuration ---- */

/* begin saves the caller's configuration, end restores it; a caller without one has none afterwards. */
static void check_amx_configuration(void)
{
    amx_config none, ours, first, second, last;
    agi_amx_table.begin(&none);
    agi_amx_table.begin(&ours);
    CHECK(ours.palette == 1 && ours.rows[7] == AMX_ROWS && ours.row_bytes[7] == 64,
          "amx begin: no whole tiles");
    amx_config callers = ours;
    callers.rows[0] = 8;
    callers.row_bytes[3] = 32;
    agi_amx_table.end(&callers); /* now as if a caller had configured that */
    agi_amx_table.begin(&first);
    agi_amx_table.end(&first);
    agi_amx_table.begin(&second);
    CHECK(memcmp(&first, &callers, sizeof callers) == 0,
          "amx begin does not keep the caller's configuration");
    CHECK(memcmp(&second, &callers, sizeof callers) == 0,
          "amx end does not bring the caller's configuration back");
    agi_amx_table.end(&none);
    agi_amx_table.begin(&last);
    CHECK(none.palette == 0 && last.palette == 0, "amx end leaves a configuration to a caller without one");
    agi_amx_table.end(&last);
}

/* ---- The product ---- */

/* Leaves numbers in all tile registers, as an earlier product does. */
static void fill_amx_tiles(struct rng *r)
{
    struct guarded ab = random_bf16(r, 2 * AMX_AB), c = random_floats(r, 32 * 32, -2, 2);
    const amx_operand operand = {bf16_of(&ab), AMX_AB, 0, AMX_DEPTH};
    const amx_sums sums = amx_sums_by_rows(floats_of(&c), 32);
    agi_amx_table.product(2, 2, 1, &operand, &operand, &sums, true);
    check_and_free(&ab, "product");
    check_and_free(&c, "product");
}

/* tiles_m by tiles_n tiles of sums, in row-major or column-major order, with some room between rows or columns. */
static amx_sums random_sums(struct rng *r, int64_t tiles_m, int64_t tiles_n, float *p)
{
    return agc_rng_chance(r, 0.5) ? amx_sums_by_rows(p, 16 * (tiles_n + 1))
                                  : amx_sums_by_columns(p, 16 * (tiles_m + 1));
}

static void check_amx_product(struct rng *r)
{
    const int64_t tiles_m = agc_rng_range(r, 1, 7), tiles_n = agc_rng_range(r, 1, 7),
                  tiles_k = agc_rng_range(r, 1, 14);
    const bool add = agc_rng_chance(r, 0.5);
    const int64_t row = 32 * (tiles_k + agc_rng_range(r, 0, 2)),
                  size_c = AMX_C * (tiles_m + 1) * (tiles_n + 1);
    struct guarded a = random_bf16(r, 16 * tiles_m * row), b = random_bf16(r, tiles_n * tiles_k * AMX_AB);
    struct guarded c = random_floats(r, size_c, -2, 2), before = guarded_alloc(size_c, sizeof(float)),
                   wanted = guarded_alloc(size_c, sizeof(float)),
                   bound = guarded_alloc(size_c, sizeof(float));
    const amx_operand left = {bf16_of(&a), 16 * row, AMX_DEPTH, row};
    const amx_operand right = {bf16_of(&b), tiles_k * AMX_AB, AMX_AB, 0};
    const amx_sums sums = random_sums(r, tiles_m, tiles_n, floats_of(&c));
    struct faults faults = {0};
    amx_config caller;
    memcpy(floats_of(&before), floats_of(&c), before.bytes);
    agi_amx_table.begin(&caller);
    fill_amx_tiles(r);
    agi_amx_table.product(tiles_m, tiles_n, tiles_k, &left, &right, &sums, add);
    agi_amx_table.end(&caller);
    memcpy(floats_of(&wanted), floats_of(&before), before.bytes);
    memset(floats_of(&bound), 0, bound.bytes);
    for (int64_t e = 0; e < 16 * tiles_m * 16 * tiles_n; e++) {
        const int64_t m = e / (16 * tiles_n), n = e % (16 * tiles_n);
        const int64_t at = m / 16 * sums.stride_m + n / 16 * sums.stride_n + m % 16 * 16 + n % 16;
        double sum = add ? (double)floats_of(&before)[at] : 0, magnitude = fabs(sum);
        for (int64_t k = 0; k < 32 * tiles_k; k++) {
            const int64_t tile = n / 16 * right.stride_mn + k / 32 * right.stride_k,
                          pair = k % 32 / 2 * 32 + n % 16 * 2 + k % 2;
            const double term = bf16_at(left.p, m * row + k) * bf16_at(right.p, tile + pair);
            sum += term;
            magnitude += fabs(term);
        }
        floats_of(&wanted)[at] = (float)sum;
        floats_of(&bound)[at] = (float)(1.1e-6 * magnitude); /* includes the rounding of `wanted` to float */
    }
    for (int64_t at = 0; at < size_c; at++) {
        expect_near(&faults, at, (double)floats_of(&c)[at], (double)floats_of(&wanted)[at],
                    (double)floats_of(&bound)[at]);
    }
    report(&faults, "product");
    struct guarded *const arrays[] = {&a, &b, &c, &before, &wanted, &bound};
    for (int n = 0; n < 6; n++) {
        check_and_free(arrays[n], "product");
    }
}

static void check_amx(int rounds)
{
    if (!agi_cpu_supports(AG_ISA_AMX)) {
        printf("amx: not tested, this processor cannot run it\n");
        return;
    }
    check_amx_configuration();
    for (int n = 0; n < rounds; n++) {
        struct rng r;
        agc_rng_init(&r, (uint64_t)n, 99);
        check_amx_product(&r);
        check_amx_round_row(&r);
        check_amx_tile(&r, "transpose_to_vnni", 16, agi_amx_table.transpose_to_vnni, vnni_transposed_source);
        check_amx_tile(&r, "vnni_pairs_split16", 32, agi_amx_table.vnni_pairs_split16, split16_source);
        check_amx_tile(&r, "transpose_tile", 32, agi_amx_table.transpose_tile, transposed_source);
        check_amx_transpose_sums(&r);
        check_amx_rounding(&r);
        check_amx_store_transposed(&r, false);
        check_amx_store_transposed(&r, true);
        check_amx_store_rows(&r);
        check_amx_zero_masked_keys(&r);
        check_amx_mask_band(&r);
        check_amx_score_blocks(&r);
        check_amx_softmax(&r);
        check_amx_weights(&r);
        check_amx_softmax_tangent(&r);
        check_amx_gradients(&r);
        check_amx_gradient_tangents(&r);
        check_amx_given_stages(&r);
        check_amx_dots(&r);
    }
}
