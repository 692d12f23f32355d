/* Where a block is in the call: its sequence, heads and rows, and the matrices of that place. */
#pragma once
#include "cuda/kernels/features.cuh"
#include "cuda/kernels/tiles.cuh"

template <class T> struct block_place {
    head_place x; /* x.h: the query head of the tile */
    int kv_head, part;
    int block_row, warp_row; /* the first rows of the block and of the warp */
    int n_own, n_stream;     /* rows of both sides */
    int from, to;            /* the rows of the stream that are the block's */
    char *staging; /* shared memory of the warp's rows of the first matrix: free when all tiles are visited */
};

template <class Map, class T> VERB block_place<T> find_block(const agi_cuda_params &p)
{
    const agi_cuda_part &w = p.w;
    block_place<T> at;
    const int heads = Map::KEYS ? p.Hk : p.H;
    const int parts = w.parts, blocks = (int)w.blocks; /* a launch has fewer than 2^31 */
    const int index = (int)blockIdx.x / parts, head = index / blocks, block = index % blocks;
    at.part = (int)blockIdx.x % parts;
    at.x.s = find_sequence(p, head / heads);
    at.x.h = (int)(head % heads);
    at.kv_head = at.x.h;
    if (Map::KEYS) {
        at.x.h *= p.group;
    } else {
        at.kv_head /= p.group;
    }
    at.block_row = (Map::KEYS ? block : blocks - 1 - block) * T::BLOCK_ROWS; /* long causal rows first */
    at.warp_row = at.block_row + (int)threadIdx.x / 32 * T::WARP_ROWS;
    at.n_own = Map::KEYS ? at.x.s.n_k : at.x.s.n_q;
    at.n_stream = Map::KEYS ? at.x.s.n_q : at.x.s.n_k;
    at.from = 0;
    at.to = at.n_stream;
    return at;
}

VERB bool is_of_keys(int operand)
{
    return operand == AGI_CUDA_K || operand == AGI_CUDA_V || operand == AGI_CUDA_TK ||
           operand == AGI_CUDA_TV || operand == AGI_CUDA_SK || operand == AGI_CUDA_SV;
}

template <class F>
VERB head_matrix find_matrix(const agi_cuda_params &p, const sequence &s, int operand, int q_head,
                             int kv_head)
{
    const agi_cuda_matrix &m = p.m[operand];
    const bool keys = is_of_keys(operand);
    const int head = keys ? kv_head : q_head;
    const int64_t row = m.copied ? (keys ? s.k_copy : s.q_copy) : (keys ? s.k0 : s.q0);
    head_matrix x;
    x.data = (const char *)m.data;
    x.n = m.data == nullptr ? 0 : keys ? s.n_k : s.n_q;
    x.width = m.width;
    x.row = m.row * F::BYTES;
    x.plane = m.plane * F::BYTES;
    if (m.data != nullptr) {
        x.data += ((m.copied ? 0 : s.view * m.batch) + head * m.head + row * m.row) * F::BYTES;
    }
    x.inverse = m.inverse == nullptr
                    ? nullptr
                    : m.inverse + (head * (keys ? p.k_rows : p.q_rows) + row) / AGI_CUDA_SCALE_ROWS;
    return x;
}
