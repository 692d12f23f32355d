/* Tests of the AMX table: the stages of jvp_jvp, and of jvp that is given lse. */
#include "kernels_amx_stages_tmpl.c"

/* Their arguments: S, U, Y, Z, then per lane L, mu, smu; the results in VNNI; per lane the sums of the first two. */
struct given_trial {
    bool second, one_direction;
    float c, scale, z_scale;
    struct guarded in[7], vnni[3];
    float sum[2][32], excess[2][32];
};

static void draw_given_trial(struct rng *r, struct given_trial *t)
{
    t->second = agc_rng_chance(r, 0.7);
    t->one_direction = t->second && agc_rng_chance(r, 0.4);
    t->c = (float)(0.5 + agc_rng_uniform(r));
    t->scale = (float)(0.5 + agc_rng_uniform(r));
    t->z_scale = (float)(0.5 + agc_rng_uniform(r));
    for (int n = 0; n < 7; n++) {
        const double lowest = n == 0 ? -10 : n == 4 ? 3 : -2;
        t->in[n] = random_floats(r, n < 4 ? GROUP_KEYS * PANEL : PANEL, lowest, n == 4 ? 9 : 2);
    }
    for (int n = 0; n < 3; n++) {
        t->vnni[n] = guarded_alloc(2 * AMX_AB, sizeof(uint16_t));
    }
    for (int i = 0; i < 32; i++) {
        t->sum[0][i] = (float)(i + 1);
        t->sum[1][i] = (float)-i;
        t->excess[0][i] = t->excess[1][i] = 0.5F;
    }
}

static void release_given_trial(struct given_trial *t)
{
    for (int n = 0; n < 7; n++) {
        check_and_free(&t->in[n], "stages of given maps");
    }
    for (int n = 0; n < 3; n++) {
        check_and_free(&t->vnni[n], "stages of given maps");
    }
}

static void run_given_trial(struct rng *r, struct given_trial *t)
{
    struct amx_queued queued;
    const float *const scores[4] = {floats_of(&t->in[0]), floats_of(&t->in[1]), floats_of(&t->in[2]),
                                    floats_of(&t->in[3])};
    uint16_t *const vnni[3] = {bf16_of(&t->vnni[0]), bf16_of(&t->vnni[1]),
                               t->one_direction ? NULL : bf16_of(&t->vnni[2])};
    float *const sums[2] = {t->sum[0], t->sum[1]}, *const excess[2] = {t->excess[0], t->excess[1]};
    draw_amx_queued(r, &queued);
    if (t->second) {
        agi_amx_table.second_tangents(vnni, scores, t->c, t->scale, t->z_scale, floats_of(&t->in[4]),
                                      floats_of(&t->in[5]), floats_of(&t->in[6]), t->sum[0], t->excess[0],
                                      &queued.next);
    } else {
        agi_amx_table.given_tangents(vnni, scores, t->c, t->scale, floats_of(&t->in[4]), floats_of(&t->in[5]),
                                     sums, excess, &queued.next);
    }
    check_amx_queued(&queued, "stages of given maps: scores of the next group");
}

/* The results for key j and lane i; returns how many. */
static int given_wanted(const struct given_trial *t, int64_t j, int64_t i, double wanted[3])
{
    double x[4], at_lane[3];
    for (int n = 0; n < 4; n++) {
        x[n] = (double)floats_of(&t->in[n])[j * PANEL + i];
    }
    for (int n = 0; n < 3; n++) {
        at_lane[n] = (double)floats_of(&t->in[4 + n])[i];
    }
    const double p = exp2((double)t->c * x[0] - at_lane[0]);
    const double u = (double)t->scale * x[1] - at_lane[1], y = (double)t->scale * x[2] - at_lane[2];
    wanted[0] = t->second ? p * (u * y + (double)t->z_scale * x[3]) : p * u;
    wanted[1] = t->one_direction ? p * (u + y) : t->second ? p * y : p;
    wanted[2] = p * u;
    return t->second && !t->one_direction ? 3 : 2;
}

/* A result in VNNI, and its sum and excess if it has them. */
static void compare_given_sums(const struct given_trial *t, int n, struct faults *exact,
                               struct faults *rounded)
{
    for (int64_t i = 0; i < 32; i++) {
        const double before = n == 0 ? (double)(i + 1) : (double)-i;
        double sum = before, magnitude = 1 + fabs(before), wanted[3];
        for (int64_t j = 0; j < GROUP_KEYS; j++) {
            given_wanted(t, j, i, wanted);
            sum += wanted[n];
            magnitude += fabs(wanted[n]);
        }
        const double got = (double)t->sum[n][i];
        expect_near(exact, i, got, sum, AMX_SUM_ERROR * magnitude);
        expect_near(rounded, i, got + (double)t->excess[n][i],
                    before + 0.5 + vnni_sum(bf16_of(&t->vnni[n]), i), 2e-6 * magnitude);
    }
}

static void check_amx_given_stages(struct rng *r)
{
    struct given_trial t;
    struct faults weights = {0}, sums = {0}, rounded_sums = {0};
    draw_given_trial(r, &t);
    run_given_trial(r, &t);
    for (int64_t at = 0; at < GROUP_KEYS * 32; at++) {
        const int64_t j = at / 32, i = at % 32;
        double wanted[3];
        const int n_results = given_wanted(&t, j, i, wanted);
        for (int n = 0; n < n_results; n++) {
            const double p = exp2((double)t.c * (double)floats_of(&t.in[0])[j * PANEL + i] -
                                  (double)floats_of(&t.in[4])[i]);
            expect_near(&weights, at, bf16_at(bf16_of(&t.vnni[n]), vnni_index(j, i)), wanted[n],
                        AMX_WEIGHT_ERROR * fabs(wanted[n]) + 1e-5 * p);
        }
    }
    for (int n = 0; n < (t.second ? 1 : 2); n++) {
        compare_given_sums(&t, n, &sums, &rounded_sums);
    }
    report(&weights, "stages of given maps: weights");
    report(&sums, "stages of given maps: sums");
    report(&rounded_sums, "stages of given maps: sums of rounded weights");
    release_given_trial(&t);
}
