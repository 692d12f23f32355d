"""Small models of many architectures, with inputs: what the tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers

BATCH, LENGTH, VOCABULARY = 2, 12, 40
# Width 32, 2 layers, 4 heads, in the words of most configurations.
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}


@dataclass(frozen=True)
class Architecture:
    """model and config: names of classes of transformers; inputs: a function of no arguments."""

    model: str
    config: str
    settings: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    limit: float = 1e-9  # of the difference to eager attention, relative, float64
    oldest: bool = False  # also tested with the oldest supported release
    missing: str | None = None  # the op of the model, outside attention, that has no forward-over-reverse derivative
    options: dict[str, Any] = field(default_factory=dict)  # of from_pretrained

    def make(self) -> transformers.PreTrainedModel:
        config = getattr(transformers, self.config)(**self.settings)
        torch.manual_seed(3)
        return getattr(transformers, self.model)(config).double()

    def load(self, folder, attention: str, dtype=torch.float64) -> transformers.PreTrainedModel:
        load = getattr(transformers, self.model).from_pretrained
        model = load(folder, attn_implementation=attention, dtype=dtype, local_files_only=True, **self.options)
        return model.eval()


# ---- Inputs ----


def padding(side: str, lengths=(LENGTH, LENGTH - 5)) -> torch.Tensor:
    """[batch, LENGTH]: 1 for tokens, 0 for padding at the given side."""
    position = torch.arange(LENGTH)
    position = position if side == "right" else position.flip(0)
    return (position < torch.tensor(lengths)[:, None]).long()


def text(side: str | None = "right", vocabulary=VOCABULARY) -> dict[str, Any]:
    """Tokens and labels. The loss leaves out the label -100, which padding has, and also a token after padding: a
    query that sees no key predicts it, whose output is not eager's."""
    tokens = torch.randint(3, vocabulary, (BATCH, LENGTH))
    if side is None:
        return {"input_ids": tokens, "labels": tokens, "use_cache": False}
    mask = padding(side)
    labels = tokens.masked_fill(mask == 0, -100)
    labels[:, 1:].masked_fill_(mask[:, :-1] == 0, -100)
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels, "use_cache": False}


def masked_text() -> dict[str, Any]:
    inputs = text()
    del inputs["use_cache"]
    return inputs


def text_pair() -> dict[str, Any]:
    """Tokens to read, of which some are padding, and tokens to write."""
    return {
        "input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH)),
        "attention_mask": padding("right"),
        "labels": torch.randint(3, VOCABULARY, (BATCH, 7)),
        "use_cache": False,
    }


def image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16, dtype=torch.float64)}


def image_and_text() -> dict[str, Any]:
    tokens = torch.randint(3, VOCABULARY - 1, (BATCH, LENGTH))
    tokens[:, -1] = VOCABULARY - 1  # the end, whose state stands for the text
    return image() | {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "return_loss": True}


def sound() -> dict[str, Any]:
    mask = torch.ones(BATCH, 400, dtype=torch.int64)
    mask[1, 250:] = 0
    return {"input_values": torch.randn(BATCH, 400, dtype=torch.float64), "attention_mask": mask}


def spectrum_and_text() -> dict[str, Any]:
    features = torch.randn(BATCH, 8, 40, dtype=torch.float64)
    return {"input_features": features, "labels": torch.randint(3, VOCABULARY, (BATCH, 7)), "use_cache": False}


# ---- Architectures ----

_VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
_VISION |= {"image_size": 16, "patch_size": 4}
_MIXTURE = {"num_local_experts": 3, "num_experts_per_tok": 2}
_SPEECH = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
_SPEECH |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
_EAGER_EXPERTS = {"experts_implementation": "eager"}

ZOO = {
    # decoders
    "llama": Architecture("LlamaForCausalLM", "LlamaConfig", GROUPED, text),
    "llama left": Architecture("LlamaForCausalLM", "LlamaConfig", GROUPED, lambda: text("left"), oldest=True),
    "mistral": Architecture("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 5}, text, oldest=True),
    "qwen3": Architecture("Qwen3ForCausalLM", "Qwen3Config", GROUPED, lambda: text(None)),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        GROUPED | {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
        text,
        oldest=True,
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        lambda: text("left"),
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "GptOssConfig",
        GROUPED | _MIXTURE | {"sliding_window": 4},
        text,
        oldest=True,
        options=_EAGER_EXPERTS,
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
        | {"eos_token_id": 2, "pad_token_id": 0, "scale_attn_by_inverse_layer_idx": True},
        text,
    ),
    "opt": Architecture(
        "OPTForCausalLM",
        "OPTConfig",
        SMALL | {"ffn_dim": 40, "word_embed_proj_dim": 32},
        text,
    ),
    "deepseek-v3": Architecture(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        SMALL
        | {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
        | {"qk_nope_head_dim": 8, "first_k_dense_replace": 2},
        text,
    ),
    "llama4": Architecture(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        GROUPED
        | {"attention_chunk_size": 5, "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]}
        | {"moe_layers": [], "intermediate_size_mlp": 40},
        lambda: text("left"),
        limit=1e-6,  # it rotates queries and keys in float32, also those of float64
        oldest=True,
    ),
    # encoders
    "bert": Architecture("BertForMaskedLM", "BertConfig", SMALL, masked_text, oldest=True),
    "modernbert": Architecture(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        SMALL | {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
        masked_text,
    ),
    # encoder-decoders
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10},
        text_pair,
    ),
    "bart": Architecture(
        "BartForConditionalGeneration",
        "BartConfig",
        _SPEECH | {"max_position_embeddings": 64, "pad_token_id": 0, "decoder_start_token_id": 1},
        text_pair,
        oldest=True,
    ),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _SPEECH
        | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32, "pad_token_id": 0}
        | {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None}
        | {"begin_suppress_tokens": None},
        spectrum_and_text,
    ),
    # speech
    "wav2vec2": Architecture(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        SMALL
        | {"conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (8, 4), "num_feat_extract_layers": 2}
        | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
        | {"layerdrop": 0.0},
        sound,
        missing="_weight_norm_interface",
    ),
    # vision
    "vit": Architecture("ViTModel", "ViTConfig", _VISION, image, oldest=True),
    "dinov2": Architecture("Dinov2Model", "Dinov2Config", _VISION, image),
    "clip": Architecture(
        "CLIPModel",
        "CLIPConfig",
        {"text_config": SMALL | {"eos_token_id": VOCABULARY - 1}, "vision_config": _VISION, "projection_dim": 16},
        image_and_text,
    ),
}


# Their names, for pytest; those of the oldest release are marked.
NAMES = [pytest.param(name, marks=[pytest.mark.oldest] * x.oldest) for name, x in ZOO.items()]


# ---- Derivatives ----


def loss_of(outputs) -> torch.Tensor:
    """The model's own loss, or if it has none, a nonlinear function of its last layer."""
    loss = getattr(outputs, "loss", None)
    return outputs.last_hidden_state.sin().mean() if loss is None else loss


class Derivatives:
    """The loss of a model and its derivatives with respect to all parameters, each as one vector."""

    def __init__(self, model: torch.nn.Module, inputs: dict[str, Any]):
        self.model, self.inputs = model, inputs
        self.parameters = {name: p.detach() for name, p in model.named_parameters()}
        generator = torch.Generator().manual_seed(11)
        self.directions = {
            name: torch.randn(p.shape, dtype=torch.float64, generator=generator).to(p.dtype)
            for name, p in self.parameters.items()
        }

    def loss(self) -> torch.Tensor:
        return loss_of(self.model(**self.inputs))

    def functional_loss(self, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss_of(torch.func.functional_call(self.model, parameters, (), self.inputs))

    def gradients(self, create_graph=False) -> list[torch.Tensor]:
        parameters = list(self.model.parameters())
        return list(torch.autograd.grad(self.loss(), parameters, create_graph=create_graph, materialize_grads=True))

    def double_backward(self) -> list[torch.Tensor]:
        """The Hessian times the directions, by differentiating the gradient backward."""
        products = [(g * t).sum() for g, t in zip(self.gradients(True), self.directions.values(), strict=True)]
        parameters = list(self.model.parameters())
        return list(torch.autograd.grad(torch.stack(products).sum(), parameters, materialize_grads=True))

    def forward_over_reverse(self) -> list[torch.Tensor]:
        """The same by torch.func.jvp of torch.func.grad."""
        gradient = torch.func.grad(self.functional_loss)
        return list(torch.func.jvp(gradient, (self.parameters,), (self.directions,))[1].values())

    def differences(self, step=1e-7) -> list[torch.Tensor]:
        """The same by differences of the gradient, of fourth order."""
        gradient = torch.func.grad(self.functional_loss)
        weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        for k, weight in weights.items():
            moved = {name: p + k * step * self.directions[name] for name, p in self.parameters.items()}
            for name, g in gradient(moved).items():
                total[name] += weight / step * g
        return list(total.values())


def distance(x: list[torch.Tensor], y: list[torch.Tensor]) -> float:
    """The largest difference of two tensors of the same place, relative to the norm of all of them."""
    norm = torch.stack([b.double().norm() for b in y]).norm()
    return max(((a.double() - b.double()).norm() / norm).item() for a, b in zip(x, y, strict=True))
