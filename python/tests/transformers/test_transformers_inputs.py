"""What a model can be given beside tokens: packed sequences, masks of four axes, caches, dropout, 16 bits; and
generation."""

import pytest
import torch
import transformers
from zoo import BATCH, GROUPED, LENGTH, NAMES, SMALL, VOCABULARY, ZOO, Derivatives, distance, padding, text

F64 = torch.float64


def models(architecture, folder, dtype=F64):
    architecture.make().save_pretrained(folder)
    return [architecture.load(folder, word, dtype) for word in ("attngrad", "eager")]


def close(x, y, limit=1e-9):
    torch.testing.assert_close(x, y, rtol=limit, atol=limit)


# ---- Packed sequences ----


@pytest.mark.parametrize(
    "name, listed",
    [("llama", False), ("llama", True), ("mistral", False), ("mistral", True), ("gpt-oss", True)],  # needs the lists
)
def test_packed(name, listed, tmp_path):
    """Positions that restart, with and without the lists of their sequences: as each sequence by itself."""
    ours, eager = models(ZOO[name], tmp_path)
    tokens = torch.randint(3, VOCABULARY, (1, LENGTH))
    starts = [0, 5, 6, LENGTH]
    positions = torch.cat([torch.arange(b - a) for a, b in zip(starts, starts[1:], strict=False)])[None]
    lists = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor(starts, dtype=torch.int32))
    lists |= dict.fromkeys(("max_length_q", "max_length_k"), 6)
    got = ours(input_ids=tokens, position_ids=positions, use_cache=False, **lists if listed else {}).logits
    want = [eager(input_ids=tokens[:, a:b]).logits for a, b in zip(starts, starts[1:], strict=False)]
    close(got, torch.cat(want, dim=1))


def test_lists_without_positions(tmp_path):
    """Lists of sequences are obeyed even if the positions go on: the model then differs only by its positions, which a
    model without any does not have."""
    ours, eager = models(ZOO["llama"], tmp_path)
    for model in (ours, eager):  # no rotation
        model.model.rotary_emb.inv_freq.zero_()
    tokens = torch.randint(3, VOCABULARY, (1, 9))
    lists = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, 4, 9]))
    got = ours(input_ids=tokens, use_cache=False, **lists).logits
    want = [eager(input_ids=tokens[:, a:b]).logits for a, b in ((0, 4), (4, 9))]
    close(got, torch.cat(want, dim=1))


@pytest.mark.oldest
def test_packed_derivatives(tmp_path):
    ours, eager = models(ZOO["mistral"], tmp_path)
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    positions = torch.arange(LENGTH).remainder(7).expand(BATCH, -1)
    inputs = {"input_ids": tokens, "labels": tokens, "position_ids": positions, "use_cache": False}
    ours, eager = Derivatives(ours, inputs), Derivatives(eager, inputs)
    assert distance(ours.gradients(), eager.gradients()) < 1e-9
    assert distance(ours.forward_over_reverse(), eager.forward_over_reverse()) < 1e-9


# ---- Masks ----


def test_queries_that_see_nothing(tmp_path):
    """Padding before a text: its outputs are those of sdpa, zeros; eager averages all values."""
    ours, eager = models(ZOO["llama"], tmp_path)
    inputs = text("left")
    inputs["labels"] = inputs["input_ids"]
    want = ZOO["llama"].load(tmp_path, "sdpa")(**inputs).loss
    close(ours(**inputs).loss, want)
    assert abs(eager(**inputs).loss - want) > 1e-6


def test_masks_of_four_axes(tmp_path):
    """Given by the caller: a bool means what it means to sdpa, a float is added."""
    ours, eager = models(ZOO["llama"], tmp_path)
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    seen = torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.6
    seen |= torch.eye(LENGTH, dtype=torch.bool)
    hidden = torch.zeros(seen.shape, dtype=F64).masked_fill(~seen, torch.finfo(F64).min)
    want = eager(input_ids=tokens, attention_mask=hidden, use_cache=False).logits
    for mask in (seen, hidden):
        close(ours(input_ids=tokens, attention_mask=mask, use_cache=False).logits, want)
    bias = torch.randn(BATCH, 1, LENGTH, LENGTH, dtype=F64)
    want = eager(input_ids=tokens, attention_mask=bias, use_cache=False).logits
    close(ours(input_ids=tokens, attention_mask=bias, use_cache=False).logits, want)


# ---- Generation ----


DECODERS = ("llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt-oss", "gpt2", "opt", "llama4", "deepseek-v3")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", [name for name in NAMES if name.values[0] in DECODERS])
def test_generate(name, cache, tmp_path):
    """Tokens and logits of a left-padded batch, past the windows, are those of eager attention."""
    results = []
    for model in models(ZOO[name], tmp_path):
        torch.manual_seed(5)
        tokens = torch.randint(3, VOCABULARY, (BATCH, 7))
        mask = torch.ones_like(tokens)
        mask[1, :3] = 0
        options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
        options |= {"cache_implementation": cache} if cache != "dynamic" else {}
        results.append(model.generate(tokens * mask, attention_mask=mask, eos_token_id=None, **options))
    assert torch.equal(results[0].sequences, results[1].sequences)
    close(results[0].logits, results[1].logits)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_generate_from_an_encoder(name, tmp_path):
    ours, eager = models(ZOO[name], tmp_path)
    inputs = ZOO[name].inputs()
    inputs.pop("labels"), inputs.pop("use_cache")
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 2, "eos_token_id": None}
    assert torch.equal(ours.generate(**inputs, **options), eager.generate(**inputs, **options))


@pytest.mark.oldest
def test_chunked_prefill(tmp_path):
    """A prompt in parts through a cache, with windows that the second part outgrows."""
    ours, eager = models(ZOO["mistral"], tmp_path)
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    want = eager(input_ids=tokens, use_cache=False).logits
    cache = transformers.DynamicCache(config=ours.config)
    got = [ours(input_ids=part, past_key_values=cache).logits for part in tokens.split([5, 4, 3], dim=1)]
    close(torch.cat(got, dim=1), want)


# ---- Dropout, checkpoints, dtypes ----


def test_dropout(tmp_path):
    """In training only; the mean over seeds is the output without."""
    architecture = ZOO["llama"]
    model = models(architecture, tmp_path)[0]
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 6, 32, dtype=F64)
    angles = model.model.rotary_emb(x, torch.arange(6)[None])
    run = lambda: layer(x, position_embeddings=angles, attention_mask=None)[0]  # noqa: E731
    still = run()
    assert torch.equal(run(), still)
    layer.train()
    assert not torch.equal(run(), run())
    mean = torch.stack([run() for _ in range(1000)]).mean(dim=0)
    assert (mean - still).norm() < 0.1 * still.norm()


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant, tmp_path):
    model = models(ZOO["gemma2"], tmp_path)[0]
    derivatives = Derivatives(model, text())
    want = derivatives.gradients()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    derivatives.loss().backward()
    assert distance([p.grad for p in model.parameters()], want) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_of_short_dtypes(dtype, tmp_path):
    """Measured against float64: the error of the loss's gradients is at most twice eager's, or the dtype's floor."""
    inputs = text()
    ZOO["gemma2"].make().to(dtype).save_pretrained(tmp_path)
    truth = Derivatives(ZOO["gemma2"].load(tmp_path, "eager"), inputs).gradients()
    ours, eager = (
        distance(Derivatives(ZOO["gemma2"].load(tmp_path, word, dtype), inputs).gradients(), truth)
        for word in ("attngrad", "eager")
    )
    assert ours <= max(2 * eager, {torch.float32: 1e-6, torch.bfloat16: 4e-3}[dtype]), (ours, eager)


def test_set_attn_implementation(tmp_path):
    """The other way to choose it, after loading."""
    model = models(ZOO["llama"], tmp_path)[1]
    inputs = text()
    want = Derivatives(model, inputs).gradients()
    model.set_attn_implementation("attngrad")
    assert model.config._attn_implementation == "attngrad"
    assert distance(Derivatives(model, inputs).gradients(), want) < 1e-9


def test_compiled(tmp_path):
    """torch.compile of a whole model; it carries the mask as a matrix of floats."""
    ours, eager = models(ZOO["mistral"], tmp_path)
    tokens, mask = torch.randint(3, VOCABULARY, (BATCH, LENGTH)), padding("right")
    compiled = torch.compile(ours, backend="aot_eager")
    got = compiled(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    want = eager(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    close(got * mask[..., None], want * mask[..., None])


def test_per_sample_gradients(tmp_path):
    """vmap over the rows of a batch, each with its own padding."""
    model = models(ZOO["llama"], tmp_path)[0]
    inputs = text()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, tokens, mask, labels):
        row = {"input_ids": tokens[None], "attention_mask": mask[None], "labels": labels[None], "use_cache": False}
        return torch.func.functional_call(model, parameters, (), row).loss

    rows = (inputs["input_ids"], inputs["attention_mask"], inputs["labels"])
    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))(parameters, *rows)
    for i in range(BATCH):
        want = torch.func.grad(loss)(parameters, *(x[i] for x in rows))
        assert distance([g[i] for g in got.values()], list(want.values())) < 1e-9


def test_bidirectional_decoder(tmp_path):
    """A decoder whose configuration says that it is not causal."""
    config = transformers.LlamaConfig(**GROUPED, is_causal=False)
    model = transformers.LlamaModel(config).double().eval()
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH)), "attention_mask": padding("right")}
    load = transformers.LlamaModel.from_pretrained
    ours, eager = (load(tmp_path, attn_implementation=word, dtype=F64) for word in ("attngrad", "eager"))
    close(ours(**inputs).last_hidden_state, eager(**inputs).last_hidden_state)


def test_decoder_with_cross_attention(tmp_path):
    """BERT as a decoder: causal attention and attention to an encoder's padded states."""
    config = transformers.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)
    transformers.BertLMHeadModel(config).double().save_pretrained(tmp_path)
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (BATCH, 7)), "use_cache": False}
    inputs |= {
        "encoder_hidden_states": torch.randn(BATCH, LENGTH, 32, dtype=F64),
        "encoder_attention_mask": padding("left"),
    }
    load = transformers.BertLMHeadModel.from_pretrained
    ours, eager = (load(tmp_path, attn_implementation=word, dtype=F64).eval() for word in ("attngrad", "eager"))
    close(ours(**inputs).logits, eager(**inputs).logits)
