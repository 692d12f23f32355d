"""Rows of bench/gpu.py for 16 bits with the goals of the table sm90: lengths, head sizes and shapes beside cuDNN and
PyTorch's FlashAttention, windows, derivatives, and forward with o_low."""

import inspect

import attngrad
import torch
from gpu_rows import derivative_rows
from gpu_timing import (
    CUDNN,
    DEVICE,
    FLASH,
    TOKENS,
    WIDTH,
    at,
    forward_and_vjp,
    milliseconds,
    named,
    our_calls,
    peer_calls,
    quotient,
    rate,
    row,
    square,
    tensors,
)

NO_GOALS = {"forward": (None, None), "vjp": (None, None)}

# ---- Beside cuDNN and FlashAttention ----


def forward_goal(dim, n, causal):
    if dim == 256:
        return (0.97, 1.05) if n == 8192 else (None, None)
    if n < 2048:
        return (0.82, 1.0) if causal else (0.93, 1.0)
    if dim == 64:
        return (0.92, 1.0) if n == 2048 else (0.97, 1.08)
    return 0.97, 1.05


def vjp_goal(dim, n):
    if dim == 256:
        return (1.05, 1.30) if n in (2048, 8192) else (None, None)
    return (0.95, 1.10) if n <= 8192 else (0.92, 1.05)


def peer_rows(group, case, calls, goals, place, setting, pairs=None, tokens=TOKENS):
    """Rows of forward and vjp; calls: ours without a prefix, PyTorch's as "cudnn ...", "flash ...". The value is over
    cuDNN. Where cuDNN does not run, a row with a goal has it without a value, and one without is over FlashAttention.
    place: dim, n, causal, dtype."""
    ms = milliseconds(calls, setting)
    pairs = pairs or (place["n"] / 2 if place["causal"] else place["n"])
    for name in ("forward", "vjp"):
        ours, cudnn, flash = (ms.get(prefix + name) for prefix in ("", "cudnn ", "flash "))
        must, aim = goals[name]
        peer, theirs = ("cuDNN", cudnn) if cudnn or must is not None else ("FlashAttention", flash)
        more = {"flash_ms": flash, "tflops": rate(name, pairs, ours, tokens)} | at(name, **place)
        yield row(group, f"{name} {case} over {peer}'s", ours, theirs, must, aim, **more)


def compared(group, dim, n, causal, setting, dtype=torch.bfloat16):
    x = square(dim, n, dtype)
    calls = named("", our_calls(*x, causal=causal))
    calls |= named("cudnn ", peer_calls(*x, CUDNN, causal)) | named("flash ", peer_calls(*x, FLASH, causal))
    goals = {"forward": setting.goal(*forward_goal(dim, n, causal)), "vjp": setting.goal(*vjp_goal(dim, n))}
    goals = goals if dtype == torch.bfloat16 else NO_GOALS  # the goals are bfloat16's
    case = f"D{dim} N{n}{' causal' * causal}"
    place = {"dim": dim, "n": n, "causal": causal, "dtype": dtype}
    yield from peer_rows(group, case, calls, goals, place, setting, tokens=max(TOKENS, n))


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


def lengths(setting):
    """The longest has twice the tokens of the others."""
    for dim in (64, 128):
        for n in LENGTHS:
            for causal in (False, True):
                yield from compared("lengths", dim, n, causal, setting)


def head_size_256(setting):
    for n in LENGTHS:
        for causal in (False, True):
            yield from compared("D256", 256, n, causal, setting)


def float16(setting):
    for dim in (64, 128, 256):
        for n in (2048, 8192):
            for causal in (False, True):
                yield from compared("float16", dim, n, causal, setting, torch.float16)


def grouped_heads(setting):
    """Four query heads for each key head."""
    for dim in (64, 128, 256):
        for n in (512, 2048, 4096, 8192, 32768):
            for causal in (False, True):
                heads, batch = WIDTH // dim, max(1, TOKENS // n)
                (q, d_o), (k, v) = tensors(2, batch, heads, n, dim), tensors(2, batch, heads // 4, n, dim)
                calls = named("", our_calls(q, k, v, d_o, causal=causal))
                for prefix, backend in (("cudnn ", CUDNN), ("flash ", FLASH)):
                    calls |= named(prefix, peer_calls(q, k, v, d_o, backend, causal, enable_gqa=True))
                case = f"D{dim} N{n}, 4 heads share keys{', causal' * causal}"
                place = {"dim": dim, "n": n, "causal": causal}
                tokens = batch * n
                yield from peer_rows("grouped heads", case, calls, NO_GOALS, place, setting, tokens=tokens)


def same(ours, theirs):
    """So that a peer which computes something else is not compared."""
    difference = (ours.float() - theirs.float()).abs().max().item()
    if not difference < 0.1:
        raise RuntimeError(f"another result, by {difference:.3g}")


def checked(attention, expected):
    """The calls of a function of PyTorch whose result is compared once, when a measurement tries it."""
    seen = []

    def run(*x):
        o = attention(*x)
        if not seen:
            same(expected, o)
            seen.append(True)
        return o

    return run


PACKED = {  # lengths of sequences, TOKENS together
    "mixed": (512, 1024, 2048, 4096, 512, 2048, 2048, 4096),
    "one long": (12288, 1024, 1024, 1024, 512, 512),
    "short": (128, 384, 256, 256) * 16,
}


def varlen(ends, longest, causal):
    """FlashAttention on packed sequences. New releases of PyTorch have it; its word for causal differs among them."""

    def attention(q, k, v):
        from torch.nn.attention.varlen import varlen_attn

        has_window = "window_size" in inspect.signature(varlen_attn).parameters
        keywords = {} if not causal else {"window_size": (-1, 0)} if has_window else {"is_causal": True}
        return varlen_attn(q, k, v, on_gpu, on_gpu, longest, longest, **keywords)

    on_gpu = torch.tensor(ends, device=DEVICE, dtype=torch.int32)
    return attention


def packed(setting):
    for dim in (64, 128, 256):
        for name, parts in PACKED.items():
            for causal in (False, True):
                ends = [sum(parts[:n]) for n in range(len(parts) + 1)]
                x, keywords = tensors(4, ends[-1], WIDTH // dim, dim), {"q_packed": ends, "k_packed": ends}
                calls = named("", our_calls(*x, causal=causal, **keywords))
                expected = attngrad.forward(*x[:3], causal=causal, **keywords).o
                peer = checked(varlen(ends, max(parts), causal), expected)
                calls |= named("flash ", forward_and_vjp(peer, *x))
                pairs = sum(n * n for n in parts) / ends[-1] / (2 if causal else 1)
                case = f"D{dim}, {name}: {len(parts)} sequences of {min(parts)} to {max(parts)}{', causal' * causal}"
                place = {"dim": dim, "n": ends[-1], "causal": causal}
                yield from peer_rows("packed", case, calls, NO_GOALS, place, setting, pairs=pairs)


# ---- Windows ----


def windowed_flash(n, left):
    """PyTorch's FlashAttention with a window, which its public function does not offer."""

    def attention(q, k, v):
        x = [t.transpose(1, 2) for t in (q, k, v)]
        window_size = {"window_size_left": left, "window_size_right": 0}
        o = torch.ops.aten._flash_attention_forward(*x, None, None, n, n, 0.0, False, False, **window_size)[0]
        return o.transpose(1, 2)

    return attention


def window(setting):
    """Beside FlashAttention, as cuDNN has no window in PyTorch; and the rate in visible pairs over causal's."""
    for dim in (64, 128, 256):
        for n, left in ((2048, 255), (8192, 1023), (32768, 4095)):
            x = square(dim, n)
            keywords = {"causal": True, "window": (left, 0)}
            calls = named("causal ", our_calls(*x, causal=True)) | named("", our_calls(*x, **keywords))
            peer = checked(windowed_flash(n, left), attngrad.forward(*x[:3], **keywords).o)
            calls |= named("flash ", forward_and_vjp(peer, *x))
            ms, tokens = milliseconds(calls, setting), max(TOKENS, n)
            pairs = sum(min(i, left) + 1 for i in range(n)) / n
            for name in ("forward", "vjp"):
                ours, whole, flash = ms.get(name), ms.get("causal " + name), ms.get("flash " + name)
                tflops, case = rate(name, pairs, ours, tokens), f"{name} D{dim} N{n}, {left + 1} keys"
                yield row("window", f"{case} over FlashAttention's", ours, flash, tflops=tflops, flash_ms=flash)
                value = quotient(tflops, rate(name, n / 2, whole, tokens))
                yield row("window", f"{case}: rate over causal's", ours, whole, value=value, tflops=tflops)


# ---- Ours over ours ----


def derivatives(setting):
    goals = {"jvp": ("forward", *setting.goal(1.0, 1.15)), "vjp_jvp": ("vjp", *setting.goal(0.85, 1.0))}
    goals["jvp_jvp"] = ("forward", None, None)
    yield from derivative_rows("derivatives", setting, torch.bfloat16, goals)
    without = {name: (other, None, None) for name, (other, *_) in goals.items()}
    yield from derivative_rows("derivatives", setting, torch.bfloat16, without, causal=True)


def low_half(setting):
    """Forward that also returns what rounding took from o, over forward alone."""
    for dim in (64, 128):
        for n, goal in ((2048, (0.93, 0.96)), (8192, (0.96, 0.99))):
            q, k, v, _ = square(dim, n)
            calls = {"plain": lambda: attngrad.forward(q, k, v), "low": lambda: attngrad.forward(q, k, v, low=True)}
            ms = milliseconds(calls, setting)
            case, tflops = f"forward D{dim} N{n} with o_low", rate("forward", n, ms.get("low"))
            yield row("o_low", case, ms.get("low"), ms.get("plain"), *setting.goal(*goal), tflops=tflops)


ROWS = {
    "lengths": lengths,
    "d256": head_size_256,
    "float16": float16,
    "gqa": grouped_heads,
    "packed": packed,
    "window": window,
    "derivatives": derivatives,
    "low": low_half,
}
