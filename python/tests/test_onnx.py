"""attngrad.onnx and forward against the Attention operator of ONNX, by the reference evaluator of its own package:
random configurations over all features that both have. Truth is the formula in float64; our error may be twice that of
ONNX (the peer), or the floor of the error rule."""

import numpy as np
import onnx
import pytest
from formulas import maps
from onnx.reference import ReferenceEvaluator
from trials import DTYPES, EPS, FLOOR, distance, zero_minus_infinity

import attngrad
from attngrad.onnx import Attention

COUNT, PARTS = 400, 4
OPSET = 25


class Config:
    """One configuration: ONNX's inputs and attributes, and the same as our keywords."""

    def __init__(self, number: int) -> None:
        rng = self.rng = np.random.default_rng(number)
        self.dtype = ["f64", "f32", "f16"][number % 3]
        self.attributes, self.inputs, self.ours = {}, {}, {}
        self.B, self.Hk, group = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 4)
        self.H = self.Hk * group
        self.Nq, self.Nk = rng.integers(1, 20, 2)
        d, dv = rng.integers(1, 33, 2)
        self.q = self.draw(self.B, self.H, self.Nq, d)
        self.k = self.draw(self.B, self.Hk, self.Nk, d)
        self.v = self.draw(self.B, self.Hk, self.Nk, dv)
        self.add_scores()
        self.cache = rng.choice(["none", "none", "past", "lengths"])
        self.add_positions()
        self.add_mask()
        self.is_3d = rng.random() < 0.3

    def draw(self, *shape):
        return self.rng.standard_normal(shape).astype(DTYPES[self.dtype])

    def add_scores(self):
        if self.rng.random() < 0.3:
            # The peer takes the square root of a float32 attribute: that of this one is exact.
            self.attributes["scale"] = self.ours["scale"] = float(self.rng.integers(8, 90) / 64) ** 2
        if self.rng.random() < 0.3:
            self.attributes["softcap"] = self.ours["softcap"] = float(np.float32(self.rng.uniform(0.5, 8)))
        self.ours["causal"] = bool(self.rng.random() < 0.5)
        self.attributes["is_causal"] = int(self.ours["causal"])
        if self.rng.random() < 0.3:
            left, right = (int(side) for side in self.rng.integers(-1, 6, 2))
            self.attributes |= {"left_window_size": left, "right_window_size": right}
            self.ours["window"] = (left, right)

    def add_positions(self):
        """With a cache of keys the queries come after it; with lengths the last query is at the last key."""
        self.past = int(self.rng.integers(1, 8)) if self.cache == "past" else 0
        if self.past:
            self.ours["q_offset"] = self.past
        if self.cache == "lengths":
            lengths = self.rng.integers(0, self.Nk + 1, self.B)
            self.inputs["nonpad_kv_seqlen"] = self.ours["kv_lengths"] = lengths
            self.ours["align"] = "bottom-right"

    def add_mask(self):
        kind = self.rng.choice(["none", "bool", "float"])
        if kind == "none":
            return
        full = [self.B, self.H, self.Nq, self.Nk]
        shape = [1 if self.rng.random() < 0.3 else n for n in full[:3]] + [self.Nk]
        if self.ours["causal"]:
            # The evaluator takes the number of queries from the mask: broadcast over them, it would count one.
            shape[2] = self.Nq
        shape = shape[self.rng.integers(0, 3) :]
        if kind == "bool":
            mask = self.rng.random(shape) < 0.7
            self.ours["mask"] = mask
        else:
            mask = self.draw(*shape)
            mask[self.rng.random(shape) < 0.1] = -np.inf
            self.ours["bias"] = mask
        self.inputs["attn_mask"] = mask

    def model(self):
        """The operator's model and inputs."""
        past, k, v = self.past, self.k, self.v
        if past:
            self.inputs |= {"past_key": k[:, :, :past], "past_value": v[:, :, :past]}
            k, v = k[:, :, past:], v[:, :, past:]
        q, attributes = self.q, dict(self.attributes)
        if self.is_3d:
            q, k, v = (np.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1) for x in (q, k, v))
            attributes |= {"q_num_heads": int(self.H), "kv_num_heads": int(self.Hk)}
        inputs = {"Q": q, "K": k, "V": v} | self.inputs
        names = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
        node = onnx.helper.make_node(
            "Attention", [n if n in inputs else "" for n in names], ["Y"], **attributes
        )
        graph = onnx.helper.make_graph(
            [node],
            "attention",
            [onnx.helper.make_tensor_value_info(n, self.type_of(x), x.shape) for n, x in inputs.items()],
            [onnx.helper.make_tensor_value_info("Y", self.type_of(q), [None] * q.ndim)],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
        onnx.checker.check_model(model)
        return model, inputs

    def run(self, new_ops=None):
        """The operator's output, as [batch, heads, n, channel]; new_ops: classes to evaluate it with."""
        model, inputs = self.model()
        (y,) = ReferenceEvaluator(model, new_ops=new_ops).run(None, inputs)
        if self.is_3d:
            y = np.swapaxes(y.reshape(self.B, self.Nq, self.H, -1), 1, 2)
        return y

    def type_of(self, x):
        return onnx.helper.np_dtype_to_tensor_dtype(x.dtype)

    def prepare(self):
        """Puts a cache of keys before the new ones."""
        if self.past:
            rows = [self.B, self.Hk, self.past]
            self.k = np.concatenate([self.draw(*rows, self.k.shape[-1]), self.k], axis=2)
            self.v = np.concatenate([self.draw(*rows, self.v.shape[-1]), self.v], axis=2)
            for name in ("mask", "bias"):
                if name in self.ours:
                    x = self.ours[name]
                    more = np.ones(x.shape[:-1] + (self.past,), x.dtype)
                    self.ours[name] = self.inputs["attn_mask"] = np.concatenate([more, x], axis=-1)

    def truth(self):
        o = np.zeros(self.q.shape[:-1] + self.v.shape[-1:])
        rows = np.zeros(o.shape[:-1])
        x = [np.asarray(a, np.float64) for a in (self.q, self.k, self.v)]
        return maps(*x, d_o=o, d_lse=rows, t={}, s={}, td_o=o, td_lse=rows, **self.ours)["o"]


@pytest.mark.parametrize("part", range(PARTS))
def test_attention_of_onnx(part):
    worst = {"cpu": 0.0, "reference": 0.0, f"onnx {onnx.__version__}": 0.0}
    for number in range(part, COUNT, PARTS):
        c = Config(number)
        c.prepare()
        truth = c.truth()
        norm = np.linalg.norm(zero_minus_infinity(truth))
        errors = {f"onnx {onnx.__version__}": (peer := distance(c.run(), truth))}
        assert peer <= 100 * EPS[c.dtype] * max(norm, 1), (
            f"configuration {number}: the peer computes something else"
        )
        reference = attngrad.forward(c.q, c.k, c.v, backend="reference", **c.ours).o
        for backend, y in (("cpu", c.run([Attention])), ("reference", reference)):
            ours = errors[backend] = distance(y, truth)
            limit = max(2 * peer, FLOOR[c.dtype] * norm)
            assert ours <= limit, (
                f"configuration {number}, {backend}: {ours:.3g}; the peer {peer:.3g}, of {norm:.3g}"
            )
        for name, error in errors.items():
            worst[name] = max(worst[name], error / (norm or 1) / EPS[c.dtype])
    print(
        "largest relative errors in eps:", ", ".join(f"{name} {error:.2f}" for name, error in worst.items())
    )
