#!/bin/sh
# amx_maps.sh PROCESSOR EMULATED: the same program with both AMX units. Everything that it prints after the line that
# names the unit must be the same. Exits with 77, skipped, if the processor has no such unit.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
if "$1" --unit | grep -q '^amx: none'; then
    echo "skipped: there is no AMX unit to compare with"
    exit 77
fi
"$1" >"$dir/processor" || { cat "$dir/processor"; exit 1; }
"$2" >"$dir/emulated" || { cat "$dir/emulated"; exit 1; }
grep -qx "amx: the processor's unit" "$dir/processor"
grep -qx 'amx: emulated' "$dir/emulated"
sed 1d "$dir/processor" >"$dir/wanted"
sed 1d "$dir/emulated" | diff "$dir/wanted" - || { echo 'the emulated unit gives other bits'; exit 1; }
echo "$(grep -c ': ' "$dir/wanted") outputs with the same bits"
