"""Rows of bench/gpu.py for features of the score, in bfloat16: each map with a feature over the same map without it."""

import torch
from gpu_timing import (
    DEVICE,
    WIDTH,
    at,
    milliseconds,
    named,
    our_calls,
    quotient,
    rate,
    row,
    second_calls,
    square,
    tensors,
)

N = 4096
GOALS = {  # forward's must and aim, vjp's, at D 128; at D 64 nine tenths of these
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


def keywords_of_features(heads, n):
    """Of each entry of GOALS."""
    (bias,), (table,) = tensors(1, 1, heads, n, n), tensors(1, heads, 2 * 128 + 1)
    mask = torch.rand(1, 1, n, n, device=DEVICE) < 0.5
    dropout = {"dropout": 0.1, "seed": 7}
    keywords = [{"alibi": True}, {"bias_table": table}, {"softcap": 30.0}, {"bias": bias}, {"mask": mask}, dropout]
    keywords += [{"softcap": 30.0, "causal": True, "window": (n // 4, 0)}, {"bias": bias, "mask": mask}]
    keywords += [{"bias": bias} | dropout]
    return dict(zip(GOALS, keywords, strict=True))


def feature_rows(group, names, dim, makers, goals, setting):
    """makers: of the calls of these maps without and with each feature. The value is the time without over that with
    it: the rates compared, but where a window hides pairs."""
    calls = {"none " + name: call for name, call in makers.pop("none")().items()}
    for feature, make in makers.items():
        calls |= {f"{feature} {name}": call for name, call in make().items()}
    ms = milliseconds(calls, setting)
    for feature in makers:
        for name in names:
            must, aim = goals(feature, name)
            ours, without = ms.get(f"{feature} {name}"), ms.get("none " + name)
            more = {"feature": feature} | at(name, dim, N)
            if "window" not in feature:
                more["tflops"] = rate(name, N, ours)
            yield row(group, f"{name} D{dim} N{N} {feature}", ours, without, must, aim, **more)


def no_goal(feature, name):
    return None, None


def features(setting):
    for dim in (128, 64):
        x, share = square(dim, N), 1.0 if dim == 128 else 0.9

        def goals(feature, name, share=share):
            goal = GOALS[feature][("forward", "vjp").index(name)]
            return setting.goal(*(None if g is None else round(g * share, 3) for g in goal))

        makers = {"none": lambda x=x: named("", our_calls(*x))}
        for feature, keywords in keywords_of_features(WIDTH // dim, N).items():
            makers[feature] = lambda x=x, keywords=keywords: named("", our_calls(*x, **keywords))
        yield from feature_rows("features", ("forward", "vjp"), dim, makers, goals, setting)


def second(setting):
    for dim in (128, 64):
        x = square(dim, N)
        makers = {"none": lambda x=x: second_calls(*x)}
        for feature, keywords in keywords_of_features(WIDTH // dim, N).items():
            makers[feature] = lambda x=x, keywords=keywords: second_calls(*x, **keywords)
        yield from feature_rows("features of jvp and vjp_jvp", ("jvp", "vjp_jvp"), dim, makers, no_goal, setting)


def gradients(setting):
    """vjp that also returns the gradient of the bias or the table."""
    for dim in (128, 64):
        x, heads = square(dim, N), WIDTH // dim
        (bias,), (row_of_keys,), (table,) = (
            tensors(1, 1, heads, N, N),
            tensors(1, 1, heads, 1, N),
            tensors(1, heads, 2 * 128 + 1),
        )
        extra = {"bias [1, H, N, N] and its gradient": ("dbias", {"bias": bias})}
        extra["bias [1, H, 1, N] and its gradient"] = ("dbias", {"bias": row_of_keys})
        extra["table and its gradient"] = ("dtable", {"bias_table": table})

        def vjp(wanted=(), x=x, **keywords):
            return {"vjp": our_calls(*x, wanted=("dq", "dk", "dv", *wanted), **keywords)[1]}

        makers = {"none": vjp}
        for feature, (gradient, keywords) in extra.items():
            makers[feature] = lambda gradient=gradient, keywords=keywords, vjp=vjp: vjp((gradient,), **keywords)
        yield from feature_rows("gradients of bias and table", ("vjp",), dim, makers, no_goal, setting)


def sparse(setting):
    """A mask that shows one tile of eight, at random: time over that without a mask. Forward's goal is of D 128."""
    n, tile = 8192, 128
    generator = torch.Generator(DEVICE).manual_seed(7)
    tiles = torch.rand(n // tile, n // tile, device=DEVICE, generator=generator) < 1 / 8
    mask = tiles.repeat_interleave(tile, 0).repeat_interleave(tile, 1)[None, None].contiguous()
    share = tiles.float().mean().item()
    for dim in (128, 64):
        x = square(dim, n)

        def calls_of(prefix, x=x, **keywords):
            second = second_calls(*x, **keywords).items()
            return named(prefix, our_calls(*x, **keywords)) | {prefix + name: call for name, call in second}

        ms = milliseconds(calls_of("none ") | calls_of("", mask=mask), setting)
        for name in ("forward", "vjp", "jvp", "vjp_jvp"):
            ours, without = ms.get(name), ms.get("none " + name)
            goal = setting.goal(0.25, 0.16) if dim == 128 and name in ("forward", "vjp") else (None, None)
            case = f"{name} D{dim} N{n}, 1/8 of the {tile} x {tile} tiles: time over none's"
            more = {"value": quotient(ours, without), "less_is_better": True, "visible": share}
            yield row("sparse mask", case, ours, without, *goal, **more)


ROWS = {
    "features": features,
    "second": second,
    "gradients": gradients,
    "sparse": sparse,
}
