"""Trains a small causal transformer on sequences that are cut over processes, and compares its losses with those of one
process: torchrun --nproc-per-node 4 python/examples/ring_training.py [STEPS LENGTH]. Every position is to name the
first letter of its sequence. The gradient of a parameter on a rank is its share: the shares are summed."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm

from attngrad.torch import ring_attention, scaled_dot_product_attention, shard

BATCH, LETTERS, WIDTH, HEADS, KV_HEADS = 8, 16, 64, 4, 2
STEPS, LENGTH = (int(x) for x in sys.argv[1:] or (150, 101))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.positions = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH + 2 * WIDTH * KV_HEADS // HEADS) for _ in range(2))
        self.out, self.sinks = nn.Linear(WIDTH, LETTERS), nn.Parameter(torch.zeros(2, HEADS))

    def forward(self, tokens, positions, attend):
        x = self.letters(tokens) + self.positions(positions)
        for layer, sink in zip(self.layers, self.sinks, strict=True):
            heads = layer(layer_norm(x, (WIDTH,))).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            x = x + attend(q, k, v, is_causal=True, sink=sink).transpose(1, 2).flatten(2)
        return self.out(layer_norm(x, (WIDTH,)))


def train(cut, attend, total):
    """The losses. `cut` gives this process its positions of [batch, position], `total` sums over the processes."""
    torch.manual_seed(0)
    model, losses = Model(), []
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        tokens = torch.randint(LETTERS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(step))
        logits = model(cut(tokens), cut(torch.arange(LENGTH)[None]), attend)
        targets = cut(tokens[:, :1].expand_as(tokens)).flatten()
        loss = cross_entropy(logits.flatten(0, 1), targets, reduction="sum") / tokens.numel()
        optimiser.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            total(parameter.grad)
        optimiser.step()
        losses.append(total(loss.detach()).item())
    return losses


dist.init_process_group("gloo")
losses = train(lambda x: shard(x, dim=1), ring_attention, lambda x: dist.all_reduce(x) or x)
if dist.get_rank() == 0:
    one = train(lambda x: x, lambda *x, **y: scaled_dot_product_attention(*x, enable_gqa=True, **y), lambda x: x)
    print(*(f"step {n:4}: loss {losses[n]:.6f}, of one process {one[n]:.6f}" for n in range(0, STEPS, 10)), sep="\n")
    apart = max(abs(x - y) / y for x, y in zip(losses, one, strict=True))
    print(f"largest difference {apart:.1e}: {'ok' if apart < 1e-3 and losses[-1] < losses[0] else 'WRONG'}")
dist.destroy_process_group()
