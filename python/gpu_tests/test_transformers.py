"""Three models of transformers on a GPU with attngrad and with eager attention: loss, gradients, a Hessian-vector product.
ATTNGRAD_TEST_DEVICE=cpu: on the CPU."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import attngrad.transformers
import torch
import transformers

DEVICE = os.environ.get("ATTNGRAD_TEST_DEVICE", "cuda")
SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "pad_token_id": 0}
SMALL |= {"num_attention_heads": 4, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "Llama": SMALL | {"num_key_value_heads": 2, "head_dim": 8},
    "Mistral": SMALL | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5},
    "Gemma2": SMALL | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 2.0},
}
attngrad.transformers.register()


def derivatives(name, attention, padded):
    """The loss, its gradients, and the product of its Hessian and a direction. padded: the second text is shorter."""
    torch.manual_seed(3)
    config = getattr(transformers, name + "Config")(**MODELS[name], attn_implementation=attention)
    model = getattr(transformers, name + "ForCausalLM")(config).float().to(DEVICE).eval()
    tokens = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(5)).to(DEVICE)
    parameters = list(model.parameters())
    keep = torch.ones_like(tokens)
    if padded:
        keep[1, 8:] = 0
    labels = tokens.masked_fill(keep == 0, -100)
    loss = model(input_ids=tokens, attention_mask=keep, labels=labels, use_cache=False).loss
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    direction = sum((g * torch.cos(torch.arange(g.numel(), device=DEVICE)).reshape(g.shape)).sum() for g in gradients)
    return loss, gradients, torch.autograd.grad(direction, parameters)


def distance(a, b):
    a, b = (torch.cat([x.detach().flatten() for x in xs]).double() for xs in (a, b))
    return ((a - b).norm() / b.norm()).item()


def check(name):
    for padded in (False, True):
        ours, eager = derivatives(name, "attngrad", padded), derivatives(name, "eager", padded)
        assert abs(ours[0] - eager[0]) < 1e-5, f"{ours[0]} instead of {eager[0]}"
        assert distance(ours[1], eager[1]) < 1e-4, distance(ours[1], eager[1])
        assert distance(ours[2], eager[2]) < 1e-3, distance(ours[2], eager[2])


def test_llama():
    check("Llama")


def test_mistral():
    check("Mistral")


def test_gemma2():
    check("Gemma2")
