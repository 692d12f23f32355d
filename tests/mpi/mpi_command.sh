#!/bin/sh
# `attngrad check --mpi` and `attngrad bench --mpi`: mpi_command.sh ATTNGRAD
set -eu
here=$(dirname "$0") attngrad=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

expect() { # expect STATUS TEXT RANKS ARGUMENT...: the exit status, and a text in the output
    status=0
    wanted=$1 text=$2 ranks=$3
    shift 3
    sh "$here/mpirun.sh" "$ranks" "$attngrad" "$@" >"$work/out" 2>&1 || status=$?
    if [ "$status" -eq "$wanted" ] && grep -q -e "$text" "$work/out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$*: exit status $status, wanted $wanted and '$text'; it printed"
        cat "$work/out"
    fi
}

expect 0 '3 ranks: keys keys keys keys keys' 3 check --mpi 'h4 kv2 q40 d8 f32 causal sink' --way keys
expect 0 'checks passed, 0 failed' 2 check --mpi 'b2 h4 q33 d8 bf16 causal' --way all-to-all --layout contiguous
expect 0 'checks passed, 0 failed' 3 check --mpi 'q40 d8 f32 causal' --progress poll
# What ag_check_command prints for a random problem that fails.
expect 0 ' 0 failed' 3 check --mpi 'b2 h2 q20 d4 bf16 causal' --seed 7 --q-offset 3 --k-offset -2 --batch-offset 4 \
    --lengths --low-halves
expect 0 ' 0 failed' 3 check --mpi 'b2 h2 q20 d4 f32 causal' --offsets
expect 2 'not with --q-offset' 2 check --mpi 'q8 d4 f32' --offsets --q-offset 3
expect 2 'not with align' 2 check --mpi 'q8 d4 f32 causal align=bottom-right' --offsets
expect 2 'draws offsets' 2 check --mpi --random 2 --offsets
expect 0 '6 problems, 0 failed' 3 check --mpi --random 6 --seed 4
expect 0 '^vjp ' 2 bench --mpi 'h2 q64 d8 f32 causal' --rounds 1
expect 0 '"one_process_ms"' 2 bench --mpi 'h2 q64 d8 f32 causal' --rounds 1 --json
expect 0 '^jvp_jvp ' 2 bench --mpi 'h2 q64 d8 f32 causal' --rounds 1 --map jvp_jvp
expect 0 '^vjp  *keys  *[0-9.]*  *-  *-  ' 3 bench --mpi 'h2 q65 d8 f32 causal' --rounds 1 --way keys --alone off
expect 2 'not with packed' 2 bench --mpi 'h2 q64 d8 f32 bias=11qk' --alone off
expect 2 'on or off' 2 bench --mpi 'h2 q64 d8 f32' --alone sideways
expect 2 'forward, vjp' 2 bench --mpi 'h2 q64 d8 f32 causal' --map sideways
expect 0 'usage: mpirun' 2 check --mpi --help
expect 0 'usage: mpirun' 1 bench --mpi --help
expect 2 'all-to-all' 2 check --mpi 'q8 d4 f32' --way sideways
expect 2 'poll or thread' 2 check --mpi 'q8 d4 f32' --progress sideways
expect 2 'queries cannot travel' 2 check --mpi 'q8 d4 f32 bias=11qk' --way queries
expect 2 'is no word of a problem' 2 check --mpi 'q8 d4 f32 causall'
expect 2 'one of them' 2 check --mpi
# The reason comes from the library that failed.
expect 2 'longest packed sequence' 2 check --mpi 'b3 h2 q4 k4 d8 f16 packed=3,2'
expect 2 'longest packed sequence' 2 bench --mpi 'b3 h2 q4 k4 d8 f16 packed=3,2'

# One message, not one per rank.
sh "$here/mpirun.sh" 3 "$attngrad" check --mpi 'q8 d4 f32' --way sideways >"$work/out" 2>&1 || true
if [ "$(grep -c 'attngrad check: ' "$work/out")" -eq 1 ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    cat "$work/out"
fi

# The first command of docs/cluster.md, as it is typed; root is allowed by the environment.
type_command() {
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PATH=$(dirname "$attngrad"):$PATH sh -c "$1"
}
line=$(sed -n 's/^    \(mpirun .* -n 4 attngrad check .*\)$/\1/p' "$here/../../docs/cluster.md")
if ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    echo "mpirun is not Open MPI's: the command of docs/cluster.md is not run"
elif type_command "${line:-false}" >"$work/out" 2>&1 && grep -q ' 0 failed' "$work/out"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "docs/cluster.md: ${line:-no command}; it printed"
    cat "$work/out"
fi

# Without attngrad-mpi next to it the command says so.
cp "$attngrad" "$work/attngrad"
if "$work/attngrad" check --mpi 'q8 d4 f32' 2>"$work/out" || ! grep -q 'this build has no MPI' "$work/out"; then
    failed=$((failed + 1))
    cat "$work/out"
else
    passed=$((passed + 1))
fi
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
