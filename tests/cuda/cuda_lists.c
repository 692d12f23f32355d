/* Lists in host memory on their way to the device: forward copies them in portions, as parameters of a kernel that the
 * fake driver runs; lists that are on the device are not copied. */
#include "fake.h"

#include "cuda/params.h"

enum { LISTS = 4 };

/* Non-negative, ascending if the list is one of packed offsets. */
static int64_t *make_list(int64_t count, int64_t first, int64_t step)
{
    int64_t *list = test_alloc(count, sizeof *list);
    for (int64_t n = 0; n < count; n++) {
        list[n] = step > 0 ? n * step : (first + n) % 9;
    }
    return list;
}

/* A batch with all lists that it can have; `launches` copy them. */
static void portions(int64_t batch, bool packed, int launches)
{
    struct fake_driver *fake = fake_state();
    struct device_call x;
    char text[96];
    snprintf(text, sizeof text, packed ? "b%lld q8 d16 f32 packed=%lld,%lld" : "b%lld q8 d16 f32",
             (long long)batch, (long long)batch, (long long)batch);
    call_begin(&x, text, 1);
    const int64_t count = packed ? batch + 1 : batch;
    int64_t *lists[LISTS];
    for (int n = 0; n < LISTS; n++) {
        lists[n] = make_list(n < 2 ? count : batch, n, packed && n < 2);
    }
    *(packed ? &x.a.q_packed : &x.a.q_lengths) = lists[0];
    *(packed ? &x.a.k_packed : &x.a.kv_lengths) = lists[1];
    x.a.q_offsets = lists[2];
    x.a.k_offsets = lists[3];
    const int before = atomic_load(&fake->uploads);
    CHECK_OK(call_forward(&x, NULL));
    CHECK(atomic_load(&fake->uploads) - before == launches, "'%s': %d launches instead of %d", text,
          atomic_load(&fake->uploads) - before, launches);
    const int64_t *at = call_lists(&x);
    for (int n = 0; n < LISTS; n++) {
        const int64_t words = n < 2 ? count : batch;
        CHECK(memcmp(at, lists[n], (size_t)words * sizeof at[0]) == 0, "'%s': list %d has other values", text,
              n);
        at += words;
        free(lists[n]);
    }
    call_end(&x);
}

static void nothing_to_copy(void)
{
    struct fake_driver *fake = fake_state();
    struct device_call x;
    call_begin(&x, "b2 q8 d16 f32 dropout=0.5", 0);
    const int before = atomic_load(&fake->uploads);
    CHECK_OK(call_forward(&x, NULL));
    x.a.q_lengths_device = x.a.kv_lengths_device = x.a.q_offsets_device = x.a.k_offsets_device =
        device_memory(&x, 0, CALL_BYTES);
    x.a.seed_device = device_memory(&x, 0, CALL_BYTES);
    CHECK_OK(call_forward(&x, NULL));
    CHECK_INT(atomic_load(&fake->uploads), before);
    call_end(&x);
}

int main(void)
{
    _Static_assert(AGI_CUDA_UPLOAD == 448, "the numbers of launches below count with it");
    portions(1, false, 1);
    portions(112, false, 1);
    portions(113, false, 2);
    portions(111, true, 1);
    portions(112, true, 2);
    portions(600, true, 6);
    nothing_to_copy();
    return test_summary();
}
