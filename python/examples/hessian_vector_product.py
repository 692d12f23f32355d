"""A Hessian-vector product of a small transformer's loss: forward over reverse, and double backward,
compared with finite differences of the gradient. Only `replace` is attngrad's; the model is PyTorch's."""

import torch
from torch import func, nn

from attngrad.torch import replace

WORDS, WIDTH, LENGTH = 11, 24, 12


class Model(nn.Module):
    """Next-word prediction by two layers of causal attention."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )
        self.token_embedding = nn.Embedding(WORDS, WIDTH)
        self.position_embedding = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        causal = nn.Transformer.generate_square_subsequent_mask(text.shape[1], dtype=self.head.weight.dtype)
        x = self.token_embedding(text) + self.position_embedding
        return self.head(self.layers(x, mask=causal, is_causal=True))


def forward_over_reverse(loss, parameters, direction):
    """The Hessian of loss(parameters) times a direction, both dicts of tensors: jvp of grad."""
    return func.jvp(func.grad(loss), (parameters,), (direction,))[1]


def double_backward(loss, parameters, direction):
    """The same: the gradient of the derivative along the direction."""
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    first = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True)
    directional_derivative = sum((g * direction[name]).sum() for name, g in zip(leaves, first, strict=True))
    second = torch.autograd.grad(directional_derivative, list(leaves.values()))
    return dict(zip(leaves, second, strict=True))


def main():
    torch.manual_seed(0)
    model = replace(Model().double())
    text = torch.randint(WORDS, (4, LENGTH + 1))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    direction = {name: torch.randn_like(p) for name, p in parameters.items()}

    def loss(parameters):
        logits = func.functional_call(model, parameters, (text[:, :-1],))
        return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    def flat(tree):
        return torch.cat([tree[name].flatten() for name in parameters])

    expected = flat(forward_over_reverse(loss, parameters, direction))
    gradient, step = func.grad(loss), 1e-5
    points = [{name: p + sign * step * direction[name] for name, p in parameters.items()} for sign in (1, -1)]
    differences = (flat(gradient(points[0])) - flat(gradient(points[1]))) / (2 * step)

    norm = expected.norm()
    print(f"{flat(parameters).numel()} parameters, loss {loss(parameters):.4f}, |H t| {norm:.4f}")
    for name, product, limit in (
        ("double backward", flat(double_backward(loss, parameters, direction)), 1e-12),
        ("differences of gradients", differences, 1e-7),
    ):
        error = ((product - expected).norm() / norm).item()
        verdict = "ok" if error < limit else "WRONG"
        print(f"{name:26}{error:8.1e} relative to |H t|, limit {limit:.0e}: {verdict}")


if __name__ == "__main__":
    main()
