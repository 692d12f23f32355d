"""The derivatives of the maps, as autograd.Functions over the ops; no formula of attention is here.

    Attention   its backward is Vjp, its jvp is Jvp
    Vjp         its backward is Jvp (for d_o, d_lse) and VjpJvp (for the inputs: the Hessian is symmetric);
                its jvp is VjpJvp
    Jvp         its backward is Vjp (for the tangents) and VjpJvp (for the inputs)
    VjpJvp      linear in the direction, and differentiable with respect to the direction only

vjp and vjp_jvp take o, lse, to and mu only to save computing them again: their results are total derivatives
in the inputs and cotangents. So no Function here returns a cotangent for o, lse, to or mu: their contribution
would be counted twice.
"""

from __future__ import annotations

import inspect

import torch
from torch.autograd import Function, forward_ad

from . import _vmap
from ._ops import N_COMMON, library

_ops = torch.ops.attngrad
_REST = (None,) * (N_COMMON - 6)  # the gradients of the common arguments after the six inputs
# Positions of arguments. 0 .. 12 are common to all; o and lse are 13 and 14. Vjp and VjpJvp: d_o and d_lse
# are 15 and 16. Jvp: the tangents are 15 .. 20. VjpJvp: the tangents are 17 .. 22, to and mu 23 and 24, td_o
# and td_lse 25 and 26. Vjp and VjpJvp end with `wanted`, 17 and 27.


def _save(ctx, inputs, output=()) -> None:
    """Saves inputs and outputs: tensors (and None) by PyTorch, others in ctx. _saved returns them in order."""
    ctx.set_materialize_grads(False)
    values = (*inputs, *output)
    ctx.is_tensor = [x is None or isinstance(x, torch.Tensor) for x in values]
    ctx.constants = [x for x, tensor in zip(values, ctx.is_tensor, strict=True) if not tensor]
    tensors = [x for x, tensor in zip(values, ctx.is_tensor, strict=True) if tensor]
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _saved(ctx) -> list:
    tensors, constants = iter(ctx.saved_tensors), iter(ctx.constants)
    return [next(tensors) if tensor else next(constants) for tensor in ctx.is_tensor]


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
        "attngrad.torch: a third derivative, or forward over forward: the maps end with second derivatives. "
        "For these take forward over reverse (torch.func.jvp of torch.func.grad, torch.func.hessian) or "
        "jacrev of jacfwd; for third ones finite differences of a Hessian-vector product, or "
        "torch.nn.functional.scaled_dot_product_attention under sdpa_kernel(SDPBackend.MATH), whose memory "
        "grows with the square of the length"
    )


class Attention(Function):
    """(common) -> o, lse"""

    @staticmethod
    def forward(*common):
        return _ops.forward(*common)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx, d_o, d_lse):
        *common, o, lse = _saved(ctx)
        wanted = _bits(ctx.needs_input_grad[:6])
        if _all_none((d_o, d_lse)) or wanted == 0:
            return (None,) * N_COMMON
        return *_chosen(Vjp.apply(*common, o, lse, d_o, d_lse, wanted), wanted), *_REST

    @staticmethod
    def jvp(ctx, *tangents):
        *common, o, lse = _saved(ctx)
        return Jvp.apply(*common, o, lse, *tangents[:6])

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(Attention, _vmap.ATTENTION, info, in_dims, args)


class Vjp(Function):
    """(common, o, lse, d_o, d_lse, wanted) -> six gradients"""

    @staticmethod
    def forward(*args):
        return _ops.vjp(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx, *cotangents):
        *common, o, lse, d_o, d_lse, wanted = _saved(ctx)
        u = _chosen(cotangents, wanted)
        if _all_none(u):
            return (None,) * (N_COMMON + 5)
        needs = ctx.needs_input_grad
        to, mu = Jvp.apply(*common, o, lse, *u)
        bits = _bits(needs[:6])
        inputs = (None,) * 6
        if bits:
            inputs = VjpJvp.apply(*common, o, lse, d_o, d_lse, *u, to, mu, None, None, bits)
        to, mu = (x if need else None for x, need in zip((to, mu), needs[15:17], strict=True))
        return *_chosen(inputs, bits), *_REST, None, None, to, mu, None

    @staticmethod
    def jvp(ctx, *tangents):
        *common, o, lse, d_o, d_lse, wanted = _saved(ctx)
        t, (to, mu, td_o, td_lse) = tangents[:6], tangents[N_COMMON : N_COMMON + 4]
        if _all_none(t):
            return Vjp.apply(*common, o, lse, td_o, td_lse, wanted)
        if to is None or mu is None:
            to, mu = Jvp.apply(*common, o, lse, *t)
        return VjpJvp.apply(*common, o, lse, d_o, d_lse, *t, to, mu, td_o, td_lse, wanted)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(Vjp, _vmap.VJP, info, in_dims, args)


class Jvp(Function):
    """(common, o, lse, six tangents) -> to, mu"""

    @staticmethod
    def forward(*args):
        return _ops.jvp(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx, d_to, d_mu):
        saved = _saved(ctx)
        common, (o, lse), t, (to, mu) = saved[:N_COMMON], saved[13:15], saved[15:21], saved[21:]
        if _all_none((d_to, d_mu)):
            return (None,) * 21
        bits, t_bits = _bits(ctx.needs_input_grad[:6]), _bits(ctx.needs_input_grad[15:21])
        inputs = tangents = (None,) * 6
        if bits:
            inputs = VjpJvp.apply(*common, o, lse, d_to, d_mu, *t, to, mu, None, None, bits)
        if t_bits:
            tangents = Vjp.apply(*common, o, lse, d_to, d_mu, t_bits)
        return *_chosen(inputs, bits), *_REST, None, None, *_chosen(tangents, t_bits)

    @staticmethod
    def jvp(ctx, *tangents):
        saved = _saved(ctx)
        if not _all_none(tangents[:6]):
            _refuse()
        return Jvp.apply(*saved[:15], *tangents[15:21])

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(Jvp, _vmap.JVP, info, in_dims, args)


class VjpJvp(Function):
    """(common, o, lse, d_o, d_lse, six tangents, to, mu, td_o, td_lse, wanted) -> six tangents of
    gradients"""

    @staticmethod
    def forward(*args):
        return _ops.vjp_jvp(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx, *cotangents):
        saved = _saved(ctx)
        needs, u = ctx.needs_input_grad, _chosen(cotangents, saved[-1])
        if _all_none(u):
            return (None,) * 28
        if _reaches(ctx, saved, {*range(6), 15, 16}):
            _refuse()
        t_bits = _bits(needs[17:23])
        to, mu = Jvp.apply(*saved[:15], *u)
        tangents = (None,) * 6
        if t_bits:
            tangents = VjpJvp.apply(*saved[:17], *u, to, mu, None, None, t_bits)
        td_o, td_lse = (x if need else None for x, need in zip((to, mu), needs[25:27], strict=True))
        return *(None,) * 17, *_chosen(tangents, t_bits), None, None, td_o, td_lse, None

    @staticmethod
    def jvp(ctx, *tangents):
        saved = _saved(ctx)
        if not _all_none(tangents[:6]) or not _all_none(tangents[15:17]):
            _refuse()
        t, (to, mu, td_o, td_lse) = tangents[17:23], tangents[23:27]
        if _all_none(t):
            return Vjp.apply(*saved[:15], td_o, td_lse, saved[-1])
        if to is None or mu is None:
            to, mu = Jvp.apply(*saved[:15], *t)
        return VjpJvp.apply(*saved[:17], *t, to, mu, td_o, td_lse, saved[-1])

    @staticmethod
    def vmap(info, in_dims, *args):
        return _vmap.run(VjpJvp, _vmap.VJP_JVP, info, in_dims, args)


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


def _register(name: str, function: type[Function]) -> None:
    """Makes the op differentiable as the Function is, in both modes, for graphs that call it directly.
    register_autograd would not do: it knows reverse mode only and silently drops tangents."""
    op = getattr(_ops, name).default

    def below(*args):
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    below.__signature__ = inspect.signature(function.forward)
    apply_below = type(function.__name__, (function,), {"forward": staticmethod(below)}).apply

    def differentiable(*args):
        return (apply_below if _is_recorded(args) or _is_dual() else below)(*args)

    def transformed(*args):
        try:
            return function.apply(*args)
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
for _name, _function in (("forward", Attention), ("vjp", Vjp), ("jvp", Jvp), ("vjp_jvp", VjpJvp)):
    _function.forward.__signature__ = inspect.signature(_function.forward)
    _register(_name, _function)


@torch.compiler.allow_in_graph
def attention(*common):
    """o and lse, differentiable; torch.compile takes it as one node and traces the Functions below it."""
    return _ops.forward(*common)
