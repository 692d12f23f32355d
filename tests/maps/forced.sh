#!/bin/sh
# forced.sh ATTNGRAD COMMAND...: runs a test on the backend or instruction set that ATTNGRAD_BACKEND or ATTNGRAD_ISA
# names. If that is not available, says why and exits with 77: skipped.
attngrad=$1
shift
reason=$("$attngrad" info --json | sed -n '/"plan_f32": {$/,/}/s/^ *"refused": "\(.*\)",$/\1/p')
if [ -n "$reason" ]; then
    echo "skipped: $reason"
    exit 77
fi
exec "$@"
