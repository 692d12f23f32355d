#!/usr/bin/env python3
"""The times of `attngrad bench --mpi` beside those of the cost model (cluster.py), on ranks of this machine:

    bench/cluster_times.py [--attngrad build/release/cli/attngrad] [--ranks 2,4] [--n 4096] [--bandwidth 2]

float32, 8 heads, 4 kv heads, D 64, causal; one thread per rank. The model gets the rate of each map from a run on one
rank, divided among the ranks if there are more of them than processors, and the bandwidth (GB/s) and latency
(microseconds) of the arguments. Prints the table of docs/cluster.md."""

import argparse
import json
import os
import pathlib
import subprocess

import cluster

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADS, KV_HEADS, DIM = 8, 4, 64
MAPS = ("forward", "vjp")


def bench(a, ranks, way):
    """The results of the maps by name."""
    text = f"h{HEADS} kv{KV_HEADS} q{a.n} d{DIM} f32 causal"
    command = ["sh", f"{ROOT}/tests/mpi/mpirun.sh", str(ranks), a.attngrad, "bench", "--mpi", text, "--way", way]
    command += ["--rounds", str(a.rounds), "--alone", "off", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return {result["map"]: result for result in json.loads(run.stdout)}


def model(a, ranks, way, name, alone_ms):
    """Seconds and bytes by the cost model."""
    flops = cluster.FLOPS[name] * HEADS * a.n * (a.n + 1) / 2 * DIM
    rate = flops / (1e-3 * alone_ms) * min(1, os.cpu_count() / ranks)
    given = argparse.Namespace(
        ranks=ranks, n=a.n, heads=HEADS, kv_heads=KV_HEADS, dim=DIM, dtype="f32", causal=True, rate=rate
    )
    given.bandwidth, given.latency = a.bandwidth * 1e9, a.latency * 1e-6
    keys, queries, exchanged = cluster.row_bytes(given)[name]
    if way == "all-to-all":
        return cluster.all_to_all(given, flops, exchanged)[:2]
    return cluster.ring(given, flops, keys if way == "keys" else queries, way == "keys")[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attngrad", default=f"{ROOT}/build/release/cli/attngrad")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bandwidth", type=float, default=2.0)
    parser.add_argument("--latency", type=float, default=20.0)
    a = parser.parse_args()
    alone = bench(a, 1, "keys")
    print("| ranks | map | way | MB sent | by the model | ms | by the model |\n|---|---|---|---|---|---|---|")
    for ranks in map(int, a.ranks.split(",")):
        results = {way: bench(a, ranks, way) for way in ("keys", "queries", "all-to-all")}
        for name in MAPS:
            for way, found in results.items():
                if found[name]["way"] != way:  # queries travel in vjp only
                    continue
                seconds, sent = model(a, ranks, way, name, alone[name]["ms"])
                print(f"| {ranks} | {name} | {way} | {found[name]['bytes_sent'] / 1e6:.2f} | {sent / 1e6:.2f}", end="")
                print(f" | {found[name]['ms']:.0f} | {1e3 * seconds:.0f} |")


if __name__ == "__main__":
    main()
