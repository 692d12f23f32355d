"""Hessian-vector products of a causal language model's loss at a long context, by forward over reverse and by double
backward: time and peak memory of each, which grows in proportion to the context.

--compare adds the same products with the unfused formula of attention, whose memory grows with the square of the
context, at a context where it fits. Every product is computed in a process of its own."""

import functools
from typing import NamedTuple

import numpy as np
import torch
from block import Block
from command_line import Parser, parse_with_device, run, whole_number
from hessian_vector_product import double_backward, forward_over_reverse
from measured import START, in_own_process, in_words, measured, now
from torch import func, nn
from unfused import unfused_attention

from attngrad.torch import scaled_dot_product_attention

ATTENTIONS = {"attngrad": scaled_dot_product_attention, "unfused": unfused_attention}
WAYS = {"forward over reverse": forward_over_reverse, "double backward": double_backward}
FIRST_WAY = next(iter(WAYS))
# Of the difference of two products, relative to their norm.
LIMITS = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 1.2e-2}
REPEATS = {"cpu": 1, "cuda": 3}
MEASURABLE = 2**24  # bytes; on the CPU less is lost in what the process had before
WORDS = 256  # a word is a byte


class Sizes(NamedTuple):
    width: int
    heads: int
    layers: int


SIZES = {"cpu": Sizes(128, 2, 2), "cuda": Sizes(512, 8, 4)}


class Setting(NamedTuple):
    """What all products of one run of this program have in common."""

    device: str
    dtype: str
    sizes: Sizes


class Row(NamedTuple):
    """One product of the table."""

    attention: str
    way: str
    context: int


class Rounded(nn.Linear):
    """A product of matrices in bfloat16, of float32 and to float32. Autocast does the same, but on a GPU PyTorch has no
    tangents of what its backward computes."""

    def forward(self, x):
        return nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16()).float()


def rounded(attention):
    """Attention in bfloat16, likewise."""
    return lambda q, k, v, **features: attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), **features).float()


class LanguageModel(nn.Module):
    """The logits of the next word at each position of text [batch, context]."""

    def __init__(self, context, sizes, attention, linear=nn.Linear):
        super().__init__()
        attention = functools.partial(attention, is_causal=True)
        self.words, self.positions = nn.Embedding(WORDS, sizes.width), nn.Embedding(context, sizes.width)
        blocks = (Block(sizes.width, sizes.heads, attention, linear) for _ in range(sizes.layers))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(sizes.width), linear(sizes.width, WORDS))

    def forward(self, text):
        return self.head(self.blocks(self.words(text) + self.positions.weight))


def make_model(attention, context, setting):
    if setting.dtype == "bfloat16":
        return LanguageModel(context, setting.sizes, rounded(ATTENTIONS[attention]), Rounded)
    return LanguageModel(context, setting.sizes, ATTENTIONS[attention])


def make_problem(attention, context, setting):
    """The loss as a function of a dict of parameters, the parameters, and a random direction."""
    torch.manual_seed(0)
    model = make_model(attention, context, setting)
    text = torch.randint(WORDS, (1, context + 1)).cummax(dim=1).values  # something that can be learnt
    direction = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    dtype = torch.float32 if setting.dtype == "bfloat16" else getattr(torch, setting.dtype)
    model, text = model.to(setting.device, dtype), text.to(setting.device)

    def loss(parameters):
        logits = func.functional_call(model, parameters, (text[:, :-1],))
        return nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return loss, parameters, {name: t.to(setting.device, dtype) for name, t in direction.items()}


def product_of(row, setting):
    """The Hessian-vector product of one row as a vector, and the seconds that it took."""
    problem = make_problem(row.attention, row.context, setting)
    times = []
    for _ in range(REPEATS[setting.device]):
        begin = now(setting.device)
        product = WAYS[row.way](*problem)
        times.append(now(setting.device) - begin)
    return torch.cat([x.flatten() for x in product.values()]).cpu().numpy(), min(times)


def measure(row, setting):
    """The product, seconds and bytes."""
    small = row._replace(context=16)
    (product, seconds), size = measured(
        setting.device, lambda: product_of(small, setting), lambda: product_of(row, setting)
    )
    return product, seconds, size


def rows_of(context, compared):
    """The products to compute: at the context, at twice the context and, for the comparison, at `compared`."""
    rows = [Row("attngrad", way, n) for n in (context, 2 * context) for way in WAYS]
    if compared:
        rows += [Row(attention, way, compared) for attention in ATTENTIONS for way in WAYS]
    return list(dict.fromkeys(rows))


def compute(rows, setting):
    """The results of the rows, printed one by one; those that ran out of memory are left out."""
    results = {}
    print(f"{'attention':11}{'product by':22}{'context':>9}{'time':>13}{'peak memory':>15}")
    for row in rows:
        print(f"{row.attention:11}{row.way:22}{row.context:9,}", end="", flush=True)
        result = in_own_process(measure, row, setting, start=START[setting.device])
        if result is None:
            print("   out of memory", flush=True)
            continue
        results[row] = result
        print(in_words(*result[1:]), flush=True)
    return results


def says(right, text):
    print(f"{text}: {'ok' if right else 'WRONG'}")
    return right


def same_products(results, limit):
    """Whether all products at one context agree, by whichever attention and way."""
    right = True
    for row, (product, _, _) in results.items():
        first = row._replace(attention="attngrad", way=FIRST_WAY)
        if row == first or first not in results:
            continue
        expected = results[first][0]
        apart = np.linalg.norm(product - expected) / np.linalg.norm(expected)
        what = f"{row.attention}, {row.way} at {row.context:,}"
        right &= says(bool(apart < limit), f"{what} is {apart:.1e} from {FIRST_WAY}, limit {limit:.0e}")
    return right


def linear_memory(results, context):
    """Whether twice the context takes about twice the memory, and not four times."""
    right = True
    for way in WAYS:
        once, twice = (results.get(Row("attngrad", way, n)) for n in (context, 2 * context))
        if once is None or twice is None:
            continue
        if once[2] < MEASURABLE:
            print(f"{way}: {once[2] / 2**20:.1f} MiB are too few to see how memory grows with the context")
            continue
        growth = twice[2] / once[2]
        right &= says(growth < 3, f"{way}: twice the context takes {growth:.2f} times the memory, limit 3")
    return right


def main():
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--context", type=whole_number(16), default=8192)
    parser.add_argument("--dtype", choices=list(LIMITS), default="float32", help="bfloat16: in products and attention")
    where = "with the unfused formula at this context, by default a quarter of --context"
    parser.add_argument("--compare", type=whole_number(16), nargs="?", const=0, metavar="CONTEXT", help=where)
    options = parse_with_device(parser)
    setting = Setting(options.device, options.dtype, SIZES[options.device])
    compared = options.compare
    if compared == 0:
        compared = max(16, options.context // 4)
    sizes = setting.sizes
    heads = f"{sizes.layers} layers of {sizes.heads} heads of {sizes.width // sizes.heads}"
    print(f"Hessian-vector products: {heads}, {options.dtype} on {options.device}", flush=True)
    rows = rows_of(options.context, compared)
    results = compute(rows, setting)
    right = same_products(results, LIMITS[options.dtype])
    right &= linear_memory(results, options.context)
    return 0 if right and all(row in results for row in rows if row.attention == "attngrad") else 1


if __name__ == "__main__":
    run(main)
