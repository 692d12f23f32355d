"""A client of curvature: the linear operators of curvlinops on a language model have the same numbers with attngrad and
with eager attention."""

import curvlinops
import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn
from zoo import ZOO, text


class Logits(nn.Module):
    """A language model as curvlinops wants it: a dict to logits [batch, vocabulary, positions]."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        return self.model(**inputs).logits.transpose(1, 2)


def operator(kind, folder, attention, inputs):
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    model = Logits(ZOO["gemma2"].load(folder, attention))
    parameters = [p for name, p in model.named_parameters() if "0.self_attn" in name]
    return getattr(curvlinops, kind)(
        model,
        nn.CrossEntropyLoss(reduction="mean", ignore_index=-100),
        parameters,
        [(inputs, labels)],
        batch_size_fn=lambda x: len(x["input_ids"]),
        num_data=len(labels),
        check_deterministic=False,
    )


@pytest.mark.parametrize("kind", ["HessianLinearOperator", "GGNLinearOperator"])
def test_operators(kind, tmp_path):
    """Products with several vectors at once, which vmap batches, and the largest eigenvalues."""
    inputs = text()
    ZOO["gemma2"].make().save_pretrained(tmp_path)
    ours, eager = (operator(kind, tmp_path, word, inputs) for word in ("attngrad", "eager"))
    vectors = torch.randn(ours.shape[1], 3, dtype=torch.float64)
    want = eager @ vectors
    assert (ours @ vectors - want).norm() < 1e-9 * want.norm()
    start = np.ones(ours.shape[0])
    values = [
        eigsh(x.to_scipy(), k=2, which="LA", v0=start, return_eigenvectors=False, tol=1e-9) for x in (ours, eager)
    ]
    np.testing.assert_allclose(*values, rtol=1e-8)
