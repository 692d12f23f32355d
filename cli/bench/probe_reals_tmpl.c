/* The multiply-add loops of probe_loops_tmpl.c for one floating-point type: included twice by it, with
 *     PROBE_REAL              the type
 *     PROBE_REAL_NAME(name)   the name of this type's vector or loop in this instruction set
 *     PROBE_FED               the member of struct operands that has its factors */

typedef PROBE_REAL PROBE_REAL_NAME(vec) __attribute__((vector_size(PROBE_BYTES)));

#if defined(__aarch64__)
/* c += x d, d -= x c: an instruction adds to the register that it changes. This is a rotation, so that c and d stay
 * bounded, and their bits change every time. */
PROBE_TARGET static void PROBE_REAL_NAME(fma)(const struct operands *operands, void *out)
{
    const double *values = operands->values;
    PROBE_REAL_NAME(vec) c[CHAINS], d[CHAINS], x = {0};
    const int lanes = PROBE_BYTES / (int)sizeof(PROBE_REAL);
    for (int i = 0; i < lanes; i++) {
        for (int a = 0; a < CHAINS; a++) {
            c[a][i] = (PROBE_REAL)values[a * lanes + i];
            d[a][i] = -c[a][i];
        }
        x[i] = (PROBE_REAL)values[CHAINS * lanes + i];
    }
    for (int n = 0; n < ROUNDS; n++) {
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
            c[a] += x * d[a];
        }
        UNROLL for (int a = 0; a < CHAINS; a++)
        {
            d[a] -= x * c[a];
        }
    }
    for (int a = 0; a < CHAINS; a++) {
        c[a] += d[a];
    }
    memcpy(out, c, sizeof c);
}
#else
/* c = c x + y with |x| < 1, alternating between two x and y: c stays bounded, and its bits change every time. */
PROBE_TARGET static void PROBE_REAL_NAME(fma)(const struct operands *operands, void *out)
{
    const double *values = operands->values;
    PROBE_REAL_NAME(vec) c[CHAINS], x[2], y[2];
    const int lanes = PROBE_BYTES / (int)sizeof(PROBE_REAL);
    for (int i = 0; i < lanes; i++) {
        for (int a = 0; a < CHAINS; a++) {
            c[a][i] = (PROBE_REAL)values[a * lanes + i];
        }
        for (int a = 0; a < 2; a++) {
            x[a][i] = (PROBE_REAL)values[(CHAINS + a) * lanes + i];
            y[a][i] = (PROBE_REAL)values[(CHAINS + 2 + a) * lanes + i];
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
#endif

/* The inner loop of a matrix product: one factor per row of the block, another one per vector of a row. */
PROBE_TARGET static void PROBE_REAL_NAME(fed)(const struct operands *operands, void *out)
{
    enum { VECTORS = FED_VECTORS(PROBE_BYTES), LANES = PROBE_BYTES / (int)sizeof(PROBE_REAL) };
    PROBE_REAL_NAME(vec) c[FED_ROWS * VECTORS], b[VECTORS];
    memset(c, 0, sizeof c);
    for (int n = 0; n < FED_ROUNDS; n++) {
        const PROBE_REAL *const a =
            operands->PROBE_FED + n % LANES; /* varies, or the compiler could compute one round only */
        for (int s = 0; s < FED_STEPS; s++) {
            UNROLL for (int v = 0; v < VECTORS; v++)
            {
                memcpy(&b[v], operands->PROBE_FED + (s * VECTORS + v) * LANES, sizeof b[v]);
            }
            UNROLL for (int e = 0; e < FED_ROWS * VECTORS; e++)
            {
                c[e] += a[e / VECTORS * FED_STEPS + s] * b[e % VECTORS];
            }
        }
    }
    memcpy(out, c, sizeof c);
}

#undef PROBE_REAL
#undef PROBE_REAL_NAME
#undef PROBE_FED
