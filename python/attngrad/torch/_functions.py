"""The derivatives of the maps, as autograd.Functions over the ops; no formula of attention is here.

    Attention   its backward is Vjp, its jvp is Jvp
    Vjp         its backward is Jvp (for d_o, d_lse) and VjpJvp (for the inputs: the Hessian is symmetric);
                its jvp is VjpJvp
    Jvp         its backward is Vjp (for the tangents) and VjpJvp (for the inputs);
                its jvp is Jvp (for the tangents) and JvpJvp (for the inputs)
    VjpJvp      linear in the direction, and differentiable with respect to the direction only
    JvpJvp      linear in each of its two directions, and differentiable with respect to them only

The maps take o, lse, to, mu and smu only to save computing them again: their results are total derivatives
in the inputs and cotangents. So no Function here returns a cotangent for o, lse, to, mu or smu: their contribution
would be counted twice. The same holds for the low halves o_low and to_low, which are None if they are not used.
To forward mode the tangent of o_low is to_low: so it reaches the jvp of Vjp as to does.
"""

from __future__ import annotations

import functools
import inspect

import torch
from torch.autograd import Function, forward_ad

from . import _plain, _vmap
from ._features import read
from ._ops import KERNELS, N_COMMON, library, low_or_none, no_low

_ops = torch.ops.attngrad
_functorch = torch._C._functorch
_FEATURES = N_COMMON - 1  # the position of the features
_REST = (None,) * (N_COMMON - 6)  # the gradients of the common arguments after the six inputs
# Positions of arguments. 0 .. 12 are common to all; then Attention has `low`, 13, the others o, lse and o_low,
# 13 .. 15. Vjp and VjpJvp: d_o and d_lse are 16 and 17. Jvp: the tangents are 16 .. 21. VjpJvp: the tangents are
# 18 .. 23, to, mu and to_low 24 .. 26, td_o and td_lse 27 and 28. Vjp and VjpJvp end with `wanted`, 18 and 29.
# JvpJvp: the tangents are 16 .. 21, mu is 22, the second tangents are 23 .. 28, smu is 29.


def _save_for_backward(ctx, inputs, output) -> tuple:
    """Saves inputs and outputs: tensors (and None) by PyTorch, the features and `wanted` in ctx; _saved returns them in
    order. Returns the tensors."""
    ctx.set_materialize_grads(False)
    values = (*inputs, *output)
    ctx.features = values[_FEATURES]
    ctx.wanted = values[-1:] if isinstance(values[-1], int) else ()
    tensors = values[:_FEATURES] + values[_FEATURES + 1 : len(values) - len(ctx.wanted)]
    ctx.save_for_backward(*tensors)
    return tensors


def _save(ctx, inputs, output=()) -> None:
    """The same for forward mode too."""
    ctx.save_for_forward(*_save_for_backward(ctx, inputs, output))


def _saved(ctx) -> list:
    tensors = ctx.saved_tensors
    return [*tensors[:_FEATURES], ctx.features, *tensors[_FEATURES:], *ctx.wanted]


def _all_none(values) -> bool:
    return all(x is None for x in values)


def _bits(flags) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _chosen(gradients, wanted: int) -> tuple:
    """The gradients whose bit is set; None for the others."""
    return tuple(x if wanted >> i & 1 else None for i, x in enumerate(gradients))


def _reaches(ctx, inputs, positions) -> bool:
    """Whether the backward pass under way goes on through one of these inputs. needs_input_grad says only
    that it could: torch.autograd.functional.hvp records the point too, and differentiates by the direction only."""
    tensors = (i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor))
    for i, (node, _) in zip(tensors, ctx.next_functions, strict=True):
        if i in positions and node is not None:
            try:
                if torch._C._will_engine_execute_node(node):
                    return True
            except RuntimeError:  # PyTorch does not say for a leaf whose gradient is requested
                return True
    return False


def _refuse() -> None:
    raise NotImplementedError(
        "attngrad.torch: a third derivative: the maps end with second derivatives. For third ones take finite "
        "differences of a second one (torch.func.jvp of torch.func.grad, torch.func.jvp of torch.func.jvp), or "
        "torch.nn.functional.scaled_dot_product_attention under sdpa_kernel(SDPBackend.MATH), whose memory "
        "grows with the square of the length"
    )


def _save_results(ctx, inputs, output) -> None:
    """Saves inputs, o, lse and o_low, or to, mu and to_low; a low half that was not computed as None."""
    *results, low = output
    _save(ctx, inputs, (*results, low_or_none(low)))


def _jvp_results(*args) -> tuple:
    """to, mu and to_low, the last as an argument of VjpJvp."""
    to, mu, to_low = Jvp.apply(*args)
    return to, mu, low_or_none(to_low)


def _sum(results) -> tuple:
    """The sum of some results of a map, each a tuple of tensors."""
    return tuple(functools.reduce(torch.add, column) for column in zip(*results, strict=True))


class Attention(Function):
    """(common, low) -> o, lse, o_low; o_low is an empty tensor unless `low` is True"""

    @staticmethod
    def forward(*args):
        *common, low = args
        if low:
            return _ops.forward_low.default(*common)
        return *_ops.forward.default(*common), no_low(common[0])

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save_results(ctx, inputs[:-1], output)

    @staticmethod
    def backward(ctx, d_o, d_lse, _):
        saved = _saved(ctx)
        wanted = _bits(ctx.needs_input_grad[:6])
        if _all_none((d_o, d_lse)) or wanted == 0:
            return (None,) * (N_COMMON + 1)
        return *_chosen(Vjp.apply(*saved, d_o, d_lse, wanted), wanted), *_REST, None

    @staticmethod
    def jvp(ctx, *tangents):
        return Jvp.apply(*_saved(ctx), *tangents[:6])

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(Attention, _vmap.ATTENTION, info, in_dims, args)


class Vjp(Function):
    """(common, o, lse, o_low, d_o, d_lse, wanted) -> six gradients"""

    @staticmethod
    def forward(*args):
        return _ops.vjp.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx, *cotangents):
        saved = _saved(ctx)
        u = _chosen(cotangents, saved[-1])
        if _all_none(u):
            return (None,) * 19
        needs = ctx.needs_input_grad
        to, mu, to_low = _jvp_results(*saved[:16], *u)
        bits = _bits(needs[:6])
        inputs = (None,) * 6
        if bits:
            inputs = VjpJvp.apply(*saved[:18], *u, to, mu, to_low, None, None, bits)
        to, mu = (x if need else None for x, need in zip((to, mu), needs[16:18], strict=True))
        return *_chosen(inputs, bits), *_REST, None, None, None, to, mu, None

    @staticmethod
    def jvp(ctx, *tangents):
        saved = _saved(ctx)
        t, (to, mu, to_low, td_o, td_lse) = tangents[:6], tangents[13:18]
        if _all_none(t):
            return Vjp.apply(*saved[:16], td_o, td_lse, saved[-1])
        if to is None or mu is None:
            to, mu, to_low = _jvp_results(*saved[:16], *t)
        return VjpJvp.apply(*saved[:18], *t, to, mu, to_low, td_o, td_lse, saved[-1])

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(Vjp, _vmap.VJP, info, in_dims, args)


class Jvp(Function):
    """(common, o, lse, o_low, six tangents) -> to, mu, to_low; to_low is an empty tensor if o_low is None"""

    @staticmethod
    def forward(*args):
        return _ops.jvp.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save_results(ctx, inputs, output)

    @staticmethod
    def backward(ctx, d_to, d_mu, _):
        saved = _saved(ctx)
        if _all_none((d_to, d_mu)):
            return (None,) * 22
        bits, t_bits = _bits(ctx.needs_input_grad[:6]), _bits(ctx.needs_input_grad[16:22])
        inputs = tangents = (None,) * 6
        if bits:  # saved[16:] are the tangents, to, mu and to_low
            inputs = VjpJvp.apply(*saved[:16], d_to, d_mu, *saved[16:], None, None, bits)
        if t_bits:
            tangents = Vjp.apply(*saved[:16], d_to, d_mu, t_bits)
        return *_chosen(inputs, bits), *_REST, None, None, None, *_chosen(tangents, t_bits)

    @staticmethod
    def jvp(ctx, *tangents):
        saved = _saved(ctx)
        s, smu, st = tangents[:6], tangents[14], tangents[16:22]
        if _all_none(s):
            return Jvp.apply(*saved[:16], *st)
        if smu is None:
            smu = Jvp.apply(*saved[:16], *s)[1]
        _, mu, to_low = saved[22:]
        results = [JvpJvp.apply(*saved[:22], mu, *s, smu)]
        if not _all_none(st):
            results.append(Jvp.apply(*saved[:16], *st)[:2])
        # No map reads the tangent of to_low, but PyTorch wants one.
        return *_sum(results), no_low(saved[0]) if to_low is None else torch.zeros_like(to_low)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(Jvp, _vmap.JVP, info, in_dims, args)


class VjpJvp(Function):
    """(common, o, lse, o_low, d_o, d_lse, six tangents, to, mu, to_low, td_o, td_lse, wanted) -> six tangents
    of gradients"""

    @staticmethod
    def forward(*args):
        return _ops.vjp_jvp.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx, *cotangents):
        saved = _saved(ctx)
        needs, u = ctx.needs_input_grad, _chosen(cotangents, saved[-1])
        if _all_none(u):
            return (None,) * 30
        if _reaches(ctx, saved, {*range(6), 16, 17}):
            _refuse()
        t_bits = _bits(needs[18:24])
        to, mu, to_low = _jvp_results(*saved[:16], *u)
        tangents = (None,) * 6
        if t_bits:
            tangents = VjpJvp.apply(*saved[:18], *u, to, mu, to_low, None, None, t_bits)
        td_o, td_lse = (x if need else None for x, need in zip((to, mu), needs[27:29], strict=True))
        return *(None,) * 18, *_chosen(tangents, t_bits), None, None, None, td_o, td_lse, None

    @staticmethod
    def jvp(ctx, *tangents):
        saved = _saved(ctx)
        if not _all_none(tangents[:6]) or not _all_none(tangents[16:18]):
            _refuse()
        t, (to, mu, to_low, td_o, td_lse) = tangents[18:24], tangents[24:29]
        if _all_none(t):
            return Vjp.apply(*saved[:16], td_o, td_lse, saved[-1])
        if to is None or mu is None:
            to, mu, to_low = _jvp_results(*saved[:16], *t)
        return VjpJvp.apply(*saved[:18], *t, to, mu, to_low, td_o, td_lse, saved[-1])

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(VjpJvp, _vmap.VJP_JVP, info, in_dims, args)


class JvpJvp(Function):
    """(common, o, lse, o_low, six tangents, mu, six second tangents, smu) -> sto, nu"""

    @staticmethod
    def forward(*args):
        return _ops.jvp_jvp.default(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx, d_sto, d_nu):
        """<d_sto, sto> + <d_nu, nu> is <t, vjp_jvp along s of the cotangents d_sto and d_nu>, and alike with t and s
        exchanged."""
        saved = _saved(ctx)
        if _all_none((d_sto, d_nu)):
            return (None,) * 30
        if _reaches(ctx, saved, range(6)):
            _refuse()
        gradients = []
        for own, other in ((slice(16, 22), slice(23, 29)), (slice(23, 29), slice(16, 22))):
            bits, along = _bits(ctx.needs_input_grad[own]), saved[other]
            six = (None,) * 6
            if bits:
                results = _jvp_results(*saved[:16], *along)
                six = VjpJvp.apply(*saved[:16], d_sto, d_nu, *along, *results, None, None, bits)
            gradients += [*_chosen(six, bits), None]
        return *(None,) * 16, *gradients

    @staticmethod
    def jvp(ctx, *tangents):
        saved = _saved(ctx)
        if not _all_none(tangents[:6]):
            _refuse()
        results = []
        for own in (slice(16, 22), slice(23, 29)):
            t, mu = tangents[own], tangents[own.stop]
            if _all_none(t):
                continue
            if mu is None:
                mu = Jvp.apply(*saved[:16], *t)[1]
            results.append(JvpJvp.apply(*saved[: own.start], *t, mu, *saved[own.stop + 1 :]))
        return _sum(results)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(JvpJvp, _vmap.JVP_JVP, info, in_dims, args)


# ---- The ops themselves ----


def _is_recorded(args) -> bool:
    if torch.is_grad_enabled():
        for x in args:
            if isinstance(x, torch.Tensor) and x.requires_grad:
                return True
    return False


def _is_dual() -> bool:
    """Whether tensors may have tangents."""
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


def _requires_grad_at_any_level(x) -> bool:
    """Also if x belongs to a transform inside the one that records."""
    while isinstance(x, torch.Tensor):
        if x.requires_grad:
            return True
        if not (_functorch.is_batchedtensor(x) or _functorch.is_gradtrackingtensor(x)):
            return False
        x = _functorch.get_unwrapped(x)
    return False


def _is_forward_over_forward() -> bool:
    levels = _functorch.get_interpreter_stack() or ()
    return sum(level.key() == _functorch.TransformType.Jvp for level in levels) > 1


def _wants_low(common) -> bool:
    """Whether forward computes o_low: beside a 16-bit o, for a backward pass or for forward over forward, unless
    save_low is False."""
    if common[0].dtype not in (torch.bfloat16, torch.float16) or not read(common[12]).save_low:
        return False
    if torch.is_grad_enabled() and any(_requires_grad_at_any_level(x) for x in common[:6]):
        return True
    return _is_forward_over_forward()


def _register(name: str, function: type[Function], complete=tuple, n_outputs: int | None = None) -> None:
    """Makes the op differentiable as the Function is, in both modes, for graphs that call it directly.
    register_autograd would not do: it knows reverse mode only and silently drops tangents. The Function's
    arguments are complete(arguments of the op), the op's outputs its first n_outputs."""

    def below(*args):
        with torch._C._AutoDispatchBelowAutograd():
            return function.forward(*args)

    below.__signature__ = inspect.signature(function.forward)
    apply_below = type(function.__name__, (function,), {"forward": staticmethod(below)}).apply

    def differentiable(*args):
        args = complete(args)
        return (apply_below if _is_recorded(args) or _is_dual() else below)(*args)[:n_outputs]

    def transformed(*args):
        try:
            return function.apply(*complete(args))[:n_outputs]
        except RuntimeError as error:
            if "Functionalize rule" not in str(error):
                raise
            raise NotImplementedError(
                "attngrad.torch under torch.func.functionalize: PyTorch cannot go through an "
                "autograd.Function there; the maps mutate nothing, so trace with make_fx or torch.export "
                "without functionalize"
            ) from None

    library.impl(name, differentiable, "Autograd")
    # The transforms of torch.func come before that, and know how to go through a Function.
    library.impl(name, transformed, "FuncTorchDynamicLayerFrontMode")


# Function.apply looks up the signature of forward at every call: a stored one is found faster.
for _function in (Attention, Vjp, Jvp, VjpJvp, JvpJvp):
    _function.forward.__signature__ = inspect.signature(_function.forward)
_register("forward", Attention, lambda common: (*common, _wants_low(common)), 2)
_register("forward_low", Attention, lambda common: (*common, True))
_register("vjp", Vjp)
_register("jvp", Jvp)
_register("vjp_jvp", VjpJvp)
_register("jvp_jvp", JvpJvp)


class AttentionDirectly(Attention):
    """The same without the dispatcher, for reverse mode only; o_low is None unless `low` is True."""

    # Without one of its own apply does not bind the arguments to a signature, which takes longer than the rest of it.
    setup_context = Function.setup_context

    @staticmethod
    def forward(ctx, *args):
        *common, low = args
        output = KERNELS["forward_low"](*common) if low else (*KERNELS["forward"](*common), None)
        _save_for_backward(ctx, common, output)
        return output


def attention_directly(*common):
    """o and lse, differentiable, if thread and tensors are plain."""
    if _is_dual():
        return _ops.forward(*common)
    if _is_recorded(common[:6]):
        return AttentionDirectly.apply(*common, _wants_low(common))[:2]
    return KERNELS["forward"](*common)


@torch.compiler.allow_in_graph
def attention(*common):
    """o and lse, differentiable; torch.compile takes it as one node and traces the Functions below it."""
    if _plain.is_thread() and all(x is None or _plain.is_tensor(x) for x in common[:_FEATURES]):
        return attention_directly(*common)
    return _ops.forward(*common)
