"""What attngrad does not serve is refused by name, never ignored."""

import copy

import pytest
import torch
import transformers
from torch import nn
from transformers.models.mllama.configuration_mllama import MllamaTextConfig
from zoo import VOCABULARY, ZOO

import attngrad.transformers
from attngrad.transformers import _register
from attngrad.transformers._attention import attention
from attngrad.transformers._masks import make_mask

pytestmark = pytest.mark.oldest
Q = torch.randn(2, 4, 6, 8)


def run(mask=None, q=Q, k=Q, v=Q, **keywords):
    return attention(nn.Identity(), q, k, v, mask, **keywords)


@pytest.mark.parametrize(
    "keywords, name",
    [
        ({"output_attentions": True}, "output_attentions"),
        ({"head_mask": torch.ones(4)}, "head_mask"),
        ({"indices": torch.zeros(2, 6, 3)}, "indices"),
        ({"block_indices": torch.zeros(2, 6, 3)}, "block_indices"),
        ({"sinks": torch.zeros(2, 4, 6, 1)}, "sinks"),
        ({"cache": object()}, "cache"),
        ({"something_new": 1}, "something_new"),
        ({"mask": object()}, "attention_mask"),
        ({"mask": torch.ones(2, 6, dtype=torch.bool)}, "attention_mask"),
        ({"mask": torch.ones(2, 1, 6, 6, dtype=torch.int64)}, "attention_mask"),
        ({"k": Q[:, :, :5], "v": Q[:, :, :5], "is_causal": True}, "is_causal"),
        ({}, "is_causal: the model made no mask, and Identity does not say"),
        ({"sliding_window": 3}, "sliding_window"),
        ({"q": torch.zeros(1, 1, 2, 576), "k": torch.zeros(1, 1, 2, 576), "v": torch.zeros(1, 1, 2, 8)}, "query"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_not_served(keywords, name):
    with pytest.raises(NotImplementedError, match=f"^{name}"):
        run(**keywords)


LISTS = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, 2, 6]))


@pytest.mark.parametrize(
    "keywords, error",
    [
        ({"mask": torch.ones(2, 1, 6, 6, dtype=torch.bool)}, NotImplementedError),
        ({"mask": make_mask(2, 6, 6, attention_mask=torch.arange(6) < torch.tensor([[6], [4]]))}, NotImplementedError),
        ({}, NotImplementedError),  # two rows
        ({"q": Q[:1], "k": Q[:1], "v": Q[:1], "cu_seq_lens_k": None}, ValueError),
        ({"q": Q[:1], "k": Q[:1], "v": Q[:1], "cu_seq_lens_k": torch.tensor([0, 2, 5])}, ValueError),
    ],
    ids=["matrix", "padding", "batch", "one list", "end"],
)
def test_lists_of_sequences(keywords, error):
    with pytest.raises(error, match="^cu_seq_lens_"):
        run(is_causal=True, **LISTS | keywords)


def test_lists_that_contradict_positions(tmp_path):
    model = ZOO["llama"].make().eval()
    model.set_attn_implementation("attngrad")
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (1, 6)), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    with pytest.raises(ValueError, match=r"^cu_seq_lens_q: \[0, 2, 6\], but the mask's sequences begin at \[0, 3, 6\]"):
        model(**inputs, use_cache=False, **LISTS)


def test_a_mask_of_another_shape():
    with pytest.raises(ValueError, match=r"^attention_mask: shape \[2, 1, 6, 7\], but the scores have \[2, 1, 6, 6\]"):
        run(make_mask(2, 6, 7))


@pytest.mark.parametrize("name", ZOO)
def test_weights_of_a_model(name, tmp_path):
    """The model passes output_attentions to its attention, or only collects what its attention returns."""
    ZOO[name].make().save_pretrained(tmp_path)
    if name == "t5" and transformers.__version__ == attngrad.transformers.OLDEST:
        with pytest.raises(NotImplementedError, match="^T5ForConditionalGeneration: it has attention of its own"):
            ZOO[name].load(tmp_path, "attngrad")
        return
    model = ZOO[name].load(tmp_path, "attngrad")
    with pytest.raises(NotImplementedError, match="^output_attentions"):
        model(**ZOO[name].inputs(), output_attentions=True)


def test_cross_attention_without_a_mask():
    """Its module does not say that it is not causal; with as many queries as keys it could be either."""
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
    layers = {"num_hidden_layers": 2, "cross_attention_layers": [1], "pad_token_id": 0}
    config = MllamaTextConfig(vocab_size=VOCABULARY, **sizes, **layers, attn_implementation="attngrad")
    model = transformers.MllamaForCausalLM(config).eval()
    with pytest.raises(NotImplementedError, match="^is_causal: .* MllamaTextCrossAttention does not say"):
        model(torch.randint(3, VOCABULARY, (2, 6)), cross_attention_states=torch.randn(2, 6, 32))


TINY_LAYERS = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
TINY = TINY_LAYERS | {"vocab_size": VOCABULARY}
OF_THEIR_OWN = {
    "CodeGenModel": transformers.CodeGenConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, rotary_dim=4),
    "DebertaModel": transformers.DebertaConfig(**TINY),
    "FSMTModel": transformers.FSMTConfig(d_model=32, encoder_layers=1, decoder_layers=1),
    "GPTJModel": transformers.GPTJConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, rotary_dim=4),
    "OpenAIGPTModel": transformers.OpenAIGPTConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4),
    "XLMModel": transformers.XLMConfig(n_words=VOCABULARY, emb_dim=32, n_layers=1, n_heads=4),
}


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_models_with_attention_of_their_own(name):
    """They do not look the word up: refused by the name of their class, when made and when given the word."""
    make = transformers.AutoModel.from_config
    with pytest.raises(NotImplementedError, match=f"^{name}: it has attention of its own"):
        make(copy.deepcopy(OF_THEIR_OWN[name]), attn_implementation="attngrad")
    model = make(copy.deepcopy(OF_THEIR_OWN[name]), attn_implementation="eager")
    for word in ("attngrad", {"": "attngrad"}):
        with pytest.raises(NotImplementedError, match=f"^{name}: it has attention of its own"):
            model.set_attn_implementation(word)
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("eager")


VISION = TINY_LAYERS | {"image_size": 8, "patch_size": 4}
SAM_VISION = VISION | {"output_channels": 32, "mlp_dim": 32, "window_size": 0, "global_attn_indexes": [0]}


def git_config():
    return transformers.GitConfig(**TINY, vision_config=dict(VISION))


def sam_config():
    decoder = {"hidden_size": 32, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    decoder |= {"iou_head_hidden_dim": 32}
    prompts = {"hidden_size": 32, "image_size": 8, "patch_size": 4, "mask_input_channels": 4}
    return transformers.SamConfig(
        vision_config=dict(SAM_VISION), prompt_encoder_config=prompts, mask_decoder_config=decoder
    )


@pytest.mark.parametrize("config, name", [(git_config, "GitModel"), (sam_config, "SamVisionEncoder")])
def test_models_that_choose_classes_by_the_word(config, name):
    """Some of their layers use the interface, others a dict of classes that does not have the word."""
    make = transformers.AutoModel.from_config
    with pytest.raises(NotImplementedError, match=f"^{name}: it has attention of its own"):
        make(config(), attn_implementation="attngrad")
    model = make(config(), attn_implementation="eager")
    with pytest.raises(NotImplementedError, match=f"^{name}: it has attention of its own"):
        model.set_attn_implementation("attngrad")
    assert model.config._attn_implementation == "eager"


def test_parts_of_models_that_choose_classes_by_the_word():
    """Parts without such layers may have the word."""
    model = transformers.AutoModel.from_config(git_config(), attn_implementation="eager")
    model.set_attn_implementation({"vision_config": "attngrad"})
    assert model.config.vision_config._attn_implementation == "attngrad"
    model = transformers.AutoModel.from_config(sam_config(), attn_implementation="eager")
    model.set_attn_implementation({"mask_decoder_config": "attngrad"})
    assert model.config.vision_config._attn_implementation == "eager"


def test_a_subclass_of_a_model_with_attention_of_its_own():
    model = type("Mine", (transformers.DebertaModel,), {})
    with pytest.raises(NotImplementedError, match="^Mine: it has attention of its own"):
        model._from_config(copy.deepcopy(OF_THEIR_OWN["DebertaModel"]), attn_implementation="attngrad")


def test_masks_of_models_with_attention_of_their_own():
    """A word that is written into the configuration is noticed when the model makes a mask by transformers."""
    model = transformers.AutoModel.from_config(copy.deepcopy(OF_THEIR_OWN["CodeGenModel"])).eval()
    model.config._attn_implementation = "attngrad"
    with pytest.raises(NotImplementedError, match="^CodeGenConfig: its models have attention of their own"):
        model(input_ids=torch.tensor([[3, 4, 5]]))


def two_towers(text, words):
    vision = transformers.ViTConfig(**TINY_LAYERS, image_size=8, patch_size=4)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text)
    return transformers.VisionTextDualEncoderModel._from_config(config, attn_implementation=words)


def test_models_made_of_others():
    """Each part is asked by itself; a part with attention of its own may have another word."""
    parts = {"text_config": "eager", "vision_config": "attngrad"}
    for word in ("attngrad", parts):
        model = two_towers(transformers.BertConfig(**TINY), word)
        assert model.vision_model.config._attn_implementation == "attngrad"
    model.set_attn_implementation("attngrad")
    assert model.text_model.config._attn_implementation == "attngrad"

    own = OF_THEIR_OWN["DebertaModel"]
    with pytest.raises(NotImplementedError, match="^DebertaModel: it has attention of its own"):
        two_towers(copy.deepcopy(own), "attngrad")
    model = two_towers(copy.deepcopy(own), parts)
    for words in ("attngrad", {"text_config": "attngrad"}):
        with pytest.raises(NotImplementedError, match="^DebertaModel: it has attention of its own"):
            model.set_attn_implementation(words)
    model.set_attn_implementation(parts)
    assert model.vision_model.config._attn_implementation == "attngrad"


def test_old_release(monkeypatch):
    monkeypatch.setattr(_register.transformers, "__version__", "4.57.6")
    with pytest.raises(NotImplementedError, match=f"^transformers: release 4.57.6.*{attngrad.transformers.OLDEST}"):
        attngrad.transformers.register()


def test_false_and_none_are_absent():
    want = run(is_causal=False)[0]
    assert torch.equal(run(is_causal=False, output_attentions=False, head_mask=None, s_aux=None)[0], want)
