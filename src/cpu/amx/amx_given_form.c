/* Which products jvp_jvp, and jvp that is given o and lse, consist of: a function of which arrays a call has. */
#include "cpu/amx/amx_given.h"

/* The operands of a key, and of a query. Neighbours are chosen so that each sum of two products, such as tQ K^T + Q
 * tK^T, is one product over twice as many channels: [K | tK] times [tQ | Q], [sK | K] times [Q | sQ], [tK | sK] times
 * [sQ | tQ]. */
enum { K_0, TK_1, SK_2 };
enum { TQ_0, Q_1, SQ_2 };

/* The sum of operands `keys` times `queries` and keys + 1 times queries + 1; first, second: are they all there? */
static agi_amx_score_product both(int64_t keys, int64_t queries, bool first, bool second)
{
    return (agi_amx_score_product){keys + !first, queries + !first, first + second};
}

static void set_products(agi_amx_given_form *form, const ag_args *a)
{
    const bool tq = a->tq.data != NULL, tk = a->tk.data != NULL, sq = a->sq.data != NULL,
               sk = a->sk.data != NULL;
    form->product[P_TILE] = (agi_amx_score_product){K_0, Q_1, 1};
    form->product[U_TILE] = both(K_0, TQ_0, tq, tk);
    if (form->one_direction) {
        form->product[Z_TILE] = (agi_amx_score_product){TK_1, TQ_0, tk && tq};
    } else if (form->second) {
        form->product[Y_TILE] = both(SK_2, Q_1, sk, sq);
        form->product[Z_TILE] = both(TK_1, SQ_2, tk && sq, sk && tq);
    }
}

agi_amx_given_form agi_amx_given_form_of(const agi_call *call)
{
    const ag_args *a = &call->a;
    const ag_tensor *const V[MAX_VALUES] = {&a->v, &a->tv, &a->sv};
    agi_amx_given_form form = {.second = call->map == AGI_JVP_JVP};
    form.one_direction = form.second && REAL(agi_same_direction)(call);
    form.n_operands = form.second && !form.one_direction ? 4 : 2;
    form.n_weights = form.second && !form.one_direction ? 3 : 2;
    for (int64_t n = 0; n < MAX_VALUES; n++) {
        form.place[n] = n < form.n_weights && V[n]->data != NULL ? form.n_values++ : -1;
    }
    set_products(&form, a);
    return form;
}
