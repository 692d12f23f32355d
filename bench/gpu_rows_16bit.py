"""Rows of bench/gpu.py for bfloat16 with the goals of the table sm90: lengths, head sizes and shapes beside cuDNN and
PyTorch's FlashAttention, derivatives, and each feature over the same call without it."""

import attngrad
import torch
from gpu_rows import derivative_rows
from gpu_timing import (
    CUDNN,
    DEVICE,
    FLASH,
    TOKENS,
    WIDTH,
    forward_and_vjp,
    milliseconds,
    named,
    our_calls,
    peer_calls,
    rate,
    row,
    square,
    tensors,
)

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
        return 1.05, 1.30
    return (0.95, 1.10) if n <= 8192 else (0.92, 1.05)


def peer_rows(group, case, calls, goals, pairs, setting, tokens=TOKENS):
    """Rows of forward and vjp; calls: ours without a prefix, PyTorch's as "cudnn ...", "flash ...". The value is over
    cuDNN, or over FlashAttention where cuDNN does not run, and then without a goal."""
    ms = milliseconds(calls, setting)
    for name in ("forward", "vjp"):
        ours, cudnn, flash = (ms.get(prefix + name) for prefix in ("", "cudnn ", "flash "))
        peer, theirs = ("cuDNN", cudnn) if cudnn else ("FlashAttention", flash)
        text = f"{name} {case} over {peer}'s"
        must, aim = goals[name] if cudnn else (None, None)
        yield row(group, text, ours, theirs, must, aim, flash_ms=flash, tflops=rate(name, pairs, ours, tokens))


def compared(group, dim, n, causal, setting):
    x = square(dim, n)
    calls = named("", our_calls(*x, causal=causal))
    calls |= named("cudnn ", peer_calls(*x, CUDNN, causal)) | named("flash ", peer_calls(*x, FLASH, causal))
    goals = {"forward": setting.goal(*forward_goal(dim, n, causal)), "vjp": setting.goal(*vjp_goal(dim, n))}
    case = f"D{dim} N{n}{' causal' * causal}"
    yield from peer_rows(group, case, calls, goals, n / 2 if causal else n, setting, max(TOKENS, n))


def lengths(setting):
    """The longest has twice the tokens of the others."""
    for dim in (64, 128):
        for n in (512, 1024, 2048, 4096, 8192, 16384, 32768):
            for causal in (False, True):
                yield from compared("lengths", dim, n, causal, setting)


def head_size_256(setting):
    for n in (2048, 8192):
        for causal in (False, True):
            yield from compared("D256", 256, n, causal, setting)


def grouped_heads(setting):
    """Four query heads for each key head."""
    no_goal = dict.fromkeys(("forward", "vjp"), (None, None))
    for dim in (64, 128):
        n, heads = 4096, WIDTH // dim
        for causal in (False, True):
            (q, d_o), (k, v) = tensors(2, TOKENS // n, heads, n, dim), tensors(2, TOKENS // n, heads // 4, n, dim)
            calls = named("", our_calls(q, k, v, d_o, causal=causal))
            for prefix, backend in (("cudnn ", CUDNN), ("flash ", FLASH)):
                calls |= named(prefix, peer_calls(q, k, v, d_o, backend, causal, enable_gqa=True))
            case = f"D{dim} N{n}, 4 heads share keys{', causal' * causal}"
            yield from peer_rows("grouped heads", case, calls, no_goal, n / 2 if causal else n, setting)


PACKED = (512, 1024, 2048, 4096, 512, 2048, 2048, 4096)  # lengths of sequences, TOKENS together


def packed(setting):
    no_goal = dict.fromkeys(("forward", "vjp"), (None, None))
    ends = [sum(PACKED[:n]) for n in range(len(PACKED) + 1)]
    on_gpu = torch.tensor(ends, device=DEVICE, dtype=torch.int32)

    def varlen(q, k, v):
        from torch.nn.attention.varlen import varlen_attn  # of new releases of PyTorch

        return varlen_attn(q, k, v, on_gpu, on_gpu, max(PACKED), max(PACKED))

    for dim in (64, 128):
        x = tensors(4, ends[-1], WIDTH // dim, dim)
        calls = named("", our_calls(*x, q_packed=ends, k_packed=ends))
        calls |= named("flash ", forward_and_vjp(varlen, *x))
        pairs = sum(n * n for n in PACKED) / ends[-1]
        case = f"D{dim}, {len(PACKED)} sequences of {min(PACKED)} to {max(PACKED)}"
        yield from peer_rows("packed", case, calls, no_goal, pairs, setting)


# ---- Ours over ours ----


def derivatives(setting):
    goals = {"jvp": ("forward", *setting.goal(1.0, 1.15)), "vjp_jvp": ("vjp", *setting.goal(0.85, 1.0))}
    goals["jvp_jvp"] = ("forward", None, None)
    yield from derivative_rows("derivatives", setting, torch.bfloat16, goals)


def window(setting):
    """Rate in visible pairs over that of causal alone; PyTorch's fused kernels have no window."""
    for dim in (64, 128):
        n, left = 8192, 1023
        x = square(dim, n)
        calls = named("causal ", our_calls(*x, causal=True))
        calls |= named("", our_calls(*x, causal=True, window=(left, 0)))
        ms = milliseconds(calls, setting)
        pairs = sum(min(i, left) + 1 for i in range(n)) / n
        for name in ("forward", "vjp"):
            ours, whole = rate(name, pairs, ms.get(name)), rate(name, n / 2, ms.get("causal " + name))
            value = ours / whole if ours and whole else None
            case = f"{name} D{dim} N{n}, {left + 1} keys: rate over causal's"
            yield row("window", case, ms.get(name), ms.get("causal " + name), value=value, tflops=ours)


FEATURES = {  # forward's must and aim, vjp's, at D 128; at D 64 nine tenths of these
    "ALiBi": ((0.85, 0.93), (0.90, 0.95)),
    "table": ((0.85, 0.93), (0.90, 0.95)),
    "softcap": ((0.60, 0.70), (0.78, 0.85)),
    "bias [1, H, N, N]": ((0.68, 0.80), (0.88, 0.93)),
    "mask, every tile mixed": ((0.55, 0.75), (0.57, 0.80)),
    "dropout": ((0.37, 0.42), (0.62, 0.68)),
    "softcap and window": ((None, None), (None, None)),
    "bias and mask": ((None, None), (None, None)),
    "bias and dropout": ((None, None), (None, None)),
}


def feature_keywords(heads, n):
    """The keywords of each entry of FEATURES."""
    (bias,), (table,) = tensors(1, 1, heads, n, n), tensors(1, heads, 2 * 128 + 1)
    mask = torch.rand(1, 1, n, n, device=DEVICE) < 0.5
    dropout = {"dropout": 0.1, "seed": 7}
    keywords = [{"alibi": True}, {"bias_table": table}, {"softcap": 30.0}, {"bias": bias}, {"mask": mask}, dropout]
    keywords += [{"softcap": 30.0, "causal": True, "window": (n // 4, 0)}, {"bias": bias, "mask": mask}]
    keywords += [{"bias": bias} | dropout]
    return dict(zip(FEATURES, keywords, strict=True))


def features(setting):
    """The time without a feature over that with it: the rates compared, but where a window hides pairs."""
    for dim in (128, 64):
        n, share = 4096, 1.0 if dim == 128 else 0.9
        x = square(dim, n)
        calls = named("none ", our_calls(*x))
        for feature, keywords in feature_keywords(WIDTH // dim, n).items():
            calls |= named(feature + " ", our_calls(*x, **keywords))
        ms = milliseconds(calls, setting)
        for feature, goals in FEATURES.items():
            for name, goal in zip(("forward", "vjp"), goals):
                must, aim = setting.goal(*(None if g is None else round(g * share, 3) for g in goal))
                ours, without = ms.get(f"{feature} {name}"), ms.get("none " + name)
                yield row("features", f"{name} D{dim} N{n} {feature}", ours, without, must, aim)


def low_half(setting):
    """Forward that also returns what rounding took from o, over forward alone."""
    for dim in (64, 128):
        for n, goal in ((2048, (0.93, 0.96)), (8192, (0.96, 0.99))):
            q, k, v, _ = square(dim, n)
            calls = {"plain": lambda: attngrad.forward(q, k, v), "low": lambda: attngrad.forward(q, k, v, low=True)}
            ms = milliseconds(calls, setting)
            case, tflops = f"forward D{dim} N{n} with o_low", rate("forward", n, ms.get("low"))
            yield row("o_low", case, ms.get("low"), ms.get("plain"), *setting.goal(*goal), tflops=tflops)


def sparse_mask(setting):
    """A mask that shows one tile of eight, at random: time over that without a mask."""
    n, dim, tile = 8192, 128, 128
    x = square(dim, n)
    tiles = torch.rand(n // tile, n // tile, device=DEVICE) < 1 / 8
    mask = tiles.repeat_interleave(tile, 0).repeat_interleave(tile, 1)[None, None].contiguous()
    ms = milliseconds(named("none ", our_calls(*x)) | named("", our_calls(*x, mask=mask)), setting)
    for name in ("forward", "vjp"):
        ours, without = ms.get(name), ms.get("none " + name)
        value = ours / without if ours and without else None
        case = f"{name} D{dim} N{n}, {tiles.float().mean().item():.3f} of the {tile} x {tile} tiles: time"
        yield row("sparse mask", case, ours, without, *setting.goal(0.25, 0.16), value=value, less_is_better=True)


ROWS = {
    "lengths": lengths,
    "d256": head_size_256,
    "gqa": grouped_heads,
    "packed": packed,
    "derivatives": derivatives,
    "window": window,
    "features": features,
    "low": low_half,
    "sparse": sparse_mask,
}
