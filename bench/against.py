#!/usr/bin/env python3
"""Compares two builds of the command on the quick bench's cases, interleaved: how fast the new one is, per map.

usage: against.py OLD NEW [--sweeps N] [--only TEXT] [--threads N]   OLD, NEW: commands, build/release/cli/attngrad"""

import argparse
import json
import subprocess

import cases

ROUNDS = "5"  # per call of a command; the best of all sweeps counts


def best_ms(command, case, name):
    words = [command, "bench", case.text, "--map", name, "--threads", str(case.threads), "--rounds", ROUNDS, "--json"]
    words += [] if case.isa == "auto" else ["--isa", case.isa]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)[0]["ms"]


def compare(options, case, name):
    times = {options.old: [], options.new: []}
    for sweep in range(options.sweeps):
        for command in sorted(times, reverse=sweep % 2 == 1):
            times[command].append(best_ms(command, case, name))
    return min(times[options.old]), min(times[options.new])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--sweeps", type=int, default=3, help="calls of each command per row; default 3")
    parser.add_argument("--only", default="", help="the cases whose label has this text")
    parser.add_argument("--threads", type=int, default=2, help="of the cases with several threads; default 2")
    return parser.parse_args()


def main():
    options = arguments()
    rows = []
    for case in cases.quick_cases(options.threads):
        if not isinstance(case, cases.Case) or options.only not in case.label:
            continue
        for name in cases.FOUR_MAPS:
            old, new = compare(options, case, name)
            rows.append((old / new, f"{case.label} {name}"))
            print(f"{case.label:50} {name:8} {old:9.2f} {new:9.2f} ms  {old / new:.3f}", flush=True)
    if rows:
        print(f"lowest: {min(rows)[0]:.3f}, {min(rows)[1]}")


if __name__ == "__main__":
    main()
