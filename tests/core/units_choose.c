/* The choice of a backend, from lists of made-up backends. */
#include "core/choose.h"
#include "core/status.h"
#include "test.h"

#include <string.h>

/* Values that no real backend uses. */
enum {
    FAST = 101,
    SLOW = 102,
    PLAIN = 103,
    DEVICE = 104,
    FAST_ISA = 201,
    FAST_ISA_ABSENT = 202,
    FAST_ISA_NOT_BUILT_IN = 203,
    SLOW_ISA = 204,
    DEVICE_ISA = 205
};

static ag_status answer; /* what FAST's accept returns */
static int accepted, destroyed;

static ag_status accept_fast(ag_plan *plan)
{
    accepted++;
    plan->backend_data = &accepted;
    return answer == AG_OK ? AG_OK : agi_fail_field(answer, "dim_qk", "the fast one says %d", (int)answer);
}

static void destroy_fast(ag_plan *plan)
{
    destroyed += plan->backend_data == &accepted;
}

static ag_status accept_any(ag_plan *plan)
{
    (void)plan;
    return AG_OK;
}

static bool is_supported(ag_isa number)
{
    return number != FAST_ISA_ABSENT;
}

static const agi_isa fast_isas[] = {{FAST_ISA, "tensor", true, is_supported},
                                    {FAST_ISA_ABSENT, "sparse", true, is_supported},
                                    {FAST_ISA_NOT_BUILT_IN, "optical", false, is_supported}};
static const agi_isa slow_isas[] = {{SLOW_ISA, "vector", true, is_supported}};
static const agi_isa device_isas[] = {{DEVICE_ISA, "systolic", true, is_supported}};

static const agi_backend fast = {.id = FAST,
                                 .name = "fast",
                                 .isas = fast_isas,
                                 .n_isas = 3,
                                 .accept = accept_fast,
                                 .destroy = destroy_fast};
static const agi_backend slow = {
    .id = SLOW, .name = "slow", .isas = slow_isas, .n_isas = 1, .accept = accept_any};
static const agi_backend plain = {.id = PLAIN, .name = "plain", .accept = accept_any};
static const agi_backend on_device = {.id = DEVICE,
                                      .name = "device",
                                      .abilities = AGI_ON_DEVICE,
                                      .isas = device_isas,
                                      .n_isas = 1,
                                      .accept = accept_any};
static const agi_backend *const list[] = {&on_device, &fast, &slow, &plain, NULL};

/* One choice: what the backend FAST answers, which backend the options name, the status and backend expected. */
typedef struct {
    const char *what;
    ag_status fast_says;
    agi_request request;
    ag_status status;
    const agi_backend *backend; /* the plan's, or NULL if none accepted */
    ag_isa isa;
    const char *field, *says; /* of a refusal */
} choice;

static const choice choices[] = {
    {"AUTO takes the first", AG_OK, {0, 0, NULL}, AG_OK, &fast, 0, NULL, NULL},
    {"AUTO skips one that is not available", AGI_NOT_AVAILABLE, {0, 0, NULL}, AG_OK, &slow, 0, NULL, NULL},
    {"AUTO reports what the first refuses",
     AG_UNSUPPORTED,
     {0, 0, NULL},
     AG_UNSUPPORTED,
     NULL,
     0,
     "dim_qk",
     "the fast one says"},
    {"AUTO reports a bad problem",
     AG_INVALID_PROBLEM,
     {0, 0, NULL},
     AG_INVALID_PROBLEM,
     NULL,
     0,
     "dim_qk",
     "the fast one says"},
    {"by name", AG_OK, {PLAIN, 0, NULL}, AG_OK, &plain, 0, NULL, NULL},
    {"by name, not available",
     AGI_NOT_AVAILABLE,
     {FAST, 0, NULL},
     AG_UNSUPPORTED,
     NULL,
     0,
     "dim_qk",
     "the fast one says"},
    {"a device by name", AG_OK, {DEVICE, DEVICE_ISA, NULL}, AG_OK, &on_device, DEVICE_ISA, NULL, NULL},
    {"AUTO, a device's isa",
     AG_OK,
     {0, DEVICE_ISA, NULL},
     AG_UNSUPPORTED,
     NULL,
     0,
     "options.isa",
     "isa systolic is the device backend's, which runs only if"},
    {"AUTO, the environment's name of a device's isa",
     AG_OK,
     {0, 0, "systolic"},
     AG_OK,
     &fast,
     0,
     NULL,
     NULL},
    {"by name, not built in", AG_OK, {105, 0, NULL}, AG_UNSUPPORTED, NULL, 0, "options.backend", "not built"},
    {"an isa", AG_OK, {FAST, FAST_ISA, NULL}, AG_OK, &fast, FAST_ISA, NULL, NULL},
    {"AUTO, an isa of the second", AG_OK, {0, SLOW_ISA, NULL}, AG_OK, &slow, SLOW_ISA, NULL, NULL},
    {"AUTO, the environment's name of the second",
     AG_OK,
     {0, 0, "vector"},
     AG_OK,
     &slow,
     SLOW_ISA,
     NULL,
     NULL},
    {"an option takes precedence over the environment",
     AG_OK,
     {0, FAST_ISA, "vector"},
     AG_OK,
     &fast,
     FAST_ISA,
     NULL,
     NULL},
    {"another backend's isa",
     AG_OK,
     {SLOW, FAST_ISA, NULL},
     AG_UNSUPPORTED,
     NULL,
     0,
     "options.isa",
     "isa tensor is the fast backend's: the slow has others"},
    {"an isa for a backend without any",
     AG_OK,
     {PLAIN, SLOW_ISA, NULL},
     AG_UNSUPPORTED,
     NULL,
     0,
     "options.isa",
     "isa vector is the slow backend's: the plain has none"},
    {"the environment's name for a backend without any",
     AG_OK,
     {PLAIN, 0, "vector"},
     AG_OK,
     &plain,
     0,
     NULL,
     NULL},
    {"no such name, for a backend without any",
     AG_OK,
     {PLAIN, 0, "abacus"},
     AG_INVALID_PROBLEM,
     NULL,
     0,
     "ATTNGRAD_ISA",
     "'abacus'"},
    {"the environment's name of another backend",
     AG_OK,
     {SLOW, 0, "tensor"},
     AG_UNSUPPORTED,
     NULL,
     0,
     "ATTNGRAD_ISA",
     "isa tensor is the fast backend's"},
    {"no such name", AG_OK, {0, 0, "abacus"}, AG_INVALID_PROBLEM, NULL, 0, "ATTNGRAD_ISA", "'abacus'"},
    {"no such value", AG_OK, {0, 999, NULL}, AG_INVALID_PROBLEM, NULL, 0, "options.isa", "999"},
    {"an isa that this machine lacks",
     AG_OK,
     {0, FAST_ISA_ABSENT, NULL},
     AG_UNSUPPORTED,
     NULL,
     0,
     "options.isa",
     "this machine does not have it"},
    {"an isa that is not built in",
     AG_OK,
     {0, 0, "optical"},
     AG_UNSUPPORTED,
     NULL,
     0,
     "ATTNGRAD_ISA",
     "not built into this library"},
};

static void check_choice(const choice *x)
{
    ag_plan plan = {.threads = 1};
    answer = x->fast_says;
    accepted = destroyed = 0;
    const ag_status status = agi_choose_backend(&plan, list, &x->request);
    CHECK(status == x->status, "%s: status %d instead of %d: %s", x->what, (int)status, (int)x->status,
          ag_last_message());
    if (x->status == AG_OK) {
        CHECK(plan.backend == x->backend && plan.isa == x->isa, "%s: backend %s, isa %d", x->what,
              plan.backend == NULL ? "none" : plan.backend->name, (int)plan.isa);
    } else {
        CHECK(strcmp(ag_last_field(), x->field) == 0 && strstr(ag_last_message(), x->says) != NULL,
              "%s: field '%s', message '%s'", x->what, ag_last_field(), ag_last_message());
    }
    /* A backend that is not available (AGI_NOT_AVAILABLE) was destroyed and left nothing in the plan. */
    CHECK_INT(destroyed, x->fast_says == AGI_NOT_AVAILABLE ? accepted : 0);
    CHECK(x->fast_says != AGI_NOT_AVAILABLE || (plan.backend_data == NULL && plan.backend != &fast),
          "%s: it left something in the plan", x->what);
}

static void no_backend_is_available(void)
{
    const agi_backend *const alone[] = {&fast, NULL}, *const none[] = {NULL};
    const agi_request any = {AG_BACKEND_AUTO, AG_ISA_AUTO, NULL};
    ag_plan plan = {.threads = 1};
    answer = AGI_NOT_AVAILABLE;
    CHECK_INT(agi_choose_backend(&plan, alone, &any), AG_UNSUPPORTED);
    CHECK(strstr(ag_last_message(), "the fast one says") != NULL, "it says: %s", ag_last_message());
    CHECK_INT(agi_choose_backend(&plan, none, &any), AG_UNSUPPORTED);
    const agi_backend *const device_alone[] = {&on_device, NULL};
    CHECK_INT(agi_choose_backend(&plan, device_alone, &any), AG_UNSUPPORTED);
}

static void ids_and_names_are_unique(void)
{
    const agi_backend *specification = NULL;
    for (int i = 0; agi_backends[i] != NULL; i++) {
        const agi_backend *backend = agi_backends[i];
        CHECK(agi_backend_by_id(agi_backends, backend->id) == backend &&
                  agi_backend_by_name(agi_backends, backend->name) == backend,
              "%s: its id or name is not unique", backend->name);
        for (int n = 0; n < backend->n_isas; n++) {
            for (int j = 0; agi_backends[j] != NULL; j++) {
                for (int m = 0; m < agi_backends[j]->n_isas; m++) {
                    const agi_isa *a = &backend->isas[n], *b = &agi_backends[j]->isas[m];
                    CHECK(a == b || (a->id != b->id && strcmp(a->name, b->name) != 0),
                          "%s of %s has the value or the name of %s of %s", a->name, backend->name, b->name,
                          agi_backends[j]->name);
                }
            }
        }
        specification = backend == agi_specification ? backend : specification;
    }
    CHECK(specification != NULL && specification->merge != NULL && specification->trace != NULL,
          "the specification is not in the list, or lacks a function");
}

int main(void)
{
    for (size_t n = 0; n < sizeof choices / sizeof choices[0]; n++) {
        check_choice(&choices[n]);
    }
    no_backend_is_available();
    ids_and_names_are_unique();
    return test_summary();
}
