#!/bin/sh
# A run that gets no chance to clean up: kill -9 at random moments, again and again, while it writes a checkpoint every
# step. Whatever the moment, the checkpoint loads; and the run that is finally completed has the bytes of one that
# was never killed. usage: train_kill.sh PATH_TO_ATTNGRAD KILLS STEPS
# STEPS: steps of the run per kill, more than it does between two of them.
set -u
[ $# -eq 3 ] || { echo "usage: train_kill.sh PATH_TO_ATTNGRAD KILLS STEPS" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"
cd "$dir" || exit 2
kills=$2
model="--width 16 --heads 2 --context 16 --batch 4 --threads 1"
steps=$((kills * $3 + 100))

# moment SEED: a pseudo-random number of seconds from 0 to 0.4
moment() {
    awk -v seed="$1" 'BEGIN { srand(seed); rand(); printf "%.3f", rand() * 0.4 }'
}

start() { # start or continue, in the background
    mode=--overwrite
    [ ! -e killed ] || mode=--resume
    # shellcheck disable=SC2086
    "$attngrad" train $model --steps $steps --save-every 1 --model killed $mode >"$out" 2>"$err" &
    child=$!
}

# shellcheck disable=SC2086
run train $model --steps $steps --model whole
check "the run that is not killed" [ "$code" -eq 0 ]
done_before=0
for n in $(seq "$kills"); do
    start
    sleep "$(moment "$n")"
    kill -9 $child 2>/dev/null || done_before=$((done_before + 1))
    wait $child 2>/dev/null
    [ -e killed ] || continue
    run sample a --model killed
    check "kill $n: the checkpoint loads" [ "$code" -eq 0 ]
done
start
wait $child
code=$?
check "the last run is completed" [ "$code" -eq 0 ]
check "with the bytes of the run that was not killed" cmp -s whole killed
check "no temporary file of a killed run is left" [ -z "$(find . -name '*.attngrad-*')" ]
echo "$kills kills, $done_before of them after the run's end"
finish
