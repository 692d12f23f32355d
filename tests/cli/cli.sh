#!/bin/sh
# The command's outer behaviour: exit codes, what goes to stdout and to stderr, the width and form of its
# output. usage: cli.sh PATH_TO_ATTNGRAD
set -u
[ $# -eq 1 ] || { echo "usage: cli.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"

# Validates $out as JSON with jq or, if that is missing, python3.
is_json() {
    if command -v jq >/dev/null 2>&1; then
        jq -e . "$out" >/dev/null
    else
        python3 -m json.tool "$out" >/dev/null
    fi
}

json_works() {
    works "$@"
    if command -v jq >/dev/null 2>&1 || python3 -c '' 2>/dev/null; then
        check "attngrad $* is valid JSON" is_json
    else
        echo "not checked: that attngrad $* is valid JSON, as neither jq nor python3 is available"
    fi
}

full_disk() {
    "$attngrad" "$@" </dev/null >/dev/full 2>"$err"
    code=$?
    : >"$out"
    check "attngrad $* on a full disk exits with 1" [ "$code" -eq 1 ]
    check "attngrad $* on a full disk says so in one line" [ "$(wc -l <"$err")" -eq 1 ]
}

# ---- Help and version ----
works_with "usage: attngrad COMMAND" --help
works_with "usage: attngrad COMMAND" -h
check "help is at most 80 columns wide" narrow
works --version
check "the version is one line" grep -q '^attngrad [0-9]*\.[0-9]*\.[0-9]*$' "$out"
for command in demo check forward grad jvp jvp2 hvp info; do
    works_with "usage: attngrad $command" $command --help
    check "help of $command is at most 80 columns wide" narrow
    works_with "usage: attngrad $command" $command -h
done

# ---- Wrong arguments ----
refused
refused_with "did you mean 'demo'" dmeo
refused_with "did you mean 'check'" chek
refused_with "unknown command 'transform'" transform
refused_with "unknown option '--frobnicate'" --frobnicate
refused "$(printf 'two\nlines')"
refused ""
for command in demo check info; do
    refused_with "unknown option '--frobnicate'" $command --frobnicate
    refused_with "did you mean '--json'" $command --jsno
    refused_with "takes no value" $command --json=yes
done
refused_with "unexpected argument 'extra'" demo extra
refused_with "unexpected argument 'extra'" info -- extra
refused check
refused_with "needs a value" check "q4 d4 f64" --seed
refused_with "needs a value" check "q4 d4 f64" --seed=
refused_with "is not a non-negative integer" check "q4 d4 f64" --seed many
refused_with "does not fit" check "q4 d4 f64" --seed 18446744073709551616
refused_with "is not an integer" check "q4 d4 f64" --threads=2x
refused_with "is not between" check "q4 d4 f64" --threads -1
refused_with "only outputs in f16 and bf16" check "q4 d4 f32" --low-halves
refused_with "only outputs in f16 and bf16" check "q4 d4 bf16 out=f32" --low-halves
refused_with "draws offsets, lengths and low halves" check --random 1 --low-halves
refused_with "draws offsets, lengths and low halves" check --random 1 --offsets
refused_with "not with align=bottom-right" check "q4 d4 f32 align=bottom-right" --offsets
refused_with "not with --q-offset" check "q4 d4 f32 causal" --offsets --q-offset 1
refused_with "is not an integer" check --random some
refused_with "no memory for the matrices of one head, queries times keys: 6866467 MiB" check "q300000 d1 f32"
refused check "q4 d4 f64" --k-offset 99999999999999999999
refused check ""
refused check "q4 d4"
refused check "q4 d4 f64 nonsense"
refused check "q4 d4 f64 dropout=2"
refused check "h3 kv2 q4 d4 f64"
refused check "q99999999999999999999 d4 f64"
refused check "q4 d4 f64" "q4 d4 f64"

# ---- demo ----
works demo
check "demo is at most 80 columns wide" narrow
check "demo prints no escape codes into a pipe" plain
for name in X Wq Wk Wv Q K V Z S P O C Wo Y T dY dWo dC "dO" dV dP dS dQ dK dWq dWk dWv dX J; do
    check "demo shows $name with its shape" grep -q "^$name \[[2-4], [2-4]" "$out"
done
check "demo ends with a lower loss" grep -q '^loss before the step .* after it .*: ok$' "$out"
check "demo passes at least 10 checks" [ "$(grep -c ' ok$' "$out")" -ge 10 ]
json_works demo --json
for name in X dX dWq J f_new; do
    check "demo --json holds $name" grep -q "\"$name\": {" "$out"
done
check "demo --json passed" grep -q '"passed": true$' "$out"
check "demo --json failed nowhere" sh -c "! grep -q '\"passed\": false' '$out'"

# ---- backends ----
for command in check bench; do
    refused_with "--backend: 'abacus' is not built into this command: it has cpu, reference" $command "q8 d4 f32" --backend abacus
    refused_with "device is 1" $command "q8 d4 f32" --backend reference --device 0
    refused_with "--device: -1 is not between 0 and" $command "q8 d4 f32" --device -1
done
refused_with "--given-o is for jvp, but --map is vjp" bench "q8 d4 f32" --map vjp --given-o
works_with "plan     reference, " check "q8 d4 f32" --backend reference

# ---- info ----
works_with "processors" info
works_with "devices           " info
json_works info --json
works_with "plan in float32   reference, float64 inside" info --backend reference
refused_with "--backend: 'gpu' is not built into this command" info --backend gpu
works_with "none: options: device is 3: the cpu backend has no devices" info --backend cpu --device 2
ATTNGRAD_BACKEND='' ATTNGRAD_ISA=scalar "$attngrad" info >"$dir/scalar"
for format in float32 bfloat16; do
    check "info: ATTNGRAD_ISA=scalar is what a plan in $format uses" \
        grep -qE "^plan in $format +cpu, scalar, float32 inside$" "$dir/scalar"
done
ATTNGRAD_BACKEND='' ATTNGRAD_ISA='' "$attngrad" info >"$dir/best"
if grep -q "amx-bf16" "$dir/best"; then
    check "info: AMX is what a plan in bfloat16 uses" grep -qE "^plan in bfloat16 +cpu, amx," "$dir/best"
else
    echo "not checked: that a plan in bfloat16 uses AMX, as this processor has none"
fi
# has_lines FILE LINE...: these lines, one after another, up to spaces and the comma
has_lines() {
    file=$1
    shift
    sed 's/^ *//; s/,$//' "$file" | tr '\n' ' ' | grep -qF -e "$*"
}
ATTNGRAD_BACKEND=reference ATTNGRAD_THREADS=3 "$attngrad" info --json >"$dir/reference"
check "info --json: the reference is what a plan uses" has_lines "$dir/reference" '"plan_bf16": {' \
    '"backend": "reference"' '"isa": ""' '"threads": 3' '"tile_queries": 0' '"tile_keys": 0' \
    '"compute_dtype": "f64"' '"deterministic": true' '}'
ATTNGRAD_BACKEND='' ATTNGRAD_ISA=nothing "$attngrad" info --json >"$dir/nothing"
check "info --json: why there is no plan, and the field" has_lines "$dir/nothing" '"plan_f32": {' \
    "\"refused\": \"environment: ATTNGRAD_ISA is 'nothing': no such name\"" '"field": "ATTNGRAD_ISA"' '}'
ATTNGRAD_BACKEND='' ATTNGRAD_ISA=nothing "$attngrad" info >"$dir/nothing"
check "info says why there is no plan" grep -qE "^plan in float32 +none: .*ATTNGRAD_ISA is 'nothing'" "$dir/nothing"

# ---- check ----
works check "b2 h4 kv2 q5 k6 d4 dv3 f64 causal softcap=30 sink"
check "check is at most 80 columns wide" narrow
check "check prints no escape codes into a pipe" plain
works check "q3 k4 d2 bf16 bias mask=b11k" --seed 7 --threads=2
works check "q4 d3 f32 alibi window=2,1 dropout=0.25 table=2" --seed=0x10
works check "q0 k3 d2 f64"
works check --random 3 --seed 1
json_works check "q3 d2 f64" --json

# ---- A terminal ----
if script -qec true /dev/null >/dev/null 2>&1; then
    terminal 4 40 check --random 1000000
    check "check --random shows its progress" bar_within 40 '/1000000  [0-9:]* left'
    terminal 6 60 check "'h8 q2000 d64 f32'"
    check "check shows its progress, and an estimate" bar_within 60 '/100  [a-z]*  about [0-9:]* left  0:0'
else
    echo "not checked: the progress bar, as 'script' gives no terminal here"
fi

# ---- Ctrl-C ----
# ends_soon ARGUMENT...: SIGINT, after half a second, ends it within 0.2 s, in the best of three trials
ends_soon() {
    best=999999
    for _ in 1 2 3; do
        start=$(date +%s%N)
        env --default-signal=INT timeout --preserve-status -s INT -k 20 0.5 "$attngrad" "$@" </dev/null >"$out" 2>"$err"
        code=$?
        took=$(($(date +%s%N) / 1000000 - start / 1000000))
        [ "$code" -eq 130 ] || return 1
        [ "$took" -lt "$best" ] && best=$took
    done
    [ "$best" -ge 500 ] && [ "$best" -lt 700 ]
}
if env --default-signal=INT timeout --preserve-status 10 date +%N 2>/dev/null | grep -q '^[0-9]*$'; then
    check "Ctrl-C ends a long map" ends_soon bench "h4 q16384 d128 f64" --threads 2
    check "Ctrl-C ends a check" ends_soon check "h4 q2000 d64 f64"
else
    echo "not checked: Ctrl-C, as env, timeout or date are not GNU's"
fi

# ---- A full disk ----
if [ -c /dev/full ]; then
    full_disk --help
    full_disk demo
    full_disk demo --json
    full_disk info
else
    echo "not checked: a full disk, as there is no /dev/full here"
fi

finish
