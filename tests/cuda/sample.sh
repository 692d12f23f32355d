#!/bin/sh
# Runs a test on a sample of its problems that the commit's hash chooses: sample.sh ROOT STEP PROGRAM
# So every commit tests other ones, and the same commit the same. Without git the seed is 1.
set -eu
hash=$(git -C "$1" rev-parse --short=7 HEAD 2>/dev/null || echo 1)
seed=$((0x$hash))
echo "seed $seed, of commit $hash: $3 $seed $2 repeats this"
exec "$3" "$seed" "$2"
