"""Compares the maps on [H, N, D] and on [N, H, D] in memory: python3 bench/layouts.py BUILD

BUILD is the folder of a release build. 16 heads of 1,024 positions on one thread, GFLOP/s, the best of ten rounds in
which the two layouts alternate."""

import sys
import time

from library import ALL_MAPS, MAPS, Arrays, Buffer, Library, Plan

HEADS, LENGTH, ROUNDS = 16, 1024, 10


def best_seconds(runs):
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def rates(library, dtype, dim):
    """GFLOP/s of each map in both layouts."""
    plan = Plan(library, f"h{HEADS} q{LENGTH} k{LENGTH} d{dim} {dtype}", 1)
    workspace = Buffer(plan.workspace(ALL_MAPS))
    both = [Arrays(dtype, HEADS, LENGTH, LENGTH, dim, interleaved) for interleaved in (False, True)]
    for name, (_bit, flops) in MAPS.items():  # in their order: the later ones read what the earlier ones wrote
        runs = [plan.runner(name, arrays, workspace) for arrays in both]
        yield name, [1e-9 * flops * HEADS * LENGTH**2 * dim / s for s in best_seconds(runs)]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python3 bench/layouts.py BUILD, the folder of a release build")
    library = Library(sys.argv[1])
    print(f"{'':10s} {'map':8s} {'[H, N, D]':>10s} {'[N, H, D]':>10s} {'ratio':>6s}")
    for dtype, dim in (("f32", 64), ("f32", 128), ("f64", 64), ("bf16", 64), ("bf16", 128)):
        for name, (heads_first, rows_first) in rates(library, dtype, dim):
            ratio = rows_first / heads_first
            print(f"{dtype:5s}D {dim:<3d} {name:8s} {heads_first:10.0f} {rows_first:10.0f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
