"""The multi-head layer through ctypes, and its two cases: forward and backward of a small layer compared with
nn.MultiheadAttention, and its matrix products compared with oneDNN, which is part of PyTorch."""

import ctypes
import re
from ctypes import Structure, byref, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import peers
from library import MAPS, SIZES, Buffer, Options, Problem, Tensor, fill
from peers import torch
from timing import alternate

# Constants of attngrad.h and attngrad_nn.h.
SELF, SHARED_KV, BIASES = 1, 2, 4 | 8 | 16 | 32
DTYPES = {"f64": 1, "f32": 2, "f16": 3, "bf16": 4}
INIT_XAVIER, SAVED, D_SAVED = 1, 0, 1


class Description(Structure):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("attention", c_void_p)] + [
        (name, c_int64) for name in ("d_model", "q_width", "k_width", "v_width")
    ]


ARRAYS = (
    "params x_q x_k x_v y saved dy dx_q dx_k dx_v d_params d_saved tx_q tx_k tx_v t_params ty t_saved "
    "tdy tdx_q tdx_k tdx_v td_params"
).split()


class LayerArgs(Structure):
    _fields_ = [("struct_size", c_uint32), ("accumulate", c_uint32), ("attention", c_void_p)] + [
        (name, c_void_p) for name in ARRAYS
    ]


class SavedViews(Structure):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_int32)] + [
        (name, Tensor) for name in ("q", "k", "v", "o", "lse")
    ]


class Layer:
    def __init__(self, library, text, threads, maps, **description):
        self.library, self.lib = library, library.lib
        self.layer = c_void_p()
        problem = Problem(struct_size=ctypes.sizeof(Problem))
        options = Options(struct_size=ctypes.sizeof(Options), threads=threads)
        library.check(self.lib.ag_problem_parse(text.encode(), byref(problem)))
        struct = Description(ctypes.sizeof(Description), attention=ctypes.addressof(problem), **description)
        library.check(self.lib.ag_layer_create(byref(self.layer), byref(struct), byref(options)))
        self.lib.ag_layer_size.restype = c_int64
        self.lib.ag_layer_plan.restype = c_void_p
        self.size = self.lib.ag_layer_size(self.layer)
        self.args, self.buffers = LayerArgs(struct_size=ctypes.sizeof(LayerArgs)), {}
        self.workspace = Buffer(self._bytes("workspace", c_uint32(sum(MAPS[name][0] for name in maps))))

    def _bytes(self, what, which):
        size = c_size_t()
        self.library.check(getattr(self.lib, "ag_layer_" + what)(self.layer, which, byref(size)))
        return size.value

    @property
    def description(self):
        return self.lib.ag_plan_describe(c_void_p(self.lib.ag_layer_plan(self.layer))).decode()

    def _allocate(self, name, size):
        self.buffers[name] = Buffer(size)
        setattr(self.args, name, self.buffers[name].address)

    def add(self, name, count, dtype, random=False):
        """Adds an array of the call, filled with random numbers or uninitialised."""
        self._allocate(name, count * SIZES[dtype])
        if random:
            fill(self.buffers[name], dtype)

    def add_saved(self):
        for name, which in (("saved", SAVED), ("d_saved", D_SAVED)):
            self._allocate(name, self._bytes("saved", which))

    def init(self, dtype, seed=1):
        self.add("params", self.size, dtype)
        params = c_void_p(self.args.params)
        self.library.check(
            self.lib.ag_layer_init(self.layer, INIT_XAVIER, c_uint64(seed), params, DTYPES[dtype])
        )

    def offset_of_values(self):
        """Offset of V in the buffer that forward saved, in bytes."""
        views, memory = SavedViews(struct_size=ctypes.sizeof(SavedViews)), c_void_p(self.args.saved)
        self.library.check(self.lib.ag_layer_saved_views(self.layer, SAVED, memory, byref(views)))
        return views.v.data - self.args.saved

    def runner(self, *maps):
        """A function without arguments that runs these maps one after another."""
        calls = [getattr(self.lib, "ag_layer_" + name) for name in maps]
        arguments = (self.layer, byref(self.args), None, c_void_p(self.workspace.address))
        size, check = c_size_t(self.workspace.size), self.library.check

        def run():
            for call in calls:
                check(call(*arguments, size))

        return run

    def close(self):
        self.lib.ag_layer_destroy(self.layer)


def must_agree(what, ours, theirs, dtype):
    """Raises an error if the results differ: times of different computations must not be compared."""
    true = theirs.detach().double()
    error = float((ours.double() - true).norm() / true.norm())
    if not error < {"f32": 1e-4, "bf16": 0.03}[dtype]:
        raise RuntimeError(f"{what}: ours and PyTorch's differ by {error:.2g} of its norm")


# ---- The small layer ----


def multihead(case, layer):
    """nn.MultiheadAttention with our layer's weights and input: functions by name that return y and dx. With
    need_weights it takes its unfused path, which may be faster for short sequences."""
    width, dtype = case.width, case.dtype
    blocks = peers.tensor(layer.buffers["params"], dtype, 4, width + 1, width)  # wq bq wk bk wv bv wo bo
    weights, biases = blocks[:, :width].transpose(1, 2), blocks[:, width]
    module = torch.nn.MultiheadAttention(width, case.heads, batch_first=True, dtype=weights.dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(weights[:3].reshape(3 * width, width))
        module.in_proj_bias.copy_(biases[:3].reshape(3 * width))
        module.out_proj.weight.copy_(weights[3])
        module.out_proj.bias.copy_(biases[3])
    shape = (case.batch, case.length, width)
    x = peers.tensor(layer.buffers["x_q"], dtype, *shape).requires_grad_()
    dy = peers.tensor(layer.buffers["dy"], dtype, *shape)
    wanted = [x, *module.parameters()]

    def run(need_weights):
        y, _ = module(x, x, x, need_weights=need_weights)
        return y, torch.autograd.grad(y, wanted, dy)[0]

    return {"torch": lambda: run(False), "torch, unfused": lambda: run(True)}


def run_layer(case, library, best, rounds):
    maps = ("forward", "vjp")
    layer = Layer(library, case.text, case.threads, maps, flags=SELF | BIASES, d_model=case.width)
    elements = case.batch * case.length * case.width
    layer.init(case.dtype)
    layer.add_saved()
    for name in ("x_q", "dy"):
        layer.add(name, elements, case.dtype, random=True)
    for name, count in (("y", elements), ("dx_q", elements), ("d_params", layer.size)):
        layer.add(name, count, case.dtype)
    runs = {"ours": layer.runner(*maps)}
    runs["ours"]()
    if torch:
        theirs = multihead(case, layer)
        for name, true in zip(("y", "dx_q"), theirs["torch"]()):
            must_agree(name, peers.tensor(layer.buffers[name], case.dtype, *true.shape), true, case.dtype)
        runs |= theirs
    case.results |= alternate(runs, best, rounds) | {"plan": layer.description}
    layer.close()


# ---- Its products ----


def one_dnn(x, weights):
    """The same products by oneDNN: functions without arguments, by name. The weights are in our layout, or
    transposed before they are timed; for bf16, PyTorch's mm is oneDNN too."""
    linear = torch.ops.mkldnn._linear_pointwise
    transposed = [w.t().contiguous() for w in weights]
    outs = [x.new_empty(x.shape[0], w.shape[1]) for w in weights]
    found = {
        "onednn": lambda: [linear(x, w.t(), None, "none", [], "") for w in weights],
        "onednn, weights transposed": lambda: [linear(x, w, None, "none", [], "") for w in transposed],
    }
    if x.dtype == torch.bfloat16:
        found["onednn, mm"] = lambda: [torch.mm(x, w, out=out) for w, out in zip(weights, outs)]
    return found


def one_dnn_version():
    """The version of the oneDNN inside PyTorch, which calls it by its old name; None if unknown."""
    found = re.search(r"MKL-DNN v([0-9.]+)", torch.__config__.show()) if torch else None
    return found and found.group(1)


def why_no_one_dnn():
    if not torch:
        return "no PyTorch, and so no oneDNN"
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return f"PyTorch {peers.version()} brings no oneDNN here"
    return None


def run_product(case, library, best, rounds):
    """Times a layer with keys and no queries, which computes two products, K = X Wk and V = X Wv, and nothing else."""
    text = f"h{case.n // 64} q0 k{case.m} d64 {case.dtype}"
    layer = Layer(library, text, case.threads, ("forward",), flags=SHARED_KV, d_model=case.k)
    layer.init(case.dtype)
    layer.add_saved()
    layer.add("x_k", case.m * case.k, case.dtype, random=True)
    for name in ("x_q", "y"):
        layer.add(name, 0, case.dtype)
    runs = {"ours": layer.runner("forward")}
    runs["ours"]()
    missing = why_no_one_dnn()
    runs |= {} if missing else peer_products(case, layer)
    case.results |= {name: ms / 2 for name, ms in alternate(runs, best, rounds).items()}
    case.results |= {"plan": layer.description} | ({"missing": missing} if missing else {})
    case.results["gflops"] = 2e-6 * case.m * case.k * case.n / case.results["ours"]
    layer.close()


def peer_products(case, layer):
    x = peers.tensor(layer.buffers["x_k"], case.dtype, case.m, case.k)
    wk, wv = peers.tensor(layer.buffers["params"], case.dtype, 4, case.k, case.n)[1:3]
    found = one_dnn(x, (wk, wv))
    values = peers.tensor(layer.buffers["saved"], case.dtype, case.m, case.n, start=layer.offset_of_values())
    for name, run in found.items():
        must_agree(name, values, run()[1], case.dtype)
    return found
