"""The attention function: what models pass, turned into arguments of scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import output_capturing

from ..torch import scaled_dot_product_attention
from ._masks import Mask, Visible

# Keywords that models pass along and that do not change what attention computes: positions that are in the query and
# the key already, what to return from other layers, sizes that the lists of packed sequences contain.
_WITHOUT_EFFECT = frozenset(
    "cache_position deterministic layer_idx logits_to_keep max_length_k max_length_q num_items_in_batch "
    "output_hidden_states output_router_logits position_embeddings position_ids return_dict seq_idx use_cache".split()
)
_MAX_DIM = 512


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The output [batch, queries, heads, d], and None in place of the weights, which are never computed.

    query [batch, heads, queries, d], key and value [batch, kv heads, keys, d]. A Mask says itself what it hides, and so
    does a tensor: bool, True attends, or float, added to the scores. Without a mask is_causal, or the module's
    attribute, decides. s_aux is the sink of each head.
    """
    _refuse(query, value, others)
    visible = _visible(module, query, key, attention_mask, is_causal, sliding_window)
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        visible = _with_lists(visible, query, key, cu_seq_lens_q, cu_seq_lens_k)
    if position_bias is not None:
        visible = _with_bias(visible, attention_mask, position_bias)
    keywords = visible.keywords | {"scale": scaling, "softcap": softcap, "sink": s_aux}
    keywords["dropout_p"] = dropout if module.training else 0.0
    keywords["enable_gqa"] = query.shape[1] != key.shape[1]
    if visible.packed is None:
        o = scaled_dot_product_attention(query, key, value, **keywords)
    else:
        o = _packed_attention(query, key, value, visible.packed, keywords)
    return o.transpose(1, 2).contiguous(), None


# ---- What is not served ----


def _refuse(query: Tensor, value: Tensor, others: dict[str, Any]) -> None:
    for name, x in others.items():
        if name not in _WITHOUT_EFFECT and x is not None and x is not False:
            raise NotImplementedError(f"{name}: the model passes it to its attention, but attngrad does not serve it")
    if any(name.endswith("attentions") for name in output_capturing._active_collector.get() or ()):
        raise NotImplementedError("output_attentions: the model collects weights, which attngrad never computes")
    if query.device.type not in ("cpu", "cuda", "meta"):
        raise NotImplementedError(f"query: device {query.device}, but attngrad computes on the CPU and on NVIDIA GPUs")
    size = max(query.shape[-1], value.shape[-1])
    if size > _MAX_DIM:
        raise NotImplementedError(f"query, value: head size {size}, but attngrad serves at most {_MAX_DIM}")


# ---- Which keys are seen ----


def _visible(module, query: Tensor, key: Tensor, mask, is_causal: bool | None, window: int | None) -> Visible:
    n_q, n_k = query.shape[2], key.shape[2]
    if isinstance(mask, Mask):
        _check_shape(mask, (query.shape[0], 1, n_q, n_k))
        return mask.visible
    if mask is not None:
        return _visible_by_tensor(mask, query)
    if window is not None and window < n_k:
        raise NotImplementedError(f"sliding_window: {window}, but the model made no mask for its {n_k} keys")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    if n_q == 1 or is_causal is not None and not is_causal:
        return Visible({})
    if is_causal is None:
        raise NotImplementedError(
            f"is_causal: the model made no mask, and {type(module).__name__} does not say whether it is causal"
        )
    if n_q != n_k:
        raise NotImplementedError(
            f"is_causal: the model made no mask, and {n_q} queries and {n_k} keys do not say their positions"
        )
    return Visible({"is_causal": True})


def _check_shape(mask: Mask, shape: tuple[int, ...]) -> None:
    """A mask for one row of the batch serves all, unless it lists packed sequences. One without a pattern is checked as
    the matrix that it is."""
    if mask.pattern is None:
        return
    batches = (shape[0],) if mask.pattern.is_packed else (1, shape[0])
    if mask.shape[0] not in batches or mask.shape[1:] != shape[1:]:
        raise ValueError(f"attention_mask: shape {list(mask.shape)}, but the scores have {list(shape)}")


def _visible_by_tensor(mask: Tensor, query: Tensor) -> Visible:
    if not isinstance(mask, Tensor):
        raise NotImplementedError(f"attention_mask: {type(mask).__name__}, but attngrad takes a tensor")
    if mask.dim() != 4:
        raise NotImplementedError(f"attention_mask: shape {list(mask.shape)}, but attngrad takes [batch, 1, q, k]")
    if mask.dtype == torch.bool:
        return Visible({"attn_mask": mask})
    if not mask.is_floating_point():
        raise NotImplementedError(f"attention_mask: dtype {mask.dtype}, but attngrad takes bool or a float")
    return Visible({"bias": mask.to(query.dtype)})


def _with_bias(visible: Visible, mask, position_bias: Tensor) -> Visible:
    """A bias beside a mask. Packed sequences would index it from their own first pair, so they become a matrix."""
    keywords = visible.keywords
    if visible.packed is not None:
        if not isinstance(mask, Mask) or mask.visible is not visible:
            raise NotImplementedError("position_bias: together with cu_seq_lens_q")
        keywords = {"attn_mask": mask.dense}
    if "bias" in keywords:
        position_bias = position_bias + keywords["bias"]
    return Visible(keywords | {"bias": position_bias})


# ---- Packed sequences ----


def _with_lists(visible: Visible, query: Tensor, key: Tensor, q_list, k_list) -> Visible:
    """The sequences that the caller of the model lists; a mask that has found them by itself must agree."""
    if q_list is None or k_list is None:
        raise ValueError("cu_seq_lens_q, cu_seq_lens_k: give both or none")
    if visible.packed is not None:
        for letter, found, given in zip("qk", visible.packed, (q_list, k_list), strict=True):
            if found.tolist() != given.tolist():
                text = f"{given.tolist()}, but the mask's sequences begin at {found.tolist()}"
                raise ValueError(f"cu_seq_lens_{letter}: {text}")
        return visible
    for name in ("attn_mask", "bias", "kv_lengths", "q_offset"):
        if name in visible.keywords:
            raise NotImplementedError(f"cu_seq_lens_q: together with a mask of padding, a 4-D mask or a cache ({name})")
    if query.shape[0] != 1:
        raise NotImplementedError(f"cu_seq_lens_q: with a batch of {query.shape[0]}, must be one packed row")
    for name, ends, n in (("cu_seq_lens_q", q_list, query.shape[2]), ("cu_seq_lens_k", k_list, key.shape[2])):
        if ends[-1] != n:
            raise ValueError(f"{name}: ends at {int(ends[-1])}, but there are {n} positions")
    keywords = visible.keywords | ({} if torch.equal(q_list, k_list) else {"align": "bottom-right"})
    return Visible(keywords, (q_list, k_list))


def _packed_attention(query: Tensor, key: Tensor, value: Tensor, packed, keywords: dict[str, Any]) -> Tensor:
    """The sequences of all rows of the batch, one after another."""
    batch, heads, n, _ = query.shape
    rows = [x.transpose(0, 1).flatten(1, 2) for x in (query, key, value)]  # [heads, batch * n, d]
    o = scaled_dot_product_attention(*rows, q_packed=packed[0], k_packed=packed[1], **keywords)
    return o.view(heads, batch, n, o.shape[-1]).transpose(0, 1)
