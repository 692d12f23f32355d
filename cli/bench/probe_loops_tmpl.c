/* The loops of probe.c for one instruction set: included once for each, with
 *     PROBE_TARGET       the attribute that enables the set
 *     PROBE_BYTES        the size of its vectors
 *     PROBE_NAME(loop)   the name of this set's loop
 * Every loop repeats its operations ROUNDS or FED_ROUNDS times on random operands and stores its state in out, so that
 * the compiler can remove nothing. The vectors are compiler extensions, so that one source works for every set. */

typedef float PROBE_NAME(vec_f32) __attribute__((vector_size(PROBE_BYTES)));
typedef double PROBE_NAME(vec_f64) __attribute__((vector_size(PROBE_BYTES)));
typedef int32_t PROBE_NAME(vec_i32) __attribute__((vector_size(PROBE_BYTES)));

/* c = c x + y with |x| < 1, alternating between two x and y: c stays bounded, and its bits change every time. */
PROBE_TARGET static void PROBE_NAME(fma_f32)(const struct operands *operands, void *out)
{
    const double *values = operands->values;
    PROBE_NAME(vec_f32) c[CHAINS], x[2], y[2];
    const int lanes = PROBE_BYTES / (int)sizeof(float);
    for (int i = 0; i < lanes; i++) {
        for (int a = 0; a < CHAINS; a++) {
            c[a][i] = (float)values[a * lanes + i];
        }
        for (int a = 0; a < 2; a++) {
            x[a][i] = (float)values[(CHAINS + a) * lanes + i];
            y[a][i] = (float)values[(CHAINS + 2 + a) * lanes + i];
        }
    }
    for (int n = 0; n < ROUNDS; n++) {
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
            c[a] = c[a] * x[0] + y[0];
        }
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
            c[a] = c[a] * x[1] + y[1];
        }
    }
    memcpy(out, c, sizeof c);
}

PROBE_TARGET static void PROBE_NAME(fma_f64)(const struct operands *operands, void *out)
{
    const double *values = operands->values;
    PROBE_NAME(vec_f64) c[CHAINS], x[2], y[2];
    const int lanes = PROBE_BYTES / (int)sizeof(double);
    memcpy(c, values, sizeof c);
    memcpy(x, values + CHAINS * lanes, sizeof x);
    memcpy(y, values + (CHAINS + 2) * lanes, sizeof y);
    for (int n = 0; n < ROUNDS; n++) {
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
            c[a] = c[a] * x[0] + y[0];
        }
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
            c[a] = c[a] * x[1] + y[1];
        }
    }
    memcpy(out, c, sizeof c);
}

/* The inner loop of a matrix product: one factor per row of the block, another one per vector of a row. */
PROBE_TARGET static void PROBE_NAME(fed_f32)(const struct operands *operands, void *out)
{
    enum { VECTORS = FED_VECTORS(PROBE_BYTES), LANES = PROBE_BYTES / (int)sizeof(float) };
    PROBE_NAME(vec_f32) c[FED_ROWS * VECTORS], b[VECTORS];
    memset(c, 0, sizeof c);
    for (int n = 0; n < FED_ROUNDS; n++) {
        const float *const a =
            operands->fed_f32 + n % LANES; /* varies, or the compiler could compute one round only */
        for (int s = 0; s < FED_STEPS; s++) {
            UNROLL for (int v = 0; v < VECTORS; v++)
            {
                memcpy(&b[v], operands->fed_f32 + (s * VECTORS + v) * LANES, sizeof b[v]);
            }
            UNROLL for (int e = 0; e < FED_ROWS * VECTORS; e++)
            {
                c[e] += a[e / VECTORS * FED_STEPS + s] * b[e % VECTORS];
            }
        }
    }
    memcpy(out, c, sizeof c);
}

PROBE_TARGET static void PROBE_NAME(fed_f64)(const struct operands *operands, void *out)
{
    enum { VECTORS = FED_VECTORS(PROBE_BYTES), LANES = PROBE_BYTES / (int)sizeof(double) };
    PROBE_NAME(vec_f64) c[FED_ROWS * VECTORS], b[VECTORS];
    memset(c, 0, sizeof c);
    for (int n = 0; n < FED_ROUNDS; n++) {
        const double *const a =
            operands->fed_f64 + n % LANES; /* varies, or the compiler could compute one round only */
        for (int s = 0; s < FED_STEPS; s++) {
            UNROLL for (int v = 0; v < VECTORS; v++)
            {
                memcpy(&b[v], operands->fed_f64 + (s * VECTORS + v) * LANES, sizeof b[v]);
            }
            UNROLL for (int e = 0; e < FED_ROWS * VECTORS; e++)
            {
                c[e] += a[e / VECTORS * FED_STEPS + s] * b[e % VECTORS];
            }
        }
    }
    memcpy(out, c, sizeof c);
}

/* x = 3 - 2^x stays between -5 and 3 and does not converge. */
PROBE_TARGET static void PROBE_NAME(exp2_f32)(const struct operands *operands, void *out)
{
    const double *values = operands->values;
    PROBE_NAME(vec_f32) x[CHAINS];
    const int lanes = PROBE_BYTES / (int)sizeof(float);
    for (int a = 0; a < CHAINS; a++) {
        for (int i = 0; i < lanes; i++) {
            x[a][i] = (float)values[a * lanes + i];
        }
    }
    for (int n = 0; n < ROUNDS; n++) {
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
#ifdef PROBE_EXP2
            x[a] = 3 - PROBE_EXP2(x[a]);
#else
            PROBE_NAME(vec_i32) integer = __builtin_convertvector(x[a], PROBE_NAME(vec_i32));
            integer += __builtin_convertvector(integer, PROBE_NAME(vec_f32)) > x[a]; /* floor: true is -1 */
            const PROBE_NAME(vec_f32) f = x[a] - __builtin_convertvector(integer, PROBE_NAME(vec_f32));
            const PROBE_NAME(vec_f32) p = EXP2_POLYNOMIAL(f);
            x[a] = 3 - (PROBE_NAME(vec_f32))((PROBE_NAME(vec_i32))p + integer * (1 << 23));
#endif
        }
    }
    memcpy(out, x, sizeof x);
}

#undef PROBE_TARGET
#undef PROBE_BYTES
#undef PROBE_NAME
#undef PROBE_EXP2
