/* What the tiles of vjp and vjp_jvp on vectors share: see vec.h. */
#include <string.h>

#include "cpu/vec/vec.h"

/* If the edge of the band crosses a tile, products are cut into strips of this many rows. */
#define STRIP 24

/* NEAR_KEYS: keys whose rows stay in the L1 cache during the product that gives dQ. CHUNK: keys of a chunk. */
#define NEAR_KEYS 96
#define CHUNK 64

agi_patch REAL(agi_patch_of)(const agi_head *x, const agi_query_tile *tile,
                             const agi_backward_key_block *keys, int64_t index)
{
    const agi_band band = REAL(agi_band_at)(x, tile->i0, keys->j0);
    agi_patch patch = {.index = index, .i0 = index * PANEL, .ld = TILE_LD};
    int64_t to;
    patch.ni = agi_min(PANEL, tile->ni - patch.i0);
    patch.W = agi_round_up(patch.ni, x->k->lanes);
    patch.visible_from = patch.i0 + band.low;
    patch.visible_to = patch.i0 + patch.ni + band.high;
    agi_keys_of(band, patch.i0, patch.i0 + patch.ni, keys->nj, &patch.from, &to);
    patch.nj = agi_max(0, to - patch.from);
    patch.at = patch.from * TILE_LD + patch.i0;
    return patch;
}

void REAL(agi_patch_product)(const agi_head *x, const agi_patch *patch, agi_rows keys, int64_t D,
                             const real *panels, agi_rows queries, real *T, bool add)
{
    const agi_rows rows = {keys.p + patch->from * keys.ld, keys.ld};
    queries.p += patch->i0 * queries.ld;
    REAL(agi_score_product)
    (x, rows, patch->nj, D, panels + patch->index * D * PANEL, queries, patch->ni, T + patch->at, patch->ld,
     add);
}

static void clear_rows(real *T, const agi_patch *patch, int64_t from, int64_t to)
{
    for (int64_t j = from; j < to; j++) {
        memset(T + j * TILE_LD + patch->i0, 0, (size_t)patch->W * sizeof(real));
    }
}

void REAL(agi_clear_around)(real *T, const agi_patch *patch, int64_t nj)
{
    clear_rows(T, patch, agi_max(0, patch->visible_from - STRIP), agi_min(nj, patch->visible_from));
    clear_rows(T, patch, agi_max(0, patch->visible_to), agi_min(nj, patch->visible_to + STRIP));
}

agi_patch REAL(agi_next_chunk)(const agi_patch *patch, const agi_patch *previous)
{
    agi_patch chunk = *patch;
    if (previous != NULL) {
        chunk.from = previous->from + previous->nj;
    }
    chunk.nj = agi_min(CHUNK, patch->from + patch->nj - chunk.from);
    chunk.at = chunk.from * TILE_LD + chunk.i0;
    return chunk;
}

void REAL(agi_note_masked_keys)(agi_backward_scratch *s, const agi_patch *patch, int64_t nj)
{
    for (int64_t j = 0; j < nj; j++) {
        const bool inside = j >= patch->from && j < patch->from + patch->nj;
        const bool masked = !inside || s->panel_masked_keys[j];
        s->masked_keys[j] = (uint8_t)(masked && (patch->index == 0 || s->masked_keys[j]));
    }
}

agi_rows REAL(agi_visible_rows)(const agi_backward_scratch *s, const agi_head *x, agi_rows rows, int64_t nj,
                                real *zeroed)
{
    const bool none_masked = !x->has.pair_mask || memchr(s->masked_keys, 1, (size_t)nj) == NULL;
    return none_masked ? rows : REAL(agi_zero_masked_rows)(rows, nj, x->Dk_pad, s->masked_keys, zeroed);
}

void REAL(agi_add_key_gradient)(const agi_head *x, const agi_query_tile *tile,
                                const agi_backward_key_block *keys, const real *T, agi_rows A, int64_t width,
                                real *dK)
{
    const agi_band band = REAL(agi_band_at)(x, tile->i0, keys->j0);
    const int64_t strip = agi_inside(band, tile->ni, keys->nj) ? keys->nj : STRIP;
    for (int64_t j = 0; j < keys->nj; j += strip) {
        const int64_t n = agi_min(strip, keys->nj - j);
        int64_t from, to;
        agi_queries_of(band, j, j + n, tile->ni, &from, &to);
        if (from < to) {
            x->k->product(n, width, to - from, T + j * TILE_LD + from, TILE_LD, 1, A.p + from * A.ld, A.ld,
                          dK + j * width, width, true);
        }
    }
}

/* Takes NEAR_KEYS keys at a time, which stay in the L1 cache for all strips of queries. */
void REAL(agi_add_query_gradient)(const agi_head *x, const agi_query_tile *tile,
                                  const agi_backward_key_block *keys, const real *T, agi_rows B,
                                  int64_t width, real *dQ)
{
    const agi_band band = REAL(agi_band_at)(x, tile->i0, keys->j0);
    const int64_t strip = agi_inside(band, tile->ni, keys->nj) ? tile->ni : STRIP;
    for (int64_t j = 0; j < keys->nj; j += NEAR_KEYS) {
        const int64_t end = agi_min(j + NEAR_KEYS, keys->nj);
        for (int64_t i = 0; i < tile->ni; i += strip) {
            const int64_t n = agi_min(strip, tile->ni - i);
            int64_t from, to;
            agi_keys_of(band, i, i + n, keys->nj, &from, &to);
            from = agi_max(from, j);
            to = agi_min(to, end);
            if (from < to) {
                x->k->product(n, width, to - from, T + from * TILE_LD + i, 1, TILE_LD, B.p + from * B.ld,
                              B.ld, dQ + i * width, width, true);
            }
        }
    }
}
