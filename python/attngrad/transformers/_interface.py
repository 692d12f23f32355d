"""Which models look their attention up in the interface of transformers.

transformers accepts a registered word for every model, but a model that has attention of its own goes on with it.
`watch` makes transformers ask here whenever a model is made with a word or given one, so that such a model is refused.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


@torch.compiler.assume_constant_result
def models_of_config_use_interface(config: type) -> bool:
    """Whether the models of a class of configurations use the interface. Yes if they have no class for attention, as
    models made of others, or if their module is not found."""
    return _uses_interface(config.__module__.replace("configuration_", "modeling_")) is not False


def _uses_interface(module: str) -> bool | None:
    """Whether the models of a module use the interface; None if it has no attention."""
    models = sys.modules.get(module)
    if hasattr(models, "ALL_ATTENTION_FUNCTIONS"):
        return True
    own = (x for x in vars(models).values() if getattr(x, "__module__", None) == module) if models else ()
    has_attention = any(isinstance(x, type) and issubclass(x, nn.Module) and "Attention" in x.__name__ for x in own)
    return False if has_attention else None


# ---- Layers that choose their class by the word ----


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function uses, also in comprehensions and functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _globals_of_init(layer: type) -> Iterator[Any]:
    """The global variables that the constructors of a class and its bases use."""
    for base in layer.__mro__:
        init = inspect.unwrap(vars(base).get("__init__", object.__init__))
        if hasattr(init, "__code__"):
            yield from (init.__globals__[name] for name in _names(init.__code__) if name in init.__globals__)


@functools.cache
def _chooses_class(model: type, word: str) -> bool:
    """Whether a layer that the model's constructor makes takes its attention from a dict of classes by the word, as in
    {"eager": ..., "sdpa": ...}[config._attn_implementation], and the dict does not have it. Models inside the model are
    asked by themselves."""
    seen, waiting = {model}, [model]
    while waiting:
        for x in _globals_of_init(waiting.pop()):
            if isinstance(x, dict) and isinstance(x.get("eager"), type) and word not in x:
                return True
            is_layer = isinstance(x, type) and issubclass(x, nn.Module) and not issubclass(x, PreTrainedModel)
            if is_layer and x not in seen:
                seen.add(x)
                waiting.append(x)
    return False


# ---- Refusal ----


def _check_class(model: PreTrainedModel, word: str) -> None:
    """The first of the model's classes whose module has attention decides."""
    bases = (x for x in type(model).__mro__ if issubclass(x, PreTrainedModel) and x is not PreTrainedModel)
    answers = (_uses_interface(x.__module__) for x in bases)
    if next((x for x in answers if x is not None), True) and not _chooses_class(type(model), word):
        return
    raise NotImplementedError(
        f"{type(model).__name__}: it has attention of its own, which attngrad cannot replace; "
        "if it is part of another model, give that one a word per part"
    )


def watch(word: str) -> None:
    """Refuses models without the interface if they are to have this word; at its first call only."""
    if getattr(PreTrainedModel.set_attn_implementation, "_watched", None) == word:
        return
    correct, set_words = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.set_attn_implementation

    @functools.wraps(correct)
    def checked_correct(self, requested_attention, *args: Any, **kwargs: Any) -> str:
        if requested_attention == word:
            _check_class(self, word)
        return correct(self, requested_attention, *args, **kwargs)

    @functools.wraps(set_words)
    def checked_set(self, attn_implementation, *args: Any, **kwargs: Any) -> None:
        for model in _models_given(self, attn_implementation, word):
            _check_class(model, word)
        set_words(self, attn_implementation, *args, **kwargs)

    checked_set._watched = word
    PreTrainedModel.get_correct_attn_implementation = checked_correct
    PreTrainedModel.set_attn_implementation = checked_set


def _models_given(model: PreTrainedModel, words: str | dict, word: str) -> Iterator[PreTrainedModel]:
    """The model and those inside it that get the word: all, or those whose configurations a dict names for it."""
    parts = [x for x in model.modules() if isinstance(x, PreTrainedModel)]
    if not isinstance(words, dict):
        return iter(parts if words == word else ())
    configs = [model.config if key == "" else getattr(model.config, key, None) for key in words if words[key] == word]
    return (x for x in parts if any(x.config is config for config in configs))
