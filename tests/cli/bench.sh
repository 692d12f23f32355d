#!/bin/sh
# `attngrad bench`: its table, its JSON, its answers to wrong arguments. usage: bench.sh PATH_TO_ATTNGRAD
set -u
[ $# -eq 1 ] || { echo "usage: bench.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"

# json_holds EXPRESSION: a Python expression over the printed list `maps`
json_holds() {
    python3 -c 'import json, sys; maps = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' \
        "$out" "$1"
}

# ---- Help and wrong arguments ----
works_with "usage: attngrad bench" bench --help
check "help of bench is at most 80 columns wide" narrow
refused_with "no problem given" bench
refused_with "did you mean 'vjp'" bench "q8 d4 f32" --map vjpp
refused_with "no map 'gradient'" bench "q8 d4 f32" --map gradient
refused_with "is not between 5 and" bench "q8 d4 f32" --rounds 4
refused_with "is not between 1 and 1024" bench "q8 d4 f32" --threads 0
refused_with "is not between 1 and 1024" bench "q8 d4 f32" --threads 1,2,0
refused_with "is not an integer" bench "q8 d4 f32" --threads 1,,2
refused_with "more than 16 numbers" bench "q8 d4 f32" --threads 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
refused_with "is not a non-negative integer" bench "q8 d4 f32" --seed x
refused_with "unknown option '--jsno' (did you mean '--json'?)" bench "q8 d4 f32" --jsno
refused_with "unexpected argument" bench "q8 d4 f32" "q8 d4 f32"
refused bench "q8 d4"
refused bench "h3 kv2 q8 d4 f32"
refused_with "no memory for q" bench "h1000 q1000000 d64 f32"

# ---- The table ----
works_with "% of probe" bench "b2 h4 kv2 q65 k70 d32 dv16 f32 causal window=20,0 sink" --threads 1
check "bench is at most 80 columns wide" narrow
check "bench prints no escape codes into a pipe" plain
for map in forward vjp jvp vjp_jvp jvp_jvp; do
    check "bench shows $map with four columns" \
        grep -Eq "^$map +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ [KMG]?i?B\$" "$out"
done

# ---- Several numbers of threads ----
works_with "times as fast as with 1 thread" bench "h2 q64 d32 f32" --threads 1,2
check "bench of two numbers of threads is at most 80 columns wide" narrow
for map in forward vjp jvp vjp_jvp jvp_jvp; do
    check "$map is as fast as itself, by a bar" grep -Eq "^$map +1 +[0-9.]+ +1\.00  #+\$" "$out"
    check "$map has its time with 2 threads" grep -Eq "^$map +2 +[0-9.]+ +[0-9.]+  #*\$" "$out"
done

# ---- The probe that a rate is compared with ----
probe_fits_plan() { # on AMX the tiles', else float32's and the reason
    if grep -q '^plan .*, amx,' "$out"; then
        grep -q '^probe    amx bf16 tiles: [1-9]' "$out"
    else
        grep -q '^probe    [a-z0-9]* f32 fma: [1-9]' "$out" && grep -q 'bf16 is computed in f32 here' "$out"
    fi
}
works bench "h2 q64 d32 bf16" --map vjp --threads 2
check "bf16 is compared with the unit that its plan uses" probe_fits_plan
check "bench of bf16 is at most 80 columns wide" narrow
if grep -q '^plan .*, amx,' "$out"; then
    works_with ", avx512, " bench "h2 q64 k16 d32 bf16" --map vjp
    works_with ", amx, " bench "h2 q64 k16 d32 bf16" --map vjp --invariant
else
    works bench "h2 q64 k16 d32 bf16" --map vjp --invariant
    echo "not checked: that --invariant keeps short sequences on AMX, as there is none"
fi
works_with "f16 is computed in f32 here, so it is compared with f32" bench "q64 d32 f16" --map forward
ATTNGRAD_ISA=scalar
export ATTNGRAD_ISA
works_with "probe    scalar f32 fma" bench "q64 d32 bf16" --map forward --threads 1
check "bf16 on the forced scalar kernels is compared with them" probe_fits_plan
unset ATTNGRAD_ISA

# ---- JSON ----
works bench "h2 q64 d32 f64" --threads 2 --json --seed 3
if python3 -c '' 2>/dev/null; then
    check "five maps in order" json_holds \
        '[m["map"] for m in maps] == ["forward", "vjp", "jvp", "vjp_jvp", "jvp_jvp"]'
    check "the keys are these and no others" json_holds \
        'all(" ".join(m) == "map ms gflops percent_of_probe workspace_bytes threads isa" for m in maps)'
    check "numbers are positive" json_holds \
        'all(m[k] > 0 for m in maps for k in ("ms", "gflops", "percent_of_probe", "workspace_bytes"))'
    check "the threads are those requested" json_holds 'all(m["threads"] == 2 for m in maps)'
    check "time and rate agree: 4 x 2 x 64 x 64 x 32 flops" json_holds \
        'abs(maps[0]["ms"] * maps[0]["gflops"] / (4 * 2 * 64 * 64 * 32 * 1e-6) - 1) < 1e-9'
    check "jvp_jvp has ten products" json_holds \
        'abs(maps[4]["ms"] * maps[4]["gflops"] / (20 * 2 * 64 * 64 * 32 * 1e-6) - 1) < 1e-9'
    works bench "q9 d8 f32" --map vjp --json --threads 1,2
    check "an object for each number of threads" json_holds '[m["threads"] for m in maps] == [1, 2]'
    works bench "q9 k12 d8 dv24 f32 causal align=bottom-right" --map vjp --json --threads=1
    check "one map if one is requested" json_holds '[m["map"] for m in maps] == ["vjp"]'
    check "causal counts the pairs that are seen: 4 + 5 + ... + 12" json_holds \
        'abs(maps[0]["ms"] * maps[0]["gflops"] / (10 * 72 * 16 * 1e-6) - 1) < 1e-9'
    works bench "q50 d8 f32 window=3,2" --map jvp --json --threads=1
    check "a window counts the pairs that are seen: 50 x 6 - 9" json_holds \
        'abs(maps[0]["ms"] * maps[0]["gflops"] / (12 * 291 * 8 * 1e-6) - 1) < 1e-9'
    works bench "q9 k12 d8 f32" --map jvp --given-o --json --threads=1
    check "jvp that is given o has five products" json_holds \
        'abs(maps[0]["ms"] * maps[0]["gflops"] / (10 * 9 * 12 * 8 * 1e-6) - 1) < 1e-9'
    works bench "h2 q65 d32 bf16 causal" --map vjp_jvp --json --threads 1
    check "bf16 has the same keys" json_holds \
        'all(" ".join(m) == "map ms gflops percent_of_probe workspace_bytes threads isa" for m in maps)'
    check "bf16 has a share of its probe" json_holds 'all(m["percent_of_probe"] > 0 for m in maps)'
    check "bf16 names its instruction set" json_holds \
        '{m["isa"] for m in maps} < {"amx", "avx512", "avx2", "neon", "scalar"}'
else
    echo "not checked: the contents of the JSON, as python3 is not available"
fi

finish
