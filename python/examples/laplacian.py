"""The Laplacian of log|psi|, which the kinetic energy of variational Monte Carlo needs, for a wave function with an
attention layer: electrons are tokens, psi is a determinant. It is the sum over coordinates of the second derivative
along each: by forward over forward with fused attention, and by both orders of derivatives with the plain formula of
attention. Each way runs in a process of its own, which reports its time and memory."""

import argparse
import sys

import torch
from measured import in_own_process, measured, now
from torch import func, nn
from unfused import unfused_attention

from attngrad.torch import scaled_dot_product_attention

WIDTH, HEADS = 32, 4
SEED = 0


class WaveFunction(nn.Module):
    """log|psi| of electrons at r [n, 3], near n nuclei on a line. An orbital is an exponential around its nucleus
    times a function of all electrons: one layer of attention, then a linear map."""

    def __init__(self, electrons, attention):
        super().__init__()
        self.attention = attention
        self.nuclei = 2.0 * torch.arange(electrons)[:, None] * torch.tensor([1.0, 0.0, 0.0])
        self.embed = nn.Linear(3, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.orbitals = nn.Linear(WIDTH, electrons)

    def forward(self, r):
        x = torch.tanh(self.embed(r))
        q, k, v = self.project(x).view(-1, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
        x = torch.tanh(x + self.attention(q, k, v).transpose(0, 1).flatten(1))
        distances = (r[:, None] - self.nuclei + 1e-12).norm(dim=-1)
        return torch.linalg.slogdet((2 + self.orbitals(x)) * torch.exp(-distances))[1]


def forward_over_forward(f, x, t):
    """The second derivative along t: jvp of jvp."""
    return func.jvp(lambda x: func.jvp(f, (x,), (t,))[1], (x,), (t,))[1]


def forward_over_reverse(f, x, t):
    """The same by a product with the Hessian: jvp of grad."""
    return func.jvp(func.grad(f), (x,), (t,))[1] @ t


WAYS = {
    "fused, forward over forward": (scaled_dot_product_attention, forward_over_forward),
    "plain, forward over forward": (unfused_attention, forward_over_forward),
    "plain, forward over reverse": (unfused_attention, forward_over_reverse),
}


def measure(name, electrons, chunk):
    """The Laplacian by one way, the seconds and the bytes that it took."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    attention, second_derivative = WAYS[name]

    def run(n):
        begin = now("cpu")
        torch.manual_seed(SEED)
        psi = WaveFunction(n, attention).requires_grad_(False)
        x = (psi.nuclei + 0.3 * torch.randn(n, 3)).flatten()
        values = func.vmap(
            lambda t: second_derivative(lambda x: psi(x.view(n, 3)), x, t), chunk_size=chunk
        )(torch.eye(3 * n))
        return values.sum().item(), now("cpu") - begin

    (value, seconds), size = measured("cpu", lambda: run(2), lambda: run(electrons))
    return value, seconds, size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--electrons", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=16, help="directions at a time")
    options = parser.parse_args()
    print(f"{options.electrons} electrons, {3 * options.electrons} coordinates, {options.chunk} at a time")
    results = {name: in_own_process(measure, name, options.electrons, options.chunk) for name in WAYS}
    if None in results.values():
        sys.exit("out of memory")
    expected, wrong = results["plain, forward over reverse"][0], False
    for name, (value, seconds, size) in results.items():
        error = abs(value - expected) / abs(expected)
        verdict = "ok" if error < 1e-9 else "WRONG"
        wrong = wrong or verdict == "WRONG"
        print(f"{name}  {seconds:7.2f} s {size / 2**20:7.1f} MiB   {value:.8f}, off by {error:.0e}: {verdict}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
