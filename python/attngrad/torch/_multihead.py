"""MultiheadAttention over our attention, and replace, which puts it into a model. Parameters, names and masks
are those of torch.nn.MultiheadAttention, whose boolean masks are True where a pair may not attend: the
opposite of scaled_dot_product_attention's."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import _features
from ._attention import scaled_dot_product_attention


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with attngrad's attention: the same parameters, arguments and results, and
    derivatives in every mode to the second order.

    need_weights=True, the default there and here, returns the weights and so takes memory and time that grow
    with the square of the length; need_weights=False is the fused path. is_causal=True needs no attn_mask;
    if one is given too, it is taken to be the causal mask, as there. The heads give zeros for a query that
    sees no key. save_low and invariant are scaled_dot_product_attention's, of the fused path; the projections
    are PyTorch's own, whose bits may depend on the number of rows.

    >>> layer = MultiheadAttention(16, 4, batch_first=True)
    >>> x = torch.randn(2, 8, 16)
    >>> y, _ = layer(x, x, x, need_weights=False, is_causal=True)
    >>> y.shape
    torch.Size([2, 8, 16])
    """

    save_low, invariant = True, False  # also of layers that were saved before they had them

    def __init__(self, *args: Any, save_low: bool = True, invariant: bool = False, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.save_low = _features.flag("save_low", save_low)
        self.invariant = _features.flag("invariant", invariant)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(query, torch.fx.Proxy):
            raise TypeError(
                "query: a Proxy of torch.fx.symbolic_trace, which cannot look into this layer: "
                "trace with a torch.fx.Tracer whose is_leaf_module is true of it"
            )
        is_batched = query.dim() == 3
        if query.is_nested or key.is_nested or value.is_nested:
            raise TypeError("query, key, value: nested tensors, must be strided ones")
        if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
            raise ValueError(
                f"query, key, value: {query.dim()}, {key.dim()}, {value.dim()} axes, must be 2 or 3 each"
            )
        q, k, v = (self._heads(x, is_batched) for x in self._project(query, key, value))
        extra_keys = (self.bias_k is not None) + bool(self.add_zero_attn)
        fused_causal = is_causal and not need_weights and extra_keys == 0
        if fused_causal:
            attn_mask = None
        elif is_causal and attn_mask is None:
            attn_mask = _future(q, k)
        k, v = self._append_extra_keys(k, v)
        masked, bias = self._masks(q, k, key_padding_mask, attn_mask, extra_keys)
        p = self.dropout if self.training else 0.0
        if need_weights:
            o, weights = _plain(q, k, v, masked, bias, p)
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if is_batched else weights.squeeze(0)
        else:
            visible = None if masked is None else ~masked
            options = {"save_low": self.save_low, "invariant": self.invariant}
            o = scaled_dot_product_attention(q, k, v, visible, p, fused_causal, bias=bias, **options)
            weights = None
        return self.out_proj(self._join(o, is_batched)), weights

    def __prepare_scriptable__(self):
        """Called by torch.jit.script."""
        raise NotImplementedError(
            "attngrad.torch.MultiheadAttention: torch.jit.script cannot compile it; "
            "use torch.export or torch.jit.trace"
        )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias = self.in_proj_bias
        if query is key is value and self.in_proj_weight is not None:
            return F.linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))

    def _heads(self, x: Tensor, is_batched: bool) -> Tensor:
        """[batch, head, position, channel], a view."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        if not is_batched:
            return x.transpose(0, 1).unsqueeze(0)
        return x.transpose(1, 2) if self.batch_first else x.permute(1, 2, 0, 3)

    def _join(self, o: Tensor, is_batched: bool) -> Tensor:
        if not is_batched:
            return o.squeeze(0).transpose(0, 1).flatten(-2)
        return (o.transpose(1, 2) if self.batch_first else o.permute(2, 0, 1, 3)).flatten(-2)

    def _append_extra_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v with the keys and values of add_bias_kv and add_zero_attn after the others."""
        shape = (k.shape[0], self.num_heads, 1, self.head_dim)
        if self.bias_k is not None:
            bias_k, bias_v = (x.view(1, self.num_heads, 1, self.head_dim) for x in (self.bias_k, self.bias_v))
            k, v = torch.cat([k, bias_k.expand(shape)], dim=2), torch.cat([v, bias_v.expand(shape)], dim=2)
        if self.add_zero_attn:
            k, v = torch.cat([k, k.new_zeros(shape)], dim=2), torch.cat([v, v.new_zeros(shape)], dim=2)
        return k, v

    def _masks(self, q, k, key_padding_mask, attn_mask, extra_keys) -> tuple[Tensor | None, Tensor | None]:
        """What is masked, a boolean tensor, and what is added to the scores; the extra keys are always seen."""
        batch, heads, n_q = q.shape[:3]
        n_k = k.shape[2] - extra_keys
        masks = []
        if attn_mask is not None:
            shape = (n_q, n_k) if attn_mask.dim() == 2 else (batch * heads, n_q, n_k)
            _check_mask("attn_mask", attn_mask, shape)
            masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, heads)))
        if key_padding_mask is not None:
            shape = (n_k,) if key_padding_mask.dim() == 1 else (batch, n_k)
            _check_mask("key_padding_mask", key_padding_mask, shape)
            masks.append(key_padding_mask.reshape(-1, 1, 1, n_k))
        masked = bias = None
        for mask in (F.pad(mask, (0, extra_keys)) if extra_keys else mask for mask in masks):
            if mask.dtype == torch.bool:
                masked = mask if masked is None else masked | mask
            else:
                bias = mask if bias is None else bias + mask
        return masked, bias


def _check_mask(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name}: dtype {mask.dtype}, must be bool or floating point")
    if tuple(mask.shape) != shape:
        raise ValueError(f"{name}: shape {list(mask.shape)}, must be {list(shape)}")


def _future(q: Tensor, k: Tensor) -> Tensor:
    """True for keys after the query."""
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)


def _plain(q: Tensor, k: Tensor, v: Tensor, masked, bias, dropout: float) -> tuple[Tensor, Tensor]:
    """Attention by its formula, for the weights themselves."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if masked is not None:
        scores = scores.masked_fill(masked, float("-inf"))
    empty = scores.isneginf().all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0).softmax(dim=-1).masked_fill(empty, 0)
    weights = F.dropout(weights, dropout)
    return weights @ v, weights


def replace(model: nn.Module, *, save_low: bool = True, invariant: bool = False) -> nn.Module:
    """Gives every torch.nn.MultiheadAttention inside the model our attention, in place, and returns the
    model. save_low and invariant are scaled_dot_product_attention's, for the layers that get our attention here.

    Parameters, buffers and hooks stay what they are. Subclasses of torch.nn.MultiheadAttention, layers
    with parametrizations, whose class PyTorch replaces, and scripted or traced ones are left alone, and a
    warning names them. The layers of
    torch.nn.TransformerEncoder lose PyTorch's fast path in evaluation, which bypasses their attention.

    >>> layer = replace(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True))
    >>> type(layer.self_attn).__module__
    'attngrad.torch._multihead'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: {type(model).__name__}, must be a torch.nn.Module")
    save_low, invariant = _features.flag("save_low", save_low), _features.flag("invariant", invariant)
    skipped = []
    for name, module in model.named_modules():
        if type(module) is nn.MultiheadAttention:
            module.__class__ = MultiheadAttention
            module.save_low, module.invariant = save_low, invariant
        elif isinstance(module, nn.MultiheadAttention) and not isinstance(module, MultiheadAttention):
            skipped.append(f"{name or 'the model itself'} ({type(module).__name__})")
        elif isinstance(module, torch.jit.ScriptModule) and module.original_name == "MultiheadAttention":
            skipped.append(f"{name or 'the model itself'} ({type(module).__name__})")
        elif isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # turns the fast path off
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    if skipped:
        warnings.warn(f"attngrad.torch.replace left alone: {', '.join(skipped)}", stacklevel=2)
    return model
