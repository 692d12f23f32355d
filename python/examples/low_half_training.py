"""Does training in bfloat16 suffer if the backward pass does not know what rounding took from the output of attention?

The backward pass needs D = rowsum(dO o O), and O is rounded to 16 bits; with save_low=True, the default, it also gets
the low half of O. The same small model is trained with attention in float32, in bfloat16 with low halves and in
bfloat16 without; everything but attention is float32. The task is to copy: a random sequence that is repeated once.

scratch    all parameters, from a random start
gate G     a trained model gets one more key and value per head, to whose score a learned number is added, the gate. It
           starts at G, so high that the new key takes nearly all weight. Only the gates are trained: the loss falls if
           they do.
attention  the same start, but all parameters of attention are trained
bias       in models from scratch and with gates, at fixed parameters: errors of gradients against float64 on the same
           bfloat16 tensors, over many batches. An error without bias averages out: the norm of the mean error is then
           about 1 / sqrt(batches) of the mean norm.

One thread. ATTNGRAD_ISA=avx512 keeps bfloat16 off AMX."""

import argparse
import functools
import math
import sys

import torch
from torch import nn
from torch.nn import functional

from attngrad.torch import scaled_dot_product_attention

WIDTH, HEADS, LENGTH, SYMBOLS, BATCH = 64, 2, 64, 32, 8
DIM = WIDTH // HEADS
LOW = "with low halves"
MODES = {  # dtype of attention, save_low
    "float32": (torch.float32, True),
    LOW: (torch.bfloat16, True),
    "without": (torch.bfloat16, False),
}
SCRATCH_STEPS, GATE_STEPS, BIAS_BATCHES = 300, 200, 128
GATES = (20.0, 25.0, 30.0)
KEY_SIZE, VALUE_SIZE = 0.5, 4.0  # standard deviations of the new key and value
GATE_RATE, RATE = 0.1, 3e-3
GOAL = 1.0  # a run has learned when the mean loss of WINDOW steps is below it
WINDOW = 10
NEAR = 5  # runs that learn as fast as each other, in steps

attend = functools.partial(
    scaled_dot_product_attention, is_causal=True, align="bottom-right", backend="cpu", threads=1
)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dtype, self.save_low = MODES["float32"]
        self.gate = self.key = self.value = None
        self.seen = None  # not None: forward stores the tensors of its call here

    def add_gate(self, start):
        self.gate = nn.Parameter(torch.full((HEADS,), start))
        self.key, self.value = KEY_SIZE * torch.randn(HEADS, 1, DIM), VALUE_SIZE * torch.randn(HEADS, 1, DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        bias = None
        if self.gate is not None:
            k = torch.cat([self.key.expand(len(x), -1, -1, -1), k], dim=2)
            v = torch.cat([self.value.expand(len(x), -1, -1, -1), v], dim=2)
            bias = functional.pad(self.gate[:, None, None], (0, x.shape[1]))[None]
        q, k, v = (t.to(self.dtype) for t in (q, k, v))
        o = attend(q, k, v, bias, save_low=self.save_low)
        if self.seen is not None:
            self.seen = [x, q, k, v, bias]
            o.register_hook(self.seen.append)
        return self.out(o.float().transpose(1, 2).flatten(-2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.positions = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, symbols):
        x = self.symbols(symbols) + self.positions.weight[: symbols.shape[1]]
        x = x + self.attention(self.norms[0](x))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x))


def loss_of(model, generator):
    half = torch.randint(0, SYMBOLS, (BATCH, LENGTH // 2), generator=generator)
    symbols = torch.cat([half, half], dim=1)
    logits = model(symbols[:, :-1])[:, LENGTH // 2 - 1 :]
    return functional.cross_entropy(logits.flatten(0, 1), half.flatten())


def train(model, parameters, rate, steps, seed):
    """Adam; the losses of the steps."""
    optimiser = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def from_scratch(mode, seed, steps=SCRATCH_STEPS):
    torch.manual_seed(seed)
    model = Model()
    model.attention.dtype, model.attention.save_low = MODES[mode]
    return model, train(model, model.parameters(), RATE, steps, seed)


def gated(trained, mode, seed, start):
    """A copy of a trained model with gates."""
    model = Model()
    model.load_state_dict(trained.state_dict())
    torch.manual_seed(seed)
    model.attention.add_gate(start)
    model.attention.dtype, model.attention.save_low = MODES[mode]
    return model


def steps_to_goal(losses):
    """The number of steps after which the mean of the last WINDOW losses was below GOAL for the first time."""
    for n in range(WINDOW, len(losses) + 1):
        if sum(losses[n - WINDOW : n]) < WINDOW * GOAL:
            return n
    return math.inf


def report(name, seed, mode, losses):
    n = steps_to_goal(losses)
    learned = "not learned" if math.isinf(n) else f"loss below {GOAL:g} after {n:3} steps"
    print(f"{name:16} seed {seed}  {mode:16} last loss {sum(losses[-WINDOW:]) / WINDOW:6.3f}  {learned}", flush=True)


# ---- Bias ----


def gradients(seen, dtype, save_low):
    """The gradients of W_q, W_k and the gates, in float64 but for attention's own backward pass."""
    x, q, k, v, bias, d_o = seen
    q, k = (t.detach().to(dtype).requires_grad_() for t in (q, k))
    inputs = [q, k]
    if bias is not None:
        bias = bias.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        inputs.append(bias)
    o = attend(q, k, v.detach().to(dtype), bias, save_low=save_low)
    dq, dk, *d_bias = torch.autograd.grad(o, inputs, d_o.to(dtype))
    rows = x.detach().double().flatten(0, 1)
    flat = lambda t: t[:, :, -x.shape[1] :].double().transpose(1, 2).reshape(len(rows), WIDTH)  # noqa: E731
    found = {"W_q": rows.T @ flat(dq), "W_k": rows.T @ flat(dk)}
    if d_bias:
        found["gate"] = d_bias[0][0, :, 0, 0].double()
    return found


def bias_of(model, batches):
    """Per gradient, with and without low halves: relative error of a batch, |mean error| / mean |error|, and
    |mean error| / |mean gradient|."""
    generator = torch.Generator().manual_seed(2000)
    errors, exact = {}, {}
    for _ in range(batches):
        model.attention.seen = []
        loss_of(model, generator).backward()
        truth = gradients(model.attention.seen, torch.float64, True)
        for mode in list(MODES)[1:]:
            found = gradients(model.attention.seen, *MODES[mode])
            for name in truth:
                errors.setdefault((name, mode), []).append(found[name] - truth[name])
        for name in truth:
            exact.setdefault(name, []).append(truth[name])
    model.attention.seen = None
    for (name, mode), e in errors.items():
        e, t = torch.stack(e).flatten(1), torch.stack(exact[name]).flatten(1)
        mean_norm, norm_mean = e.norm(dim=1).mean(), e.mean(0).norm()
        yield name, mode, mean_norm / t.norm(dim=1).mean(), norm_mean / mean_norm, norm_mean / t.mean(0).norm()


def weight_left(model):
    """In words, how much weight the new key leaves to all others: the mean over rows, in float64."""
    attention = model.attention
    if attention.gate is None:
        return ""
    attention.seen = []
    loss_of(model, torch.Generator().manual_seed(0))
    _, q, k, v, bias = (t.detach().double() for t in attention.seen)
    attention.seen = None
    _, lse = attend(q, k, v, bias, return_lse=True)
    score = (q * k[:, :, :1]).sum(-1) / math.sqrt(DIM) + bias[..., 0]
    return f", {-torch.expm1(score - lse).mean():.1e} of the weight left to other keys"


def print_bias(what, model, batches):
    print(f"\nbias, {what}{weight_left(model)}")
    print(f"{batches} batches: without bias the second column is about {batches**-0.5:.3f}")
    print(f"{'gradient':10}{'':18}|error| / |gradient|   |mean error| / mean |error|   |mean error| / |mean gradient|")
    for name, mode, relative, coherence, lost in sorted(bias_of(model, batches), key=lambda row: row[0]):
        print(f"{name:10}{mode:18}{relative:20.5f}{coherence:29.3f}{lost:33.5f}", flush=True)


# ---- The program ----


def plot(path, curves):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for name, _, _ in curves))
    figure, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 4), squeeze=False, constrained_layout=True)
    styles = dict(zip(MODES, ("C0-", "C1--", "C3-"), strict=True))
    for ax, wanted in zip(axes[0], names, strict=True):
        for (name, seed, mode), losses in curves.items():
            if name == wanted:
                ax.plot(losses, styles[mode], linewidth=1, label=mode if seed == 0 else None)
        ax.set(title=wanted, xlabel="step", ylabel="loss")
        ax.legend()
    figure.savefig(path)
    print(f"{path} written")


def train_gated(trained, seed, gates, with_attention):
    """The losses of the gate runs and of the attention runs, by name, seed and mode."""
    runs = [(f"gate {start:g}", start, False) for start in gates]
    runs += [("attention", gates[-1], True)] if with_attention else []
    curves = {}
    for name, start, whole in runs:
        for mode in MODES:
            model = gated(trained, mode, seed, start)
            parameters = model.attention.parameters() if whole else [model.attention.gate]
            losses = train(model, parameters, RATE if whole else GATE_RATE, GATE_STEPS, 1000 + seed)
            curves[name, seed, mode] = losses
            report(name, seed, mode, losses)
    return curves


def verdict(curves):
    """With low halves every gate run learns as fast as in float32; without them no run with the highest gate does."""
    n = {key: min(steps_to_goal(losses), 2 * GATE_STEPS) for key, losses in curves.items()}
    runs = {key[:2] for key in curves if key[0].startswith("gate")}
    same = all(abs(n[*run, LOW] - n[*run, "float32"]) <= NEAR for run in runs)
    highest = [run for run in runs if run[0] == f"gate {GATES[-1]:g}"]
    later = all(n[*run, "without"] > n[*run, "float32"] + NEAR for run in highest)
    print(f"\nwith low halves every gate run is within {NEAR} steps of float32: {'ok' if same else 'WRONG'}")
    print(f"without them each run with gate {GATES[-1]:g} is later, or does not learn: {'ok' if later else 'WRONG'}")
    return same and later


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="one seed, the highest gate, few batches")
    parser.add_argument("--plot", metavar="FILE.svg", help="the losses of the runs with gates")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds: at least 1")
    torch.set_num_threads(1)
    quick = options.quick
    curves = {}
    for seed in range(1 if quick else options.seeds):
        trained, losses = from_scratch("float32", seed)
        report("scratch", seed, "float32", losses)
        for mode in list(MODES)[1 : 1 if quick else None]:
            report("scratch", seed, mode, from_scratch(mode, seed)[1])
        curves |= train_gated(trained, seed, GATES[-1:] if quick else GATES, with_attention=not quick)
    batches = 16 if quick else BIAS_BATCHES
    print_bias("scratch after a quarter of the steps", from_scratch(LOW, 0, SCRATCH_STEPS // 4)[0], batches)
    for start in GATES:
        print_bias(f"gate {start:g} before its first step", gated(trained, LOW, seed, start), batches)
    if options.plot:
        plot(options.plot, curves)
    return 0 if verdict(curves) else 1


if __name__ == "__main__":
    sys.exit(main())
