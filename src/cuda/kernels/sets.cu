/* What the kernels of some feature sets on Hopper read instead of working it out for each pair: the sum of ALiBi and
 * table by distance, the classes of a mask's tiles, and which keys some query sees. */
#include "cuda/kernels/hopper_mask.cuh"

/* ---- hopper_relative: a number for each j - i of each head ---- */

VERB float relative_term(const agi_cuda_params &p, const head_place &x, int distance) /* j - i */
{
    float sum = p.a.table.data == nullptr ? 0 : table_entry<float>(p, x, distance);
    if (p.slopes != nullptr) {
        const int64_t apart = distance + x.s.k_shift - x.s.shift;
        sum = add_rn(sum, mul_rn(-(float)p.slopes[x.h], (float)(apart < 0 ? -apart : apart)));
    }
    return sum;
}

KERNEL void __launch_bounds__(256) hopper_relative(const __grid_constant__ agi_hopper_before f)
{
    const int64_t head = blockIdx.x / f.p.w.blocks, step = f.p.w.blocks * blockDim.x;
    const head_place x = {find_sequence(f.p, head / f.p.H), (int)(head % f.p.H)};
    float *const to = f.x.relative + head * f.x.relative_width;
    const int64_t first = blockIdx.x % f.p.w.blocks * blockDim.x + threadIdx.x;
    for (int64_t at = first; at < f.x.relative_width; at += step) {
        to[at] = relative_term(f.p, x, (int)(at - f.p.Nq - AGI_HOPPER_PAD));
    }
}

/* ---- hopper_classes: what the tiles of the mask have ---- */

/* The part of the mask that a tile has, within its ends. */
struct mask_tile {
    const uint8_t *data;
    int rows, columns;
    int64_t row, column; /* strides */

    VERB mask_tile(const agi_cuda_params &p, const int (&n)[4], int64_t number)
    {
        const ag_tensor &t = p.a.mask;
        const int64_t key = number % n[3] * AGI_HOPPER_CLASS, query = number / n[3] % n[2] * AGI_HOPPER_CLASS;
        const int64_t head = number / n[3] / n[2];
        row = t.strides[2];
        column = t.strides[3];
        rows = row == 0 ? 1 : (int)min(p.Nq - query, (int64_t)AGI_HOPPER_CLASS);
        columns = (int)min(p.Nk - key, (int64_t)(column == 0 ? 1 : AGI_HOPPER_CLASS));
        data = (const uint8_t *)t.data + head / n[1] * t.strides[0] + head % n[1] * t.strides[1] +
               query * row + key * column;
    }
};

VERB uint32_t class_of_word(uint32_t x)
{
    const uint32_t seen = nonzero_bytes(x);
    return (seen != 0 ? AGI_TILE_SEEN : 0) | (seen != 0x80808080u ? AGI_TILE_HIDDEN : 0);
}
/* What a lane finds: 16 bytes of every eighth row, all loads at once. */
VERB uint32_t class_in_chunks(const mask_tile &tile, int lane)
{
    constexpr int LOADS = AGI_HOPPER_CLASS / 8;
    sixteen_bytes x[LOADS];
    uint32_t bits = 0;
    if (lane % 4 * 16 >= tile.columns) {
        return 0;
    }
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        const int r = min(lane / 4 + 8 * n, tile.rows - 1);
        x[n] = *(const sixteen_bytes *)(tile.data + r * tile.row + lane % 4 * 16);
    }
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        bits |= class_of_word(x[n].x) | class_of_word(x[n].y) | class_of_word(x[n].z) | class_of_word(x[n].w);
    }
    return bits;
}
VERB uint32_t class_by_bytes(const mask_tile &tile, int lane)
{
    uint32_t bits = 0;
    for (int c = lane; c < tile.columns; c += 32) {
#pragma unroll 8
        for (int r = 0; r < tile.rows; r++) {
            bits |= tile.data[r * tile.row + c * tile.column] != 0 ? AGI_TILE_SEEN : AGI_TILE_HIDDEN;
        }
    }
    return bits;
}

/* A warp per tile. */
KERNEL void __launch_bounds__(256) hopper_classes(const __grid_constant__ agi_hopper_before f)
{
    const int(&n)[4] = f.x.class_tiles;
    const int64_t number = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (number >= (int64_t)n[0] * n[1] * n[2] * n[3]) {
        return;
    }
    const mask_tile tile(f.p, n, number);
    const uint32_t bits =
        or_over_warp(f.x.mask_in_chunks ? class_in_chunks(tile, lane) : class_by_bytes(tile, lane));
    if (lane == 0) {
        f.x.classes[number] = (uint8_t)bits;
    }
}

/* ---- hopper_live: has the key a visible pair? ---- */

VERB bool is_visible(const agi_cuda_params &p, const head_place &x, int i, int j)
{
    const ag_tensor &mask = p.a.mask, &bias = p.a.bias;
    const bool masked =
        mask.data != nullptr && ((const uint8_t *)mask.data)[broadcast_at(mask, x, i, j)] == 0;
    return !masked && (bias.data == nullptr ||
                       load_aux(p.aux_dtype, bias.data, broadcast_at(bias, x, i, j), 0.0f) != -INFINITY);
}

/* Is an axis of mask and bias the same all along? */
VERB bool is_broadcast(const agi_cuda_params &p, int axis)
{
    return (p.a.mask.data == nullptr || p.a.mask.strides[axis] == 0) &&
           (p.a.bias.data == nullptr || p.a.bias.strides[axis] == 0);
}

/* Queries that some mask and bias may show to a key. */
struct query_range {
    int from, end;

    VERB query_range(const agi_cuda_params &p, const sequence &s, int j)
    {
        const int to = j < s.n_k ? min(j - s.low + 1, s.n_q) : 0;
        from = max(j - s.high, 0);
        end = is_broadcast(p, 2) ? min(to, from + 1) : to;
    }
};

/* Of a tile of AGI_HOPPER_CLASS queries: all loads at once. */
VERB bool sees_some(const agi_cuda_params &p, const head_place &x, const query_range &queries, int tile,
                    int j)
{
    constexpr int WARPS = 8;
    bool some = false;
#pragma unroll
    for (int n = 0; n < AGI_HOPPER_CLASS / WARPS; n++) {
        const int i = tile * AGI_HOPPER_CLASS + n * WARPS + (int)threadIdx.x / 32;
        some |= i >= queries.from && i < queries.end && is_visible(p, x, i, j);
    }
    return some;
}

/* Which of the block's 32 keys some warp has seen: each warp brings its own, and all learn of all. Two rows of words
 * take turns, so that nobody writes what others still read. */
struct seen_keys {
    enum { WARPS = 8 };
    uint32_t *words;
    uint32_t all;
    int turn;

    VERB void add(uint32_t of_warp)
    {
        uint32_t *const row = words + turn * WARPS;
        if (threadIdx.x % 32 == 0) {
            row[threadIdx.x / 32] = of_warp;
        }
        __syncthreads();
        for (int warp = 0; warp < WARPS; warp++) {
            all |= row[warp];
        }
        turn = 1 - turn;
    }
};

/* A lane per key; the warps share its queries, and stop when pairs have been found for all of the block's keys. Tiles
 * that the mask hides are left out, and of those that it shows nothing is read unless there is a bias. */
KERNEL void __launch_bounds__(256) hopper_live(const __grid_constant__ agi_hopper_before f)
{
    SHARED_MEMORY(shared);
    const agi_cuda_params &p = f.p;
    const int64_t index = blockIdx.x / p.w.blocks, heads = f.x.live_head == 0 ? 1 : p.Hk;
    const int64_t b = index / heads, kv_head = index % heads;
    const int lane = threadIdx.x % 32, first = (int)(blockIdx.x % p.w.blocks) * 32, j = first + lane;
    head_place x = {find_sequence(p, b), 0};
    const query_range queries(p, x.s, j), of_first(p, x.s, first),
        of_last(p, x.s, min(first + 31, x.s.n_k - 1));
    seen_keys seen = {(uint32_t *)shared, or_over_warp(j >= x.s.n_k ? 1u << lane : 0), 0};
    for (int n = 0; n < (is_broadcast(p, 1) ? 1 : p.group); n++) {
        x.h = (int)kv_head * p.group + n;
        for (int tile = of_first.from / AGI_HOPPER_CLASS;
             tile * AGI_HOPPER_CLASS < of_last.end && seen.all != ~0u; tile++) {
            const int begin = tile * AGI_HOPPER_CLASS, end = begin + AGI_HOPPER_CLASS;
            const int has = p.a.mask.data == nullptr
                                ? AGI_TILE_SEEN | AGI_TILE_HIDDEN
                                : class_of_keys<32>(f.x, classes_of(f.x, x.s, x.h, begin), first);
            const bool all = has == AGI_TILE_SEEN && p.a.bias.data == nullptr, known = seen.all >> lane & 1;
            const bool sees = all ? max(queries.from, begin) < min(queries.end, end)
                                  : has & AGI_TILE_SEEN && !known && sees_some(p, x, queries, tile, j);
            seen.add(or_over_warp(sees ? 1u << lane : 0));
        }
    }
    if (threadIdx.x < 32) {
        f.x.live[b * f.x.live_batch + kv_head * f.x.live_head + j] = (uint8_t)(seen.all >> lane & 1);
    }
}
