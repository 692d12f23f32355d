#!/bin/sh
# The command on the fake driver's two devices, which compute nothing: cuda_command.sh PATH_TO_ATTNGRAD
set -u
[ $# -eq 1 ] || { echo "usage: cuda_command.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"

works_with "devices           0: Fake GPU 0, sm90, 1 GiB; 1: Fake GPU 1, sm90, 2 GiB" info
works_with '"devices": "0: Fake GPU 0, sm90, 1 GiB; 1: Fake GPU 1, sm90, 2 GiB"' info --json
works_with "backends          cpu reference cuda" info
works_with "plan in bfloat16  none: options: device is 8, number 7 of cuda: there are 2" info --backend cuda --device 7
for command in check bench; do
    refused_with "options: device is 8, number 7 of cuda: there are 2" $command "q8 d16 f32" --backend cuda --device 7
    refused_with "options: device is 2: the cpu backend has no devices" $command "q8 d16 f32" --device 1
done
run check "b2 h2 q8 d16 bf16 bias mask sink" --lengths --backend cuda --device 1
check "a check on the fake driver, which computes nothing, fails" [ "$code" -eq 1 ]
check "its plan is the second device's" grep -q "^plan     cuda, sm80, float32 inside, device 1, Fake GPU 1" "$out"
works_with "probe    tensor cores in f32: " bench "q8 d16 f32" --backend cuda
works_with '"map": "jvp_jvp"' bench "q8 d16 f64" --backend cuda --json
run info
ATTNGRAD_BACKEND=cuda "$attngrad" info >"$out" 2>"$err"
check "ATTNGRAD_BACKEND=cuda is what a plan uses" grep -q '^plan in float32   cuda, sm80, float32 inside' "$out"

echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
