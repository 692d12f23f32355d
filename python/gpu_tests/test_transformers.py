"""Three models of transformers on a GPU with attngrad and with eager attention: loss, gradients, a Hessian-vector
product; small in float32, and in bfloat16 with sizes that the kernels for Hopper take. ATTNGRAD_TEST_DEVICE=cpu: on the
CPU."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

from typing import NamedTuple

import attngrad.transformers
import torch
import transformers

DEVICE = os.environ.get("ATTNGRAD_TEST_DEVICE", "cuda")
COMMON = {"vocab_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
COMMON |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Size(NamedTuple):
    """kept: tokens of the second text, the rest of which is padding."""

    tokens: int
    kept: int
    config: dict
    window: dict


SMALL = Size(
    12,
    8,
    COMMON | {"hidden_size": 32, "intermediate_size": 40, "head_dim": 8, "max_position_embeddings": 64},
    {"sliding_window": 5},
)
# Weights are larger than usual, so that attention has a large part in the loss.
LARGE = Size(
    220,
    150,
    COMMON
    | {"hidden_size": 128, "intermediate_size": 160, "head_dim": 64, "max_position_embeddings": 256}
    | {"initializer_range": 0.1},
    {"sliding_window": 50},
)
FEATURES = {"Llama": {}, "Mistral": {}, "Gemma2": {"attn_logit_softcapping": 2.0}}
# Of bfloat16, relative: the CPU has up to 4e-4, 1.7e-2 and 2.6e-2. Scores that are wrong by a tenth change gradients by
# 4e-2 to 0.2, and products by 6e-2 to 0.4.
LOSS, ROUNDED = 2e-3, {"gradients": 3e-2, "product": 5e-2}
attngrad.transformers.register()


def model_of(name, attention, size, dtype):
    """With the same random weights in every dtype: those of bfloat16 if the size is large."""
    torch.manual_seed(3)
    config = size.config | FEATURES[name] | ({} if name == "Llama" else size.window)
    config = getattr(transformers, name + "Config")(**config, attn_implementation=attention)
    model = getattr(transformers, name + "ForCausalLM")(config).float()
    if size is LARGE:
        model = model.bfloat16()
    return model.to(DEVICE, dtype).eval()


def direction_of(g):
    """The same in every dtype."""
    return torch.cos(torch.arange(g.numel(), device=DEVICE)).bfloat16().reshape(g.shape).to(g)


def inputs_of(kind, size):
    """Two texts; "padded": the second one is shorter; "packed": each is several texts one after another."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, 40, (2, size.tokens), generator=generator).to(DEVICE)
    if kind == "packed":
        positions = torch.arange(size.tokens, device=DEVICE).remainder(size.tokens // 3).expand(2, -1)
        return {"input_ids": tokens, "position_ids": positions, "labels": tokens}
    keep = torch.ones_like(tokens)
    if kind == "padded":
        keep[1, size.kept :] = 0
    return {"input_ids": tokens, "attention_mask": keep, "labels": tokens.masked_fill(keep == 0, -100)}


def derivatives(name, attention, kind, size=SMALL, dtype=torch.float32):
    """The loss, its gradients, and the product of its Hessian and a direction."""
    model = model_of(name, attention, size, dtype)
    parameters = list(model.parameters())
    loss = model(**inputs_of(kind, size), use_cache=False).loss
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    slope = sum((g * direction_of(g)).sum() for g in gradients)
    return loss, gradients, torch.autograd.grad(slope, parameters)


def distance(a, b):
    a, b = (torch.cat([x.detach().flatten() for x in xs]).double() for xs in (a, b))
    return ((a - b).norm() / b.norm()).item()


def check(name):
    for kind in ("whole", "padded", "packed"):
        ours, eager = derivatives(name, "attngrad", kind), derivatives(name, "eager", kind)
        assert abs(ours[0] - eager[0]) < 1e-5, f"{ours[0]} instead of {eager[0]}"
        assert distance(ours[1], eager[1]) < 1e-4, distance(ours[1], eager[1])
        assert distance(ours[2], eager[2]) < 1e-3, distance(ours[2], eager[2])


def check_large(name):
    """In bfloat16, one text padded. The truth is eager attention in float32 of the same weights: in float64 eager gives
    NaN for rows that see nothing. All layers round to 16 bits, so eager in bfloat16 says how far that leads."""
    truth = derivatives(name, "eager", "padded", LARGE)
    ours, eager = (
        derivatives(name, attention, "padded", LARGE, torch.bfloat16) for attention in ("attngrad", "eager")
    )
    assert abs(ours[0] - truth[0]) < LOSS * truth[0], f"{ours[0]} instead of {truth[0]}"
    for what, got, theirs, wanted in zip(("gradients", "product"), ours[1:], eager[1:], truth[1:]):
        error, usual = distance(got, wanted), distance(theirs, wanted)
        assert error < ROUNDED[what] and error < 1.5 * usual, f"{what}: {error:.1e}, eager {usual:.1e}"


def test_llama():
    check("Llama")


def test_llama_large():
    check_large("Llama")


def test_mistral():
    check("Mistral")


def test_mistral_large():
    check_large("Mistral")


def test_gemma2():
    check("Gemma2")


def test_gemma2_large():
    check_large("Gemma2")
