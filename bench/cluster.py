#!/usr/bin/env python3
"""The cost of the sharded maps of attngrad_mpi.h: time, bytes and workspace of a rank for each way, and what limits it.

    bench/cluster.py --ranks 64 --n 1048576 --heads 32 --kv-heads 8 --dim 128 --dtype bf16 --causal \\
        --rate 40 --bandwidth 12.5 --latency 5

rate: TFLOP/s of a rank; bandwidth: GB/s that a rank sends; latency: microseconds of a message. docs/cluster.md derives
the formulas and compares them with runs."""

import argparse

SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
FLOPS = {"forward": 4, "vjp": 10, "jvp": 12, "vjp_jvp": 24, "jvp_jvp": 20}  # per visible pair and channel


def row_bytes(a):
    """Per map: bytes per row of (guests, their sums, sums at home) if keys travel, if queries travel, and of (inputs,
    outputs) all-to-all."""
    e, w = SIZES[a.dtype], max(4, SIZES[a.dtype])
    q, k, number = a.heads * a.dim * e, 2 * a.kv_heads * a.dim * e, 8 * a.heads
    dk, dq = 2 * a.kv_heads * a.dim * w, a.heads * a.dim * w
    o = dq + number  # o and lse, or to and mu, as sums
    return {
        "forward": ((k, 0, 1.5 * o), None, (q + k, q + number)),
        "vjp": ((k, dk, dq), (2 * q + 2 * number, dq, dk), (3 * q + k + 2 * number, q + k)),
        "jvp": ((2 * k, 0, 3 * o), None, (2 * q + 2 * k, 2 * q + 2 * number)),
        "vjp_jvp": ((2 * k, dk, dq), (4 * q + 4 * number, dq, dk), (6 * q + 2 * k + 4 * number, q + k)),
        "jvp_jvp": ((3 * k, 0, o + dq), None, (4 * q + 3 * k + 3 * number, q + number)),
    }


def ring_bytes(a, guests, sums, keys):
    """What the rank sends that sends most: zig-zag, only chunks that some row of the other rank sees or is seen by."""
    p, chunk = a.ranks, a.n / (2 * a.ranks)
    pair = lambda r: (r, 2 * p - 1 - r)
    meet = lambda q, k: not a.causal or k <= q
    needed = lambda home, c: any(meet(x, c) if keys else meet(c, x) for x in pair(home))
    sent = []
    for r in range(p):
        others = [x for x in range(p) if x != r]
        out = sum(needed(home, c) for home in others for c in pair(r))
        back = sum(needed(r, c) for owner in others for c in pair(owner))
        sent.append(out * guests + back * sums)
    return max(sent) * chunk


def ring(a, flops, per_row, keys):
    """Seconds, bytes, memory: a step computes while the guests of the next and the sums of the last are under way."""
    guests, sums, home = per_row
    p, sent = a.ranks, ring_bytes(a, guests, sums, keys)
    compute = flops / p**2 / a.rate
    transfer = a.latency + sent / max(p - 1, 1) / a.bandwidth
    tail = a.latency + a.n / p * sums / a.bandwidth if sums and p > 1 else 0
    return compute + (p - 1) * max(compute, transfer) + tail, sent, a.n / p * (3 * guests + 5 * sums + home)


def exchanged_bytes(a, share, inputs, outputs):
    """What a rank with this share of the heads sends (its rows to the heads and its heads to the rows) and receives."""
    own, other = a.n / a.ranks, a.n - a.n / a.ranks
    return own * (1 - share) * inputs + other * share * outputs, other * share * inputs + own * (1 - share) * outputs


def all_to_all(a, flops, per_row):
    """Nothing is hidden, and all wait for the rank that has most heads; its memory is that of all rows."""
    least, most = a.kv_heads // a.ranks / a.kv_heads, -(-a.kv_heads // a.ranks) / a.kv_heads
    sent = max(exchanged_bytes(a, share, *per_row)[0] for share in (least, most))
    transfer = max(exchanged_bytes(a, most, *per_row)) / a.bandwidth + 8 * a.ranks * a.latency
    packed = 2 * a.heads * a.dim * SIZES[a.dtype]  # one tensor as it is sent and received
    return flops * most / a.rate + transfer, sent, a.n * most * (sum(per_row) + packed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ranks", 4), ("n", 65536), ("heads", 32), ("kv-heads", 8), ("dim", 128)):
        parser.add_argument("--" + name, type=int, default=default)
    for name, default in (("rate", 1.0), ("bandwidth", 1.25), ("latency", 20.0)):
        parser.add_argument("--" + name, type=float, default=default)
    parser.add_argument("--dtype", choices=SIZES, default="bf16")
    parser.add_argument("--causal", action="store_true")
    a = parser.parse_args()
    if min(a.ranks, a.n, a.heads, a.kv_heads, a.dim, a.rate, a.bandwidth) <= 0 or a.latency < 0:
        parser.error("a number that must be positive is not")
    a.rate, a.bandwidth, a.latency = a.rate * 1e12, a.bandwidth * 1e9, a.latency * 1e-6
    pairs = a.heads * a.n * (a.n + 1) / 2 if a.causal else a.heads * a.n**2
    print(f"{'map':8} {'way':11} {'seconds':>9} {'of one rank':>11} {'GB sent':>8} {'GB memory':>9}  limit")
    for name, (keys, queries, exchanged) in row_bytes(a).items():
        flops = FLOPS[name] * pairs * a.dim
        ways = {"keys": ring(a, flops, keys, True), "all-to-all": all_to_all(a, flops, exchanged)}
        if queries:
            ways["queries"] = ring(a, flops, queries, False)
        for way, (seconds, sent, memory) in ways.items():
            best = flops / a.ranks / a.rate
            heads = way == "all-to-all" and a.kv_heads % a.ranks != 0
            limit = "compute" if seconds < 1.1 * best else "heads" if heads else "network"
            share = f"{flops / a.rate / seconds:.1f}x"
            print(f"{name:8} {way:11} {seconds:9.3g} {share:>11} {sent / 1e9:8.3g} {memory / 1e9:9.3g}  {limit}")


if __name__ == "__main__":
    main()
