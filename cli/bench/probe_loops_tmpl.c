/* The loops of probe.c for one instruction set: included once for each, with
 *     PROBE_TARGET       the attribute that enables the set
 *     PROBE_BYTES        the size of its vectors
 *     PROBE_NAME(loop)   the name of this set's loop
 * Every loop repeats its operations ROUNDS or FED_ROUNDS times on random operands and stores its state in out, so that
 * the compiler can remove nothing. The vectors are compiler extensions, so that one source works for every set. */

typedef int32_t PROBE_NAME(vec_i32) __attribute__((vector_size(PROBE_BYTES)));

#define PROBE_REAL float
#define PROBE_REAL_NAME(name) PROBE_NAME(name##_f32)
#define PROBE_FED fed_f32
#include "probe_reals_tmpl.c"

#define PROBE_REAL double
#define PROBE_REAL_NAME(name) PROBE_NAME(name##_f64)
#define PROBE_FED fed_f64
#include "probe_reals_tmpl.c"

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
