"""Training a one-step generative model with the JVP of an attention network.

MeanFlow models learn the mean velocity u(z, r, t) of a flow from noise (t = 1) to data (t = 0). It satisfies
u = v - (t - r) du/dt along the flow, and du/dt is a directional derivative of the network: one torch.func.jvp along
(v, 0, 1). The fused attention of PyTorch has no JVP; attngrad's gives it together with the output. A sample is a
set of points on a circle whose radius and centre vary, so the points have to agree with each other.

--compare measures the same steps with attngrad's attention and with the unfused formula, each in a process of its
own."""

import math
import statistics
from typing import NamedTuple

import torch
from block import Block
from command_line import Parser, parse_with_device, run, whole_number
from measured import START, in_own_process, in_words, measured, now
from torch import func, nn
from unfused import unfused_attention

from attngrad.torch import scaled_dot_product_attention

ATTENTIONS = {"attngrad": scaled_dot_product_attention, "unfused": unfused_attention}
STEPS, COMPARED_STEPS = 300, 5
LIMITS = {"float32": 1e-4, "bfloat16": 1e-2}  # of the difference of two squared errors, relative


class Sizes(NamedTuple):
    points: int
    width: int
    heads: int
    layers: int
    batch: int


SIZES = {"cpu": Sizes(16, 64, 4, 2, 64), "cuda": Sizes(2048, 512, 8, 6, 4)}


class Velocity(nn.Module):
    """u(z, r, t) for sets z [batch, points, 2] and times r, t [batch]."""

    def __init__(self, sizes, attention):
        super().__init__()
        width = sizes.width
        self.lift = nn.Linear(2, width)
        self.times = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.Sequential(*(Block(width, sizes.heads, attention) for _ in range(sizes.layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, z, r, t):
        x = self.lift(z) + self.times(torch.stack([r, t], dim=-1))[:, None]
        return self.head(self.blocks(x))


def circles(batch, points, device):
    angle = (torch.rand(batch, 1, device=device) + torch.arange(points, device=device) / points) * (2 * math.pi)
    radius, centre = 0.5 + torch.rand(batch, 1, 1, device=device), 0.3 * torch.randn(batch, 1, 2, device=device)
    return radius * torch.stack([angle.cos(), angle.sin()], dim=-1) + centre


def loss_of(model, sizes, device):
    """MeanFlow's loss, in which each sample is weighted by its squared error, and the mean squared error."""
    data = circles(sizes.batch, sizes.points, device)
    noise = torch.randn_like(data)
    r, t = torch.rand(2, sizes.batch, device=device).sort(dim=0).values
    r = torch.where(torch.rand(sizes.batch, device=device) < 0.5, t, r)  # r = t for half of the batch: there u = v
    z = data + t[:, None, None] * (noise - data)
    v = noise - data
    u, du_dt = func.jvp(model, (z, r, t), (v, torch.zeros_like(r), torch.ones_like(t)))
    target = v - (t - r)[:, None, None] * du_dt
    error = (u - target.detach()).square().mean(dim=(1, 2))
    return (error / (error.detach() + 1e-2)).mean(), error.mean()


def training(attention, sizes, device, dtype, steps):
    """A new model, and a function that trains it by one step and returns the squared error before it."""
    torch.manual_seed(0)
    model = Velocity(sizes, ATTENTIONS[attention]).to(device)
    rate = 0.128 / sizes.width  # wide models diverge at the rate of narrow ones
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16", cache_enabled=False):
            loss, error = loss_of(model, sizes, device)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        return error.item()

    return model, step


def out_of_round(model, points, device):
    """How far the points of one-step samples are from a common circle, relative to its radius."""
    samples = max(16, 4096 // points)
    noise = torch.randn(samples, points, 2, device=device)
    with torch.no_grad():
        z = noise - model(noise, torch.zeros(samples, device=device), torch.ones(samples, device=device))
    radii = (z - z.mean(dim=1, keepdim=True)).norm(dim=-1)
    return (radii.std(dim=1) / radii.mean(dim=1)).mean().item()


def train(sizes, device, dtype, steps):
    model, step = training("attngrad", sizes, device, dtype, steps)
    before = out_of_round(model, sizes.points, device)
    for n in range(1, steps + 1):
        error = step()
        if n == 1 or n % max(1, steps // 10) == 0:
            current = out_of_round(model, sizes.points, device)
            print(f"step {n:5d}  error {error:.4f}  out of round {current:.3f}", flush=True)
    after = out_of_round(model, sizes.points, device)
    right = after < before
    print(f"one-step samples: out of round {before:.3f} before, {after:.3f} after: {'ok' if right else 'WRONG'}")
    return right


def measure(attention, sizes, device, dtype, steps):
    """Squared errors of the first steps, seconds of one, bytes."""

    def work(sizes, steps):
        step = training(attention, sizes, device, dtype, steps)[1]
        times, errors = [now(device)], []
        for _ in range(steps):
            errors.append(step())
            times.append(now(device))
        return errors, statistics.median(b - a for a, b in zip(times, times[1:]))

    small = sizes._replace(points=4, batch=1)
    (errors, seconds), size = measured(device, lambda: work(small, 2), lambda: work(sizes, steps))
    return errors, seconds, size


def compare(sizes, device, dtype, steps):
    results = {}
    print(f"{'':10}{'time per step':>13} {'peak memory':>14}   squared errors of the first and last of {steps} steps")
    for attention in ATTENTIONS:
        print(f"{attention:10}", end="", flush=True)
        results[attention] = in_own_process(
            measure, attention, sizes, device, dtype, steps, start=START[device]
        )
        if results[attention] is None:
            print(" out of memory")
            continue
        errors, seconds, size = results[attention]
        print(f"{in_words(seconds, size)}   {errors[0]:.6f} {errors[-1]:.6f}", flush=True)
    if None in results.values():
        print("nothing to compare: --points gives sets of other sizes")
        return results["attngrad"] is not None
    pairs = zip(*(errors for errors, _, _ in results.values()), strict=True)
    apart = max(abs(x - y) / y for x, y in pairs)
    right = apart < LIMITS[dtype]
    print(f"squared errors differ by {apart:.1e}, limit {LIMITS[dtype]:.0e}: {'ok' if right else 'WRONG'}")
    return right


def main():
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=whole_number(2), help=f"by default {STEPS}, with --compare {COMPARED_STEPS}")
    parser.add_argument("--points", type=whole_number(2), help="of a set, each a token; by default 16, on a GPU 2048")
    parser.add_argument("--dtype", choices=list(LIMITS), default="float32", help="bfloat16 by autocast")
    parser.add_argument("--compare", action="store_true", help="time and memory beside those of the unfused formula")
    options = parse_with_device(parser)
    sizes = SIZES[options.device]
    sizes = sizes._replace(points=options.points or sizes.points)
    steps = options.steps or (COMPARED_STEPS if options.compare else STEPS)
    heads = f"{sizes.layers} layers of {sizes.heads} heads of {sizes.width // sizes.heads}"
    sets = f"{sizes.batch} sets of {sizes.points} points a step"
    print(f"{sets}, {heads}, {options.dtype} on {options.device}", flush=True)
    right = (compare if options.compare else train)(sizes, options.device, options.dtype, steps)
    return 0 if right else 1


if __name__ == "__main__":
    run(main)
