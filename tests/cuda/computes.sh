#!/bin/sh
# The command on the driver whose kernels run by emulation: computes.sh PATH_TO_ATTNGRAD
# The whole way of a call: plan, images, launches, kernels, the check engine's copies; every kind of check.
set -u
[ $# -eq 1 ] || { echo "usage: computes.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"

for problem in "b2 h4 kv2 q9 k11 d6 f64 causal sink" "h2 q20 k30 d16 dv8 f32 bias=1hqk table=3 softcap=3" \
    "b2 h2 q12 k14 d16 bf16 dropout=0.2 mask alibi" "b2 h2 q9 k10 d8 f16 packed=15,17 window=4,2"; do
    works_with " 0 failed" check "$problem" --backend cuda
done
works_with " 0 failed" check "h2 q20 k30 d16 f32" --backend cuda --device 1 --lengths --offsets
works_with " 0 failed" check "b1 h2 kv1 q1 k1100 d64 bf16" --backend cuda

echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
