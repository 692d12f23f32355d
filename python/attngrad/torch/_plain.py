"""Whether PyTorch's dispatcher would send a call straight to our kernels. Then they can be called without it, which
takes a third of the time of a small call.

The dispatcher decides by the key sets of the tensors and by two of the thread: keys that are included by transforms,
modes and tracing, and keys that are excluded. These are plain if they are those of ordinary tensors of the CPU or of a
GPU in a new thread, with or without inference mode. Everything else goes the dispatcher's way. The keys of GPU tensors
are looked up when the first one comes, as PyTorch should not start CUDA before.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch.nn import Parameter

_TYPES = frozenset((Tensor, Parameter))
_C = torch._C
_keys, _included, _excluded = (
    _C._dispatch_keys,
    _C._dispatch_tls_local_include_set,
    _C._dispatch_tls_local_exclude_set,
)
_profiler_enabled = torch._C._autograd._profiler_enabled
_key_sets: set[int] = set()
_devices: set[str] = set()
_thread_states: set[tuple[int, int]] = set()


def _collect(device: str) -> None:
    for inference in (False, True):
        with torch.inference_mode(inference):
            _key_sets.add(_keys(torch.empty(0, device=device)).raw_repr())
            _thread_states.add((_included().raw_repr(), _excluded().raw_repr()))


def _collect_in_thread(device: str) -> None:
    thread = threading.Thread(target=_collect, args=(device,))  # this one may be inside a transform or a mode
    thread.start()
    thread.join()
    _devices.add(device)


def is_tensor(x) -> bool:
    """Whether x is an ordinary tensor: strided, with its values in memory, of no transform and no subclass."""
    if type(x) not in _TYPES:
        return False
    if x.is_cuda and "cuda" not in _devices:
        _collect_in_thread("cuda")
    return _keys(x).raw_repr() in _key_sets


def is_thread() -> bool:
    """Whether no transform, mode, trace, autocast or profiler is to see the calls of this thread."""
    return (
        (_included().raw_repr(), _excluded().raw_repr()) in _thread_states
        and _C._len_torch_function_stack() == 0
        and not _profiler_enabled()
    )


_collect_in_thread("cpu")
