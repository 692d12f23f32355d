"""attngrad.torch on streams and in CUDA graphs: the bits of a plain call, whatever else the GPU does; what cannot be
captured says so. All of it needs a GPU."""

import threading

import torch
from attngrad.torch import scaled_dot_product_attention as sdpa
from torch_tools import LIMIT, draw, needs_gpu, refuses

import attngrad

# ---- Streams ----


def test_stream():
    """A call waits for what its stream has before it."""
    needs_gpu()
    x = draw(2, 8, 1024, 64, dtype=torch.float32).to("cuda")
    torch.cuda.synchronize()
    wanted = sdpa(x * 2, x, x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # the copy below is late: a call on another stream would miss it
        y = x * 2
        o = sdpa(y, x, x)
    stream.synchronize()
    assert torch.equal(o, wanted)


SHAPES = [((2, 8, 1024, 64), torch.bfloat16), ((1, 4, 777, 128), torch.float16)]
SHAPES += [((3, 2, 300, 40), torch.float32), ((1, 2, 500, 32), torch.float64)]


def cases():
    """q, k, v of each shape."""
    return [[draw(*shape, dtype=dtype).to("cuda") for _ in range(3)] for shape, dtype in SHAPES]


def derivatives(q, k, v):
    """Forward, backward and double backward."""
    xs = [x.detach().requires_grad_() for x in (q, k, v)]
    o = sdpa(*xs, is_causal=True)
    gradients = torch.autograd.grad(o, xs, torch.ones_like(o), create_graph=True)
    return [o, *gradients, *torch.autograd.grad(gradients, xs, [torch.ones_like(g) for g in gradients])]


def same(got, wanted):
    return all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_several_streams():
    """Several shapes at once, on streams of different priority."""
    needs_gpu()
    inputs = cases()
    wanted = [derivatives(*x) for x in inputs]
    streams = [torch.cuda.Stream(priority=-(n % 2)) for n in range(len(inputs))]
    torch.cuda.synchronize()
    for turn in range(4):
        results = []
        for n, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                results.append(derivatives(*inputs[(n + turn) % len(inputs)]))
        torch.cuda.synchronize()
        for n, got in enumerate(results):
            assert same(got, wanted[(n + turn) % len(inputs)]), f"stream {n}, turn {turn}"


def test_threads():
    """Each thread has a stream of its own."""
    needs_gpu()
    inputs, wrong = cases(), []
    wanted = [derivatives(*x) for x in inputs]
    torch.cuda.synchronize()

    def work(n):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(6):
                got = derivatives(*inputs[(n + turn) % len(inputs)])
                stream.synchronize()
                if not same(got, wanted[(n + turn) % len(inputs)]):
                    wrong.append(f"thread {n}, turn {turn}: other bits")

    def report(n):
        try:
            work(n)
        except Exception as error:  # which would end the thread alone
            wrong.append(f"thread {n}: {error!r}")

    threads = [threading.Thread(target=report, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


# ---- Graphs ----


def capture(function):
    """The graph of function, after a call on a side stream as PyTorch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


def test_graph():
    """Replays give the bits of eager calls, also with other inputs, other lengths and another seed."""
    needs_gpu()
    q, k, v = (draw(2, 4, 300, 64, dtype=torch.float32).to("cuda").requires_grad_() for _ in range(3))
    lengths, seed = torch.tensor([300, 100], device="cuda"), torch.tensor(3, device="cuda")

    def step():
        o = sdpa(q, k, v, kv_lengths=lengths, dropout_p=0.1, seed=seed)
        return [o, *torch.autograd.grad(o.square().sum(), (q, k, v))]

    graph, results = capture(step)
    seen = []
    for n in range(3):
        with torch.no_grad():
            q.add_(n)
            lengths.copy_(torch.tensor([300 - 50 * n, 100]))
            seed.fill_(3 + n)
        graph.replay()
        assert same(results, step()), n
        seen.append(results[0].clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2]), "a replay did not read anew"


def test_graph_of_second_derivatives():
    """Double backward and forward mode, replayed with other inputs."""
    needs_gpu()
    q, k, v = (draw(1, 4, 200, 64, dtype=torch.bfloat16).to("cuda") for _ in range(3))

    def step():
        def tangent(x):
            return torch.func.jvp(lambda y: sdpa(y, k, v, is_causal=True), (x,), (v,))[1]

        return [*derivatives(q, k, v), tangent(q), torch.func.jvp(tangent, (q,), (k,))[1]]

    graph, results = capture(step)
    for n in range(3):
        q.add_(n)
        graph.replay()
        assert same(results, step()), n


def test_graph_keeps_its_tables():
    """A replay reads the slopes of its own plan, also when the caches of plans have dropped it."""
    needs_gpu()
    q, k, v = (draw(1, 4, 200, 64, dtype=torch.float32).to("cuda") for _ in range(3))
    graph, o = capture(lambda: sdpa(q, k, v, alibi=[0.5, 0.1, 0.05, 0.01]))
    graph.replay()
    wanted = o.clone()
    for cache in (attngrad.torch._ops.plan_of_shapes, attngrad._plan.get):
        cache.cache_clear()
    others = [sdpa(q, k, v, alibi=[n + 1.0] * 4) for n in range(4)]  # take what memory is free
    graph.replay()
    assert torch.equal(o, wanted) and not torch.equal(o, others[0])


def test_graph_on_two_streams():
    """One graph replayed on two streams in turn."""
    needs_gpu()
    q, k, v = (draw(1, 8, 2048, 64, dtype=torch.bfloat16).to("cuda") for _ in range(3))
    wanted = derivatives(q, k, v)
    graph, results = capture(lambda: derivatives(q, k, v))
    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
    for n in range(6):
        with torch.cuda.stream(streams[n % 2]):
            graph.replay()
        streams[1 - n % 2].wait_stream(streams[n % 2])  # both write the same memory
    torch.cuda.synchronize()
    assert same(results, wanted)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 32))

    def forward(self, x):
        return sdpa(x * self.weight, x, x, is_causal=True)


def test_graphed_callable():
    """torch.cuda.make_graphed_callables: forward and backward as graphs."""
    needs_gpu()
    layer = Layer().to("cuda")
    x, y = (draw(2, 4, 100, 32, dtype=torch.float32).to("cuda").requires_grad_() for _ in range(2))
    wanted = torch.autograd.grad(layer(y).square().sum(), (y, layer.weight))
    graphed = torch.cuda.make_graphed_callables(Layer().to("cuda"), (x.detach().clone().requires_grad_(),))
    got = torch.autograd.grad(graphed(y).square().sum(), (y, *graphed.parameters()))
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4), (a - b).abs().max()


def test_dropout_in_a_graph():
    """Without a seed each replay draws another mask, from PyTorch's generator; with a number for a seed none does."""
    needs_gpu()
    x = draw(1, 2, 100, 32, dtype=torch.float32).to("cuda")
    graph, results = capture(lambda: [sdpa(x, x, x, dropout_p=0.5), sdpa(x, x, x, dropout_p=0.5, seed=7)])
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append([o.clone() for o in results])
    assert not torch.equal(seen[0][0], seen[1][0]), "two replays dropped the same weights"
    assert torch.equal(seen[0][1], seen[1][1]) and torch.equal(seen[0][1], sdpa(x, x, x, dropout_p=0.5, seed=7))


def packed_step(q, k, ends, device):
    """Forward, gradients and their derivatives of packed sequences of at most 70 positions."""

    def step():
        a, b = (x.detach().requires_grad_() for x in (q, k))
        keywords = {"q_packed": ends, "k_packed": ends, "longest": (70, 70), "is_causal": True, "dropout_p": 0.1}
        o = sdpa(a, b, b, seed=torch.full((), 5, device=device), **keywords)
        gradients = torch.autograd.grad(o, (a, b), torch.ones_like(o), create_graph=True)
        return [o, *gradients, *torch.autograd.grad(gradients, (a, b), [torch.ones_like(g) for g in gradients])]

    return step


def alone(q, k, ends):
    """The output of each sequence by itself, without dropout."""
    parts = [slice(a, b) for a, b in zip(ends, ends[1:])]
    return torch.cat([sdpa(q[:, s], k[:, s], k[:, s], is_causal=True) for s in parts], 1)


LISTS = ([0, 70, 70, 110, 150], [0, 20, 60, 125, 150], [0, 1, 65, 100, 150])


def test_packed_without_waiting():
    """With longest=: PyTorch, which then refuses to wait for the GPU, is never asked to; the bits are the same."""
    needs_gpu()
    for dtype in (torch.bfloat16, torch.float32):
        q, k = (draw(4, 150, 64, dtype=dtype).to("cuda") for _ in range(2))
        ends = torch.tensor(LISTS[0], device="cuda")
        keywords = {"q_packed": ends, "k_packed": ends, "is_causal": True}
        wanted = sdpa(q, k, k, **keywords)
        step = packed_step(q, k, ends, "cuda")
        step()  # plans and kernels are made
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
            got = sdpa(q, k, k, longest=(70, 70), **keywords)
            refuses("synchronizing", lambda: sdpa(q, k, k, **keywords))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(got, wanted), dtype


def test_packed_in_a_graph():
    """Replays read the offsets anew."""
    needs_gpu()
    for dtype in (torch.bfloat16, torch.float32):
        q, k = (draw(4, 150, 64, dtype=dtype).to("cuda") for _ in range(2))
        ends = torch.tensor(LISTS[0], device="cuda")
        step = packed_step(q, k, ends, "cuda")
        plain = {"q_packed": ends, "k_packed": ends, "longest": (70, 70), "is_causal": True}
        graph, results = capture(lambda: [sdpa(q, k, k, **plain), *step()])
        for numbers in LISTS:
            ends.copy_(torch.tensor(numbers))
            graph.replay()
            assert same(results, [sdpa(q, k, k, **plain), *step()]), f"{dtype} {numbers}"
            wanted = alone(q.double(), k.double(), numbers)
            error = (results[0].double() - wanted).norm() / wanted.norm()
            assert error < LIMIT[dtype], f"{dtype} {numbers}: {error:.1e}"


def test_what_cannot_be_captured():
    """What the host must read, or copies to the GPU, is refused by name; the next capture works."""
    needs_gpu()
    x = draw(2, 50, 32, dtype=torch.float32).to("cuda")
    ends = torch.tensor([0, 20, 47], device="cuda")
    torch.cuda.synchronize()

    def captured(**keywords):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            sdpa(x, x, x, **keywords)

    refuses("q_packed: cannot be read while a CUDA graph is captured", lambda: captured(q_packed=ends, k_packed=ends))
    y = x[None]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        refuses("kv_lengths: a list, while a CUDA graph is captured", lambda: sdpa(y, y, y, kv_lengths=[30]))
    graph, results = capture(lambda: [sdpa(y, y, y)])
    graph.replay()
    assert same(results, [sdpa(y, y, y)])


# ---- The same bits ----


def test_bits():
    """The same bits over repeats of all maps at 8,192 positions, also in a replayed graph."""
    needs_gpu()
    for dtype in LIMIT:
        q, k, v = (draw(1, 4, 8192, 64, dtype=dtype).to("cuda") for _ in range(3))

        def maps(xs=(q, k, v)):
            f = attngrad.forward(*xs, causal=True)
            t = attngrad.jvp(*xs, *xs, causal=True)
            g = attngrad.vjp(*xs, *f, f.o, causal=True)
            h = attngrad.vjp_jvp(*xs, *t, f.o, *xs, causal=True)
            s = attngrad.jvp_jvp(*xs, *f, t.mu, t.mu, *xs, *xs, causal=True)
            return [x for x in (*f, *t, *g, *h, *s) if x is not None]

        first = maps()
        for _ in range(3):
            assert same(maps(), first), dtype
        graph, results = capture(maps)
        graph.replay()
        assert same(results, first), f"{dtype} in a graph"


def invariant_results(q, k, **keywords):
    """Output, gradients and the output's tangent."""
    a, b = (x.detach().requires_grad_() for x in (q, k))
    o = sdpa(a, b, b, invariant=True, **keywords)
    tangent = torch.func.jvp(lambda x: sdpa(x, k, k, invariant=True, **keywords), (q,), (q,))[1]
    return [o, *torch.autograd.grad(o.float().sum(), (a, b)), tangent]


# Queries and keys: at most 64 of both, single queries with many keys and all others have kernels of their own.
SIDES = [(1, 1), (1, 40), (40, 40), (64, 64), (64, 65), (65, 64), (1, 600), (40, 600), (65, 600), (600, 600)]


def test_invariant(device="cuda"):
    """A sequence and heads have the same bits alone and in a batch."""
    if device == "cuda":
        needs_gpu()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for n_q, n_k in SIDES:
            q, k = (draw(4, 6, n, 64, dtype=dtype).to(device) for n in (n_q, n_k))
            alone = invariant_results(q[1:2, 2:4], k[1:2, 2:4])
            for got, whole in zip(alone, invariant_results(q, k), strict=True):
                assert torch.equal(got, whole[1:2, 2:4]), f"{dtype} {n_q} x {n_k}"


def test_invariant_of_short_sequences(device="cuda"):
    """A short sequence has the same bits alone, where kernels for at most 64 queries and keys could serve, and as the
    start of a longer row, in a batch whose other sequence is longer."""
    if device == "cuda":
        needs_gpu()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for n_q, n_k in [side for side in SIDES if max(side) <= 65]:
            for longest in (66, 600):
                q, k = (draw(2, 4, longest, 64, dtype=dtype).to(device) for _ in range(2))
                lengths = ([n, longest] for n in (n_q, n_k))
                q_lengths, kv_lengths = (torch.tensor(x, device=device) for x in lengths)
                together = invariant_results(q, k, q_lengths=q_lengths, kv_lengths=kv_lengths)
                alone = invariant_results(q[:1, :, :n_q], k[:1, :, :n_k])
                for got, whole, n in zip(alone, together, (n_q, n_q, n_k, n_q), strict=True):
                    assert torch.equal(got, whole[:1, :, :n]), f"{dtype} {n_q} x {n_k} beside {longest}"
