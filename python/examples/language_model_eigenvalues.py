"""The top eigenvalues of the Hessian of a causal language model's loss at a long context, by Lanczos iteration on
Hessian-vector products: a transformers model whose attention is chosen by one word. With attngrad and with eager
attention, each in a process of its own, which reports its time and memory."""

import argparse
import sys

import torch
import transformers
from measured import in_own_process, measured, now
from top_eigenvalues import lanczos
from torch import func

import attngrad.transformers

TOP, SEED = 3, 0


def make_loss(attention, context):
    """The loss of a small model as a function of one vector of all parameters, and that vector."""
    attngrad.transformers.register()
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        attn_implementation=attention,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    tokens = torch.randint(64, (1, context)).cummax(dim=1).values  # something that can be learnt

    def loss(vector):
        parts = zip(shapes.items(), vector.split(sizes), strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in parts}
        inputs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
        return func.functional_call(model, parameters, (), inputs).loss

    return loss, torch.cat([p.detach().flatten() for p in model.parameters()])


def measure(attention, context, steps):
    """The eigenvalues, the seconds of one product and the bytes that all of them took."""

    def run(context, steps):
        loss, vector = make_loss(attention, context)
        product = lambda t: func.jvp(func.grad(loss), (vector,), (t,))[1]  # noqa: E731
        start = now("cpu")
        values = lanczos(product, vector.numel(), steps).flip(0)[:TOP].tolist()
        return values, (now("cpu") - start) / steps

    (values, seconds), size = measured("cpu", lambda: run(16, 2), lambda: run(context, steps))
    return values, seconds, size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="Lanczos steps, one Hessian-vector product each")
    options = parser.parse_args()
    print(f"context {options.context}, top {TOP} eigenvalues after {options.steps} products")
    results = {}
    for attention in ("attngrad", "eager"):
        results[attention] = in_own_process(measure, attention, options.context, options.steps, start="spawn")
        if results[attention] is None:
            sys.exit(f"{attention}: out of memory")
        values, seconds, size = results[attention]
        numbers = "  ".join(f"{x:.5f}" for x in values)
        print(f"{attention:8}  {numbers}   {seconds:7.2f} s a product {size / 2**20:8.1f} MiB")
    ours, eager = (results[attention][0] for attention in ("attngrad", "eager"))
    error = max(abs(x - y) for x, y in zip(ours, eager, strict=True)) / abs(eager[0])
    print(f"largest difference {error:.1e} of the first, limit 1e-05: {'ok' if error < 1e-5 else 'WRONG'}")


if __name__ == "__main__":
    main()
