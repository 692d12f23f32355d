"""The top eigenvalues of the Hessian of a small attention model's loss, by Lanczos iteration on
Hessian-vector products, before and after training, with a plot. The model is small enough to compare them
with those of the full Hessian."""

import argparse
from pathlib import Path

import torch
from torch import func, nn

from attngrad.torch import MultiheadAttention

WIDTH, LENGTH, TOP = 8, 10, 5


class Model(nn.Module):
    """Each position must give the mean of those before it: one layer of causal attention and a linear map."""

    def __init__(self):
        super().__init__()
        self.attention = MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.head(x + self.attention(x, x, x, need_weights=False, is_causal=True)[0])


def make_loss(model, x):
    """The loss as a function of one vector of all parameters, and that vector."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    target = x.cumsum(dim=1) / torch.arange(1, LENGTH + 1)[:, None]

    def loss(vector):
        parts = zip(shapes.items(), vector.split(sizes), strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in parts}
        return (func.functional_call(model, parameters, (x,)) - target).square().mean()

    return loss, torch.cat([p.detach().flatten() for p in model.parameters()])


def lanczos(product, size, steps):
    """Ritz values of a symmetric operator, ascending; with full reorthogonalisation."""
    basis = [nn.functional.normalize(torch.randn(size), dim=0)]
    diagonal, off_diagonal = [], []
    for _ in range(min(steps, size)):
        w = product(basis[-1])
        diagonal.append(torch.dot(w, basis[-1]))
        for _ in range(2):  # once would leave rounding errors
            known = torch.stack(basis)
            w = w - known.T @ (known @ w)
        if w.norm() < 1e-10:
            break
        off_diagonal.append(w.norm())
        basis.append(w / w.norm())
    n = len(diagonal)
    off = torch.stack(off_diagonal[: n - 1]) if n > 1 else torch.zeros(0)
    return torch.linalg.eigvalsh(torch.stack(diagonal).diag() + off.diag(1) + off.diag(-1))


def spectrum(loss, vector, steps):
    product = lambda t: func.jvp(func.grad(loss), (vector,), (t,))[1]  # noqa: E731
    found = lanczos(product, vector.numel(), steps).flip(0)[:TOP]
    full = torch.linalg.eigvalsh(func.hessian(loss)(vector)).flip(0)
    error = ((found - full[:TOP]).abs().max() / full[0]).item()
    print("  Lanczos      " + "  ".join(f"{x:9.6f}" for x in found))
    print("  whole matrix " + "  ".join(f"{x:9.6f}" for x in full[:TOP]))
    print(f"  largest difference {error:.1e} of the first, limit 1e-08: {'ok' if error < 1e-8 else 'WRONG'}")
    return found, full


def plot(path, results):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, (found, full) in results.items():
        (line,) = axes.plot(
            range(1, len(full) + 1), full, ".", markersize=4, label=f"{name}: whole Hessian"
        )
        axes.plot(range(1, TOP + 1), found, "o", mfc="none", color=line.get_color(), label=f"{name}: Lanczos")
    axes.set(
        xlabel="eigenvalue number",
        ylabel="eigenvalue",
        yscale="symlog",
        title="Hessian of an attention model",
    )
    axes.set_yscale("symlog", linthresh=1e-4)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plot", type=Path, default=Path("eigenvalues.svg"), help="the file of the plot")
    parser.add_argument(
        "--steps", type=int, default=60, help="Lanczos steps, one Hessian-vector product each"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Model()
    loss, vector = make_loss(model, torch.randn(16, LENGTH, WIDTH))
    results = {}
    print(f"{vector.numel()} parameters, loss {loss(vector):.4f}, top {TOP} eigenvalues:")
    results["before training"] = spectrum(loss, vector, options.steps)
    point = vector.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([point], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = loss(point)
        value.backward()
        return value

    optimiser.step(closure)
    print(f"after training, loss {loss(point).item():.4f}:")
    results["after training"] = spectrum(loss, point.detach(), options.steps)
    plot(options.plot, results)
    print(f"plot: {options.plot}")


if __name__ == "__main__":
    main()
