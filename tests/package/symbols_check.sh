#!/bin/sh
# The check engine's symbols: symbols_check.sh ROOT STATIC
# Every global name that the static library defines starts with agc_, or it is a function of attngrad_check.h; every
# function of that header is defined.
set -eu
root=$1 static=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n 's/^AG_API .*[ *]\(ag_check_[a-z0-9_]*\)(.*/\1/p' "$root/include/attngrad_check.h" | LC_ALL=C sort >"$work/declared"
nm -g --defined-only "$static" | awk 'NF == 3 { print $3 }' | LC_ALL=C sort >"$work/defined"
grep -v '^agc_' "$work/defined" >"$work/others" || true
if ! grep -q '^agc_' "$work/defined" || ! [ -s "$work/declared" ]; then
    echo "nothing to compare: no agc_ name in $static, or no function in attngrad_check.h"
    exit 1
fi
if ! diff "$work/declared" "$work/others"; then
    echo "global names without agc_ (>) are not the functions of attngrad_check.h (<)"
    exit 1
fi
echo "$(wc -l <"$work/defined") global names, $(wc -l <"$work/declared") of them public"
