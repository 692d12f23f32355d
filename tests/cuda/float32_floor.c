/* The range of float32 on tensor cores: 64 rows of a matrix share one power of two, and their numbers are pairs of
 * float16 (src/cuda/kernels/prepare.cu). What is 2^17 below the largest of its rows keeps its digits, what lies below
 * loses them one by one, and what is less than 2^-40 of it is lost: accepted, written down in docs/gpu.md, and held to
 * here, by emulation and on a GPU.
 *
 * With a window of one key each query sees the key of its own position: o is v, dv is d_o, to is tv, tdv is td_o, and
 * lse is the one score, so that each result shows how a matrix was read. */
#include <math.h>

#include "device.h"
#include "outputs.h"

enum { ROWS = 130, D = 16, BLOCK = 64 };

/* Row 0 of the tensor is 2^exponent, or zero: the other 63 rows of its block share its power of two. */
static void set_first_row(struct arrays *x, enum tensor t, double value)
{
    double *values = test_read(x, t);
    for (int c = 0; c < D; c++) {
        values[c] = value;
    }
    agc_arrays_write(x, t, values);
    free(values);
}

static void set_to_zero(struct arrays *x, enum tensor t)
{
    double zeros[ROWS * D] = {0};
    agc_arrays_write(x, t, zeros);
}

static double largest_of_block(const double *values, int row)
{
    double most = 0;
    for (int n = row / BLOCK * BLOCK * D; n < (row / BLOCK + 1) * BLOCK * D && n < ROWS * D; n++) {
        most = fmax(most, fabs(values[n]));
    }
    return most;
}

/* Where the floor is: what may be missing, and what must be. */
static double floor_of(double largest)
{
    return ldexp(largest, -39);
}

static int is_lost(double value, double largest)
{
    return fabs(value) < ldexp(largest, -41);
}

/* `to` must be `from` but for the floor. Returns how many numbers were lost. */
static int same_but_floor(const struct arrays *x, enum tensor from, enum tensor to, int exponent)
{
    double *wanted = test_read(x, from), *got = test_read(x, to);
    int lost = 0;
    for (int n = 0; n < ROWS * D; n++) {
        const double largest = largest_of_block(wanted, n / D);
        const double limit = floor_of(largest) + 1e-6 * fabs(wanted[n]);
        CHECK(fabs(got[n] - wanted[n]) <= limit, "2^%d: %s at row %d is %.9g instead of %.9g, limit %.2e",
              exponent, agc_tensor_info[to].name, n / D, got[n], wanted[n], limit);
        if (is_lost(wanted[n], largest)) {
            CHECK(got[n] == 0, "2^%d: %s at row %d is %.9g: the floor is lower than docs/gpu.md says",
                  exponent, agc_tensor_info[to].name, n / D, got[n]);
            lost++;
        }
    }
    free(wanted);
    free(got);
    return lost;
}

/* v, d_o, tv and td_o; no tangent of q and k, so that the tangents are these alone. */
static void check_values(int exponent)
{
    static const enum tensor pairs[][2] = {{T_V, T_O}, {T_D_O, T_DV}, {T_TV, T_TO}, {T_TD_O, T_TDV}};
    struct arrays x;
    make_arrays(&x, "h1 q130 k130 d16 f32 window=0,0", NULL, 11);
    set_to_zero(&x, T_TQ);
    set_to_zero(&x, T_TK);
    for (int n = 0; n < 4; n++) {
        set_first_row(&x, pairs[n][0], ldexp(1, exponent));
    }
    CHECK_OK(agc_arrays_run_all(&x));
    for (int n = 0; n < 4; n++) {
        const int lost = same_but_floor(&x, pairs[n][0], pairs[n][1], exponent);
        CHECK(exponent < 50 || lost >= (BLOCK - 1) * D, "2^%d: only %d numbers are below the floor", exponent,
              lost);
    }
    agc_arrays_destroy(&x);
}

/* The score of row i: its largest number of q or k is in row 0, where the other one is zero. */
static void check_scores(int exponent, enum tensor large, enum tensor zero)
{
    struct arrays x;
    make_arrays(&x, "h1 q130 k130 d16 f32 window=0,0", NULL, 12);
    set_first_row(&x, large, ldexp(1, exponent));
    set_first_row(&x, zero, 0);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    double *a = test_read(&x, large), *b = test_read(&x, zero), *lse = test_read(&x, T_LSE);
    for (int row = 0; row < ROWS; row++) {
        double score = 0, size = 0, floor_sum = 0;
        for (int c = 0; c < D; c++) {
            score += a[row * D + c] * b[row * D + c] / sqrt(D);
            size += fabs(a[row * D + c] * b[row * D + c]) / sqrt(D);
            floor_sum += fabs(b[row * D + c]) * floor_of(largest_of_block(a, row)) / sqrt(D);
        }
        CHECK(fabs(lse[row] - score) <= floor_sum + 1e-6 * (1 + size),
              "2^%d in %s: lse of row %d is %.9g instead of %.9g", exponent, agc_tensor_info[large].name, row,
              lse[row], score);
        CHECK(exponent < 50 || row == 0 || row >= BLOCK || lse[row] == 0,
              "2^%d in %s: lse of row %d is %.9g: the floor is lower than docs/gpu.md says", exponent,
              agc_tensor_info[large].name, row, lse[row]);
    }
    free(a);
    free(b);
    free(lse);
    agc_arrays_destroy(&x);
}

/* Scores of 1e4 have bits of 1e-3: in forward and in jvp, which may be kernels of different tables, they are the
 * same to the last one. */
static void check_same_scores(const char *text)
{
    struct arrays x;
    make_arrays(&x, text, NULL, 13);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    double *of_forward = test_read(&x, T_LSE);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    double *of_jvp = test_read(&x, T_LSE), most = 0;
    for (int64_t n = 0; n < x.count[T_LSE]; n++) {
        most = fmax(most, fabs(of_jvp[n]));
        CHECK(fabs(of_forward[n] - of_jvp[n]) < 1e-5,
              "'%s': row %d: the score is %.9g in forward, %.9g in jvp", text, (int)n, of_forward[n],
              of_jvp[n]);
    }
    CHECK(most > 1e4, "'%s': the largest score is %g", text, most);
    free(of_forward);
    free(of_jvp);
    agc_arrays_destroy(&x);
}

int main(void)
{
    static const int exponents[] = {0, 12, 17, 25, 33, 38, 41, 50, 60};
    for (size_t n = 0; n < sizeof exponents / sizeof exponents[0]; n++) {
        check_values(exponents[n]);
        check_scores(exponents[n], T_K, T_Q);
        check_scores(exponents[n], T_Q, T_K);
    }
    check_same_scores("h2 q300 k300 d64 f32 window=0,0 scale=1300");
    check_same_scores("h2 q300 k300 d128 f32 window=0,0 scale=900");
    return test_maps_summary();
}
