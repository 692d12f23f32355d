"""Training a one-step generative model with the JVP of an attention network.

Consistency-style models learn the mean velocity u(z, r, t) of a flow from noise (t = 1) to data (t = 0). It
satisfies u = v - (t - r) du/dt along the flow, and du/dt is a directional derivative of the network: one
torch.func.jvp along (v, 0, 1). The fused attention of PyTorch has no JVP; attngrad's gives it together
with the output. A sample is a set of points on a circle whose radius and centre vary, so the
points have to agree with each other."""

import argparse
import math

import torch
from torch import func, nn

from attngrad.torch import scaled_dot_product_attention

POINTS, WIDTH, HEADS = 16, 64, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Velocity(nn.Module):
    """u(z, r, t) for sets z [batch, points, 2] and times r, t [batch]."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, WIDTH)
        self.times = nn.Sequential(nn.Linear(2, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))

    def forward(self, z, r, t):
        x = self.lift(z) + self.times(torch.stack([r, t], dim=-1))[:, None]
        return self.head(self.blocks(x))


def circles(batch):
    angle = (torch.rand(batch, 1) + torch.arange(POINTS) / POINTS) * (2 * math.pi)
    radius, centre = 0.5 + torch.rand(batch, 1, 1), 0.3 * torch.randn(batch, 1, 2)
    return radius * torch.stack([angle.cos(), angle.sin()], dim=-1) + centre


def loss_of(model, batch):
    data, noise = circles(batch), torch.randn(batch, POINTS, 2)
    r, t = torch.rand(2, batch).sort(dim=0).values
    r = torch.where(torch.rand(batch) < 0.5, t, r)  # r = t for half of the batch: there u = v
    z = data + t[:, None, None] * (noise - data)
    v = noise - data
    u, du_dt = func.jvp(model, (z, r, t), (v, torch.zeros_like(r), torch.ones_like(t)))
    target = v - (t - r)[:, None, None] * du_dt
    error = (u - target.detach()).square().mean(dim=(1, 2))
    return (error / (error.detach() + 1e-2)).mean(), error.mean()


def out_of_round(model, samples=256):
    """How far the points of one-step samples are from a common circle, relative to its radius."""
    noise = torch.randn(samples, POINTS, 2)
    with torch.no_grad():
        points = noise - model(noise, torch.zeros(samples), torch.ones(samples))
    radii = (points - points.mean(dim=1, keepdim=True)).norm(dim=-1)
    return (radii.std(dim=1) / radii.mean(dim=1)).mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1500, help="steps of training; 1500 take a few minutes")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = Velocity()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    before = out_of_round(model)
    for step in range(1, steps + 1):
        loss, error = loss_of(model, 64)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step:5d}  error {error.item():.4f}  out of round {out_of_round(model):.3f}")
    after = out_of_round(model)
    verdict = "ok" if after < before else "WRONG"
    print(f"one-step samples: out of round {before:.3f} before, {after:.3f} after: {verdict}")


if __name__ == "__main__":
    main()
