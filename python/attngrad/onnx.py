"""attngrad for ONNX: the operator Attention of opsets 23 to 25 for onnx.reference, and on it a backend with the
functions of onnx.backend.base.Backend. A backend runs whole models: the other operators are those of onnx.reference.

>>> import numpy as np
>>> from onnx.parser import parse_model
>>> from onnx.reference import ReferenceEvaluator
>>> from attngrad.onnx import Attention
>>> model = parse_model('''<ir_version: 10, opset_import: ["": 23]>
...     layer (float[1, 2, n, 4] q) => (float[1, 2, n, 4] y) { y = Attention <is_causal = 1> (q, q, q) }''')
>>> (y,) = ReferenceEvaluator(model, new_ops=[Attention]).run(None, {"q": np.ones((1, 2, 3, 4), np.float32)})
>>> y.shape
(1, 2, 3, 4)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _arrays, _explain, _maps, _problem

try:
    import onnx
    from onnx import ModelProto, NodeProto, helper
    from onnx.backend import base
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun
except ModuleNotFoundError as error:
    if error.name != "onnx":
        raise
    raise ModuleNotFoundError("attngrad.onnx needs ONNX: pip install onnx", name="onnx") from None

__all__ = [
    "Attention",
    "Backend",
    "BackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

# What the operator's arguments are called, by the names of attngrad's.
_NAMES = {
    "q": "Q",
    "k": "K",
    "v": "V",
    "bias": "attn_mask",
    "mask": "attn_mask",
    "kv_lengths": "nonpad_kv_seqlen",
}
_SOFTMAX_PRECISIONS = (None, 1, 10, 11, 16)  # float32, float16, float64, bfloat16
# qk_matmul_output_mode: the variable of `explain`, and the features that it includes
_SCORES = (("Z", {"scale"}), ("S", {"scale", "softcap"}), ("S", None), ("P", None))


class Attention(OpRun):
    """The operator Attention, for ReferenceEvaluator(model, new_ops=[Attention]). `softmax_precision` changes nothing:
    the softmax is at least as exact as the outputs. A wrong input or attribute raises ValueError with its name."""

    op_domain = ""

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[np.ndarray, ...]:
        # The evaluator keeps outputs without a name as "", and gives them to later nodes as their absent inputs.
        named = [None if name == "" else x for name, x in zip(self.input, inputs)]
        try:
            call = _Call(*named, is_opset_25=self.run_params["opsets"][""] >= 25, **attributes)
            outputs = [call.output(), call.k, call.v]
            if len(self.output) == 4:
                outputs.append(call.scores())
        except (TypeError, ValueError) as error:  # the evaluator hides the text of a TypeError
            raise ValueError(re.sub(r"^\w+", lambda name: _NAMES.get(name[0], name[0]), str(error))) from None
        return tuple(outputs)


class _Call:
    """One run of the operator: arrays as [batch, heads, n, channel], and the features of attngrad."""

    def __init__(
        self,
        Q: np.ndarray,
        K: np.ndarray,
        V: np.ndarray,
        attn_mask: np.ndarray | None = None,
        past_key: np.ndarray | None = None,
        past_value: np.ndarray | None = None,
        nonpad_kv_seqlen: np.ndarray | None = None,
        *,
        is_opset_25: bool,
        q_num_heads: int | None = None,
        kv_num_heads: int | None = None,
        softmax_precision: int | None = None,
        qk_matmul_output_mode: int = 0,
        **features: Any,
    ) -> None:
        _check_choice("softmax_precision", softmax_precision, _SOFTMAX_PRECISIONS)
        _check_choice("qk_matmul_output_mode", qk_matmul_output_mode, range(4))
        _check_cache(past_key, past_value, nonpad_kv_seqlen)
        if is_opset_25 and Q.ndim == 4 and not q_num_heads is kv_num_heads is None:
            raise ValueError("q_num_heads, kv_num_heads: given, but Q has 4 axes")
        for name, x in (("Q", Q), ("V", V)):
            _arrays.code_of(x.dtype, name)
        if K.dtype != Q.dtype:
            raise ValueError(f"K: {K.dtype}, but Q is {Q.dtype}")
        self.is_3d, self.mode = Q.ndim == 3, qk_matmul_output_mode
        self.q = _split_heads("Q", Q, "q_num_heads", q_num_heads)
        self.k = _after("past_key", past_key, _split_heads("K", K, "kv_num_heads", kv_num_heads))
        self.v = _after("past_value", past_value, _split_heads("V", V, "kv_num_heads", kv_num_heads))
        self.features = _features(**features)
        if past_key is not None:
            self.features["q_offset"] = past_key.shape[2]
        if nonpad_kv_seqlen is not None:
            self.features |= {"kv_lengths": nonpad_kv_seqlen, "align": "bottom-right"}
        if attn_mask is not None:
            name = "mask" if attn_mask.dtype == np.bool_ else "bias"
            self.features[name] = _padded(attn_mask, self.k.shape[2])

    def arrays(self) -> tuple[list[np.ndarray], dict[str, Any]]:
        """q, k and v, and the features, in dtypes that one map takes: float64 if they differ."""
        arrays, bias = [self.q, self.k, self.v], self.features.get("bias")
        narrow = self.q.dtype
        fits = (narrow, np.float32) if narrow.itemsize == 2 else (narrow,)
        if self.v.dtype == narrow and (bias is None or bias.dtype in fits):
            return arrays, self.features
        wide = {} if bias is None else {"bias": bias.astype(np.float64)}
        return [x.astype(np.float64) for x in arrays], self.features | wide

    def output(self) -> np.ndarray:
        arrays, features = self.arrays()
        y = _maps.forward(*arrays, **features).o.astype(self.q.dtype, copy=False)
        return np.swapaxes(y, 1, 2).reshape(*y.shape[::2], -1) if self.is_3d else y

    def scores(self) -> np.ndarray:
        """What qk_matmul_output_mode asks for, head by head."""
        variable, names = _SCORES[self.mode]
        arrays, features = self.arrays()
        if names is not None:
            features = {name: x for name, x in features.items() if name in names}
        batch, heads, n_q, _ = self.q.shape
        scores = np.empty((batch, heads, n_q, self.k.shape[2]), self.q.dtype)
        for b, h in np.ndindex(batch, heads):
            scores[b, h] = _explain.explain(*arrays, batch=b, head=h, **features)[variable]
        if variable == "S" and "kv_lengths" in features:  # `explain` leaves the keys after them at zero
            is_padding = np.arange(self.k.shape[2]) >= features["kv_lengths"][:, None]
            np.copyto(scores, -np.inf, where=is_padding[:, None, None, :])
        return scores


def _check_choice(name: str, value: Any, choice: Sequence[Any]) -> None:
    if value not in choice:
        raise ValueError(f"{name}: {value}, must be one of {', '.join(map(str, choice))}")


def _check_cache(past_key: Any, past_value: Any, lengths: Any) -> None:
    if (past_key is None) != (past_value is None):
        missing, given = ("past_key", "past_value") if past_key is None else ("past_value", "past_key")
        raise ValueError(f"{missing}: missing, but {given} is given")
    if lengths is not None and past_key is not None:
        raise ValueError("nonpad_kv_seqlen: given together with past_key")


def _split_heads(name: str, x: np.ndarray, count_name: str, heads: int | None) -> np.ndarray:
    """[batch, n, heads * channels] as [batch, heads, n, channels]; four axes as they are."""
    if x.ndim not in (3, 4):
        raise ValueError(f"{name}: {x.ndim} axes, must have 3 or 4")
    if x.ndim == 3:
        if heads is None:
            raise ValueError(f"{count_name}: missing, but {name} has 3 axes")
        if heads < 1 or x.shape[2] % heads:
            raise ValueError(
                f"{count_name}: {heads}, which does not divide the {x.shape[2]} channels of {name}"
            )
        x = np.swapaxes(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)
    if x.shape[3] > _problem.MAX_HEAD_SIZE:
        raise NotImplementedError(
            f"{name}: head size {x.shape[3]}, attngrad has at most {_problem.MAX_HEAD_SIZE}"
        )
    return x


def _after(name: str, past: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """Keys or values of the past, and x after them."""
    if past is None:
        return x
    if past.ndim != 4 or past.shape[:2] != x.shape[:2] or past.shape[3] != x.shape[3]:
        b, h, _, d = x.shape
        raise ValueError(f"{name}: shape {list(past.shape)}, must be [{b}, {h}, any, {d}]")
    if past.dtype != x.dtype:
        raise ValueError(f"{name}: {past.dtype}, must be {x.dtype}")
    return np.concatenate((past, x), axis=2)


def _features(
    *,
    scale: float | None = None,
    is_causal: int = 0,
    softcap: float | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> dict[str, Any]:
    for name, side in (("left_window_size", left_window_size), ("right_window_size", right_window_size)):
        if side < -1:
            raise ValueError(f"{name}: {side}, must be -1 at least")
    return {
        "scale": scale,
        "causal": bool(is_causal),
        "softcap": softcap,
        "window": (left_window_size, right_window_size),
    }


def _padded(mask: np.ndarray, n_k: int) -> np.ndarray:
    """With at least two axes; a mask for fewer keys hides the others. Whole numbers become floats."""
    if mask.dtype.kind in "iu":
        mask = mask.astype(np.float64)
    elif mask.dtype != np.bool_:
        _arrays.code_of(mask.dtype, "attn_mask")
    mask = mask.reshape((1,) * (2 - mask.ndim) + mask.shape)
    lacking = max(n_k - mask.shape[-1], 0)
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, lacking)]
    return np.pad(mask, widths, constant_values=False if mask.dtype == np.bool_ else -np.inf)


# ---- The backend ----


class _Evaluator(ReferenceEvaluator):
    """onnx.reference with attngrad's Attention. It makes the evaluators of a model's functions by its own class but
    without new_ops; here every evaluator has them."""

    def __init__(self, proto: Any, *arguments: Any, **keywords: Any) -> None:
        keywords["new_ops"] = [Attention]
        super().__init__(proto, *arguments, **keywords)


class BackendRep(base.BackendRep):
    """A model that is ready to run."""

    def __init__(self, evaluator: ReferenceEvaluator, inputs: Sequence[str]) -> None:
        self.evaluator, self.inputs = evaluator, inputs

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, which are also fields by their names; inputs: a list in the model's order, or a dict."""
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self.inputs):
                raise ValueError(f"inputs: {len(inputs)}, but the model takes {', '.join(self.inputs)}")
            inputs = dict(zip(self.inputs, inputs))
        names = self.evaluator.output_names
        return base.namedtupledict("Outputs", names)(*self.evaluator.run(None, inputs))


class Backend(base.Backend):
    """onnx.reference, with attngrad's Attention."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"

    @classmethod
    def _check_device(cls, device: str) -> None:
        if not cls.supports_device(device):
            raise NotImplementedError(f"device: {device!r}, must be 'CPU'")

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        cls._check_device(device)
        super().prepare(model, device, **kwargs)
        constants = {x.name for x in model.graph.initializer}
        names = [x.name for x in model.graph.input if x.name not in constants]
        return BackendRep(_Evaluator(model), names)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one node, by the newest opset or `opset_version`."""
        cls._check_device(device)
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        names = [name for name in node.input if name]
        graph = helper.make_graph(
            [node],
            "node",
            [helper.make_empty_tensor_value_info(name) for name in names],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        opsets = {node.domain: kwargs.get("opset_version", onnx.defs.onnx_opset_version())}
        return BackendRep(_Evaluator(graph, opsets=opsets), names).run(inputs)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
