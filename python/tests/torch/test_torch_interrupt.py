"""Ctrl-C: the PyTorch ops end with KeyboardInterrupt, soon; also inside autograd."""

import pytest
from interrupts import LIMIT, shortest_delay

SETUP = """
import torch
from attngrad.torch import scaled_dot_product_attention as attention
torch.set_num_threads(2)
x = torch.ones(1, 1, {n}, 128, dtype=torch.float64, requires_grad=True)
"""


def test_forward():
    assert shortest_delay(SETUP.format(n=32768), "attention(x, x, x)") < LIMIT


def test_backward():
    setup = SETUP.format(n=12000) + "y = attention(x, x, x).sum()"
    assert shortest_delay(setup, "torch.autograd.grad(y, x, retain_graph=True)") < LIMIT


PACKED = """
offsets = [0] + [{long} - 1 + n for n in range(1, 65)] if {first} else [*range(64), 63 + {long}]
x = torch.ones(1, {long} + 63, 128, dtype=torch.float64, requires_grad=True)
y = attention(x, x, x, q_packed=offsets, k_packed=offsets).sum()
"""


@pytest.mark.parametrize("first", [True, False])
def test_other_threads_work(first):
    """One sequence is nearly all of the work: while another thread has it, this one waits."""
    setup = SETUP.format(n=1) + PACKED.format(long=12000, first=first)
    assert shortest_delay(setup, "torch.autograd.grad(y, x, retain_graph=True)") < LIMIT


def test_second_derivative():
    setup = SETUP.format(n=8192) + "g, = torch.autograd.grad(attention(x, x, x).sum(), x, create_graph=True)"
    assert shortest_delay(setup, "torch.autograd.grad(g.sum(), x, retain_graph=True)") < LIMIT


FORWARD_OVER_FORWARD = """
from torch.func import jvp
y = x.detach()
def along(z): return jvp(lambda w: attention(w, w, w), (z,), (y,))[1]
"""


def test_forward_over_forward():
    assert shortest_delay(SETUP.format(n=12000) + FORWARD_OVER_FORWARD, "jvp(along, (y,), (y,))") < LIMIT
