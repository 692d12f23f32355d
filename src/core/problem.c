/* Defaults and validation of a problem: complete_x fills in the defaults of x and checks it. All messages about a bad
 * problem are made here, with the name and value of the field. Knows no attention formula. */
#include "core/problem.h"

#include <math.h>
#include <string.h>

#include "core/status.h"
#include "core/structs.h"

#define MAX_DIM 512

bool agi_product_fits(int64_t a, int64_t b, int64_t c, int64_t d, int64_t limit)
{
    const int64_t factors[4] = {a, b, c, d};
    int64_t room = limit;
    for (int f = 0; f < 4; f++) {
        if (factors[f] == 0) {
            return true;
        }
        room /= factors[f];
    }
    return room > 0;
}

/* Without divisions, as every call of a map lays out its workspace by it. */
int64_t agi_saturating_product(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t product;
    if (!__builtin_mul_overflow(a, b, &product) && !__builtin_mul_overflow(product, c, &product) &&
        !__builtin_mul_overflow(product, d, &product)) {
        return product;
    }
    return a == 0 || b == 0 || c == 0 || d == 0 ? 0 : INT64_MAX;
}

static ag_status bad_integer(const char *field, int64_t value, const char *rule)
{
    return agi_fail_field(AG_INVALID_PROBLEM, field, "%s is %lld: %s", field, (long long)value, rule);
}

static ag_status bad_number(const char *field, double value, const char *rule)
{
    return agi_fail_field(AG_INVALID_PROBLEM, field, "%s is %g: %s", field, value, rule);
}

static ag_status check_flags(const ag_problem *p)
{
    if (agi_has(p, AG_PAGED)) {
        return agi_fail_field(AG_UNSUPPORTED, "flags",
                              "flags: AG_PAGED is reserved for a page table of K and V");
    }
    if (p->flags & ~(uint32_t)AGI_ALL_FLAGS) {
        return agi_fail_field(AG_INVALID_PROBLEM, "flags", "flags is 0x%lx: unknown bits 0x%lx",
                              (unsigned long)p->flags, (unsigned long)(p->flags & ~(uint32_t)AGI_ALL_FLAGS));
    }
    if (agi_has(p, AG_ALIBI) && agi_has(p, AG_SLOPES)) {
        return agi_fail_field(AG_INVALID_PROBLEM, "flags",
                              "flags: AG_ALIBI (default slopes) and AG_SLOPES exclude each other");
    }
    if (p->reserved != 0) {
        return bad_integer("reserved", p->reserved, "must be zero");
    }
    if (p->align != AG_ALIGN_TOP_LEFT && p->align != AG_ALIGN_BOTTOM_RIGHT) {
        return bad_integer("align", p->align, "must be AG_ALIGN_TOP_LEFT or AG_ALIGN_BOTTOM_RIGHT");
    }
    return AG_OK;
}

static ag_status check_dtype(const char *field, ag_dtype dtype)
{
    if (dtype == AG_F8_E4M3 || dtype == AG_F8_E5M2) {
        return agi_fail_field(AG_UNSUPPORTED, field, "%s is %d: 8-bit floats are reserved", field,
                              (int)dtype);
    }
    if (ag_dtype_size(dtype) == 0) {
        return bad_integer(field, dtype, "must be AG_F64, AG_F32, AG_F16 or AG_BF16");
    }
    return AG_OK;
}

/* A dtype that defaults to the problem's; float32 is also allowed if that has 16 bits. */
static ag_status complete_wider(const char *field, ag_dtype *wider, ag_dtype dtype)
{
    if (*wider == 0) {
        *wider = dtype;
    }
    const ag_status status = check_dtype(field, *wider);
    if (status != AG_OK) {
        return status;
    }
    if (*wider != dtype && !(*wider == AG_F32 && dtype != AG_F64)) {
        return agi_fail_field(AG_INVALID_PROBLEM, field, "%s is %s: for dtype %s it must be %s%s", field,
                              ag_dtype_name(*wider), ag_dtype_name(dtype), ag_dtype_name(dtype),
                              dtype == AG_F16 || dtype == AG_BF16 ? " or f32" : "");
    }
    return AG_OK;
}

static ag_status complete_dtypes(ag_problem *p)
{
    ag_status status = check_dtype("dtype", p->dtype);
    if (status == AG_OK) {
        status = complete_wider("out_dtype", &p->out_dtype, p->dtype);
    }
    if (status == AG_OK) {
        status = complete_wider("grad_dtype", &p->grad_dtype, p->dtype);
    }
    if (status == AG_OK) {
        status = complete_wider("aux_dtype", &p->aux_dtype, p->dtype);
    }
    return status;
}

static ag_status check_range(const char *field, int64_t value, int64_t min, int64_t max)
{
    if (value < min || value > max) {
        return agi_fail_field(AG_INVALID_PROBLEM, field, "%s is %lld: must be from %lld to %lld", field,
                              (long long)value, (long long)min, (long long)max);
    }
    return AG_OK;
}

static ag_status complete_sizes(ag_problem *p)
{
    p->kv_heads = p->kv_heads == 0 ? p->heads : p->kv_heads;
    p->dim_v = p->dim_v == 0 ? p->dim_qk : p->dim_v;
    const struct {
        const char *field;
        int64_t value, min, max;
    } ranges[] = {
        {"batch", p->batch, 0, UINT32_MAX},
        {"heads", p->heads, 1, UINT32_MAX},
        {"kv_heads", p->kv_heads, 1, UINT32_MAX},
        {"q_len", p->q_len, 0, AGI_MAX_POSITION},
        {"kv_len", p->kv_len, 0, AGI_MAX_POSITION},
        {"dim_qk", p->dim_qk, 1, MAX_DIM},
        {"dim_v", p->dim_v, 1, MAX_DIM},
    };
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        const ag_status status = check_range(ranges[r].field, ranges[r].value, ranges[r].min, ranges[r].max);
        if (status != AG_OK) {
            return status;
        }
    }
    if (p->heads % p->kv_heads != 0) {
        return agi_fail_field(AG_INVALID_PROBLEM, "kv_heads",
                              "heads is %lld: must be a multiple of kv_heads, %lld", (long long)p->heads,
                              (long long)p->kv_heads);
    }
    return check_range("head_offset", p->head_offset, 0, UINT32_MAX - p->heads + 1);
}

static ag_status complete_totals(ag_problem *p)
{
    if (!agi_has(p, AG_PACKED)) {
        p->q_total = p->kv_total = 0;
        return AG_OK;
    }
    ag_status status = check_range("q_total", p->q_total, 0, AGI_MAX_POSITION);
    if (status == AG_OK) {
        status = check_range("kv_total", p->kv_total, 0, AGI_MAX_POSITION);
    }
    if (status == AG_OK && p->q_len > p->q_total) {
        status = bad_integer("q_len", p->q_len, "the longest packed sequence cannot exceed q_total");
    }
    if (status == AG_OK && p->kv_len > p->kv_total) {
        status = bad_integer("kv_len", p->kv_len, "the longest packed sequence cannot exceed kv_total");
    }
    return status;
}

/* The sizes of the arrays in bytes, at most 8 per element, must fit an int64_t. */
static ag_status check_products(const ag_problem *p)
{
    const int64_t limit = INT64_MAX / 8;
    const bool packed = agi_has(p, AG_PACKED);
    const int64_t batch = packed ? 1 : p->batch;
    const int64_t q_rows = packed ? p->q_total : p->q_len;
    const int64_t k_rows = packed ? p->kv_total : p->kv_len;
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    /* Also checked without the lengths, which may be 0. */
    if (!agi_product_fits(p->batch, p->heads, 1, dim, limit)) {
        return agi_fail_field(AG_INVALID_PROBLEM, "heads",
                              "batch %lld x heads %lld x channels %lld overflows", (long long)p->batch,
                              (long long)p->heads, (long long)dim);
    }
    if (!agi_product_fits(batch, p->heads, q_rows, dim, limit)) {
        const char *rows = packed ? "q_total" : "q_len";
        return agi_fail_field(AG_INVALID_PROBLEM, rows,
                              "batch %lld x heads %lld x %s %lld x channels %lld overflows", (long long)batch,
                              (long long)p->heads, rows, (long long)q_rows, (long long)dim);
    }
    if (!agi_product_fits(batch, p->kv_heads, k_rows, dim, limit)) {
        const char *rows = packed ? "kv_total" : "kv_len";
        return agi_fail_field(
            AG_INVALID_PROBLEM, rows, "batch %lld x kv_heads %lld x %s %lld x channels %lld overflows",
            (long long)batch, (long long)p->kv_heads, rows, (long long)k_rows, (long long)dim);
    }
    return AG_OK;
}

/* The size of a bias or mask: each axis must be 1 or full. */
static ag_status complete_broadcast(const ag_problem *p, uint32_t flag, const char *field, int64_t size[4])
{
    const int64_t full[4] = {p->batch, p->heads, p->q_len, p->kv_len};
    static const char *const axes[4] = {"batch", "heads", "q_len", "kv_len"};
    if (!agi_has(p, flag)) {
        memset(size, 0, 4 * sizeof size[0]);
        return AG_OK;
    }
    for (int axis = 0; axis < 4; axis++) {
        if (size[axis] != 1 && size[axis] != full[axis]) {
            return agi_fail_field(AG_INVALID_PROBLEM, field, "%s[%d] is %lld: must be 1 or %s, %lld", field,
                                  axis, (long long)size[axis], axes[axis], (long long)full[axis]);
        }
    }
    if (!agi_product_fits(size[0], size[1], size[2], size[3], INT64_MAX / 8)) {
        return agi_fail_field(AG_INVALID_PROBLEM, field, "%s is %lld x %lld x %lld x %lld: overflows", field,
                              (long long)size[0], (long long)size[1], (long long)size[2], (long long)size[3]);
    }
    return AG_OK;
}

static ag_status complete_table(ag_problem *p)
{
    if (!agi_has(p, AG_TABLE)) {
        p->table_radius = p->table_buckets = p->table_heads = 0;
        p->buckets = NULL;
        return AG_OK;
    }
    ag_status status = check_range("table_radius", p->table_radius, 0, INT64_C(1) << 30);
    if (status != AG_OK) {
        return status;
    }
    p->table_buckets = p->table_buckets == 0 ? 2 * p->table_radius + 1 : p->table_buckets;
    p->table_heads = p->table_heads == 0 ? p->heads : p->table_heads;
    status = check_range("table_buckets", p->table_buckets, 1, INT32_MAX);
    if (status == AG_OK && p->table_heads != 1 && p->table_heads != p->heads) {
        status = bad_integer("table_heads", p->table_heads, "must be 1 or heads");
    }
    return status;
}

static ag_status complete_slopes(ag_problem *p)
{
    if (agi_has(p, AG_ALIBI) && p->head_offset != 0) {
        return bad_integer("head_offset", p->head_offset,
                           "ALiBi's default slopes need all heads: give the slopes");
    }
    if (!agi_has(p, AG_SLOPES)) {
        p->alibi_slopes = NULL;
    }
    return AG_OK;
}

static ag_status check_buckets(const ag_problem *p)
{
    const int64_t n = 2 * p->table_radius + 1;
    if (p->buckets == NULL) {
        return p->table_buckets == n
                   ? AG_OK
                   : agi_fail_field(
                         AG_INVALID_PROBLEM, "table_buckets",
                         "table_buckets is %lld: without a buckets array it must be 2 table_radius + 1, %lld",
                         (long long)p->table_buckets, (long long)n);
    }
    for (int64_t r = 0; r < n; r++) {
        if (p->buckets[r] < 0 || p->buckets[r] >= p->table_buckets) {
            return agi_fail_field(AG_INVALID_PROBLEM, "buckets",
                                  "buckets[%lld] is %ld: must be from 0 to table_buckets - 1, %lld",
                                  (long long)r, (long)p->buckets[r], (long long)p->table_buckets - 1);
        }
    }
    return AG_OK;
}

static ag_status check_slopes(const ag_problem *p)
{
    if (p->alibi_slopes == NULL) {
        return agi_fail_field(AG_INVALID_PROBLEM, "alibi_slopes",
                              "alibi_slopes is NULL: AG_SLOPES needs one slope per head");
    }
    for (int64_t h = 0; h < p->heads; h++) {
        if (!isfinite(p->alibi_slopes[h])) {
            return agi_fail_field(AG_INVALID_PROBLEM, "alibi_slopes",
                                  "alibi_slopes[%lld] is %g: must be finite", (long long)h,
                                  p->alibi_slopes[h]);
        }
    }
    return AG_OK;
}

static ag_status complete_window(ag_problem *p)
{
    if (!agi_has(p, AG_WINDOW)) {
        p->window_left = p->window_right = -1;
        return AG_OK;
    }
    if (p->window_left < -1) {
        return bad_integer("window_left", p->window_left, "must be -1 (unbounded) or more");
    }
    if (p->window_right < -1) {
        return bad_integer("window_right", p->window_right, "must be -1 (unbounded) or more");
    }
    /* A window wider than the distance of any two positions is no limit. */
    p->window_left = p->window_left > 8 * AGI_MAX_POSITION ? -1 : p->window_left;
    p->window_right = p->window_right > 8 * AGI_MAX_POSITION ? -1 : p->window_right;
    return AG_OK;
}

static ag_status complete_constants(ag_problem *p)
{
    if (!agi_has(p, AG_SCALE)) {
        p->scale = 1 / sqrt((double)p->dim_qk);
    }
    if (!isfinite(p->scale)) {
        return bad_number("scale", p->scale, "must be finite");
    }
    if (!isfinite(p->softcap) || p->softcap < 0) {
        return bad_number("softcap", p->softcap, "must be finite and not negative (0 = none)");
    }
    if (!(p->dropout >= 0 && p->dropout < 1)) {
        return bad_number("dropout", p->dropout, "must be at least 0 and less than 1");
    }
    return AG_OK;
}

ag_status agi_problem_complete(ag_problem *complete, const ag_problem *given)
{
    ag_problem p;
    ag_status status = agi_read_struct(&p, sizeof p, given, "problem", AG_INVALID_PROBLEM);
    ag_status (*const in_place[])(ag_problem *) = {complete_dtypes,   complete_sizes,  complete_totals,
                                                   complete_table,    complete_slopes, complete_window,
                                                   complete_constants};
    if (status == AG_OK) {
        status = check_flags(&p);
    }
    for (size_t c = 0; c < sizeof in_place / sizeof in_place[0] && status == AG_OK; c++) {
        status = in_place[c](&p);
    }
    if (status == AG_OK) {
        status = check_products(&p);
    }
    if (status == AG_OK) {
        status = complete_broadcast(&p, AG_BIAS, "bias_size", p.bias_size);
    }
    if (status == AG_OK) {
        status = complete_broadcast(&p, AG_MASK, "mask_size", p.mask_size);
    }
    if (status == AG_OK) {
        p.struct_size = sizeof p;
        *complete = p;
    }
    return status;
}

ag_status agi_problem_check_arrays(const ag_problem *p)
{
    ag_status status = agi_has(p, AG_TABLE) ? check_buckets(p) : AG_OK;
    if (status == AG_OK && agi_has(p, AG_SLOPES)) {
        status = check_slopes(p);
    }
    return status;
}
