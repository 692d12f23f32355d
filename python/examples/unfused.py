"""Attention as its formula says, in PyTorch's own operators: what the examples compare attngrad.torch with. Its
matrices of queries times keys grow with the square of the length."""

import torch


def unfused_attention(q, k, v, is_causal=False):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(dim=-1) @ v
