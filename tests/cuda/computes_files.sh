#!/bin/sh
# forward, grad, jvp, jvp2 and hvp of files on the driver whose kernels run by emulation: the numbers that the CPU
# gives, on both devices; a device that is not there. usage: computes_files.sh PATH_TO_ATTNGRAD
set -u
[ $# -eq 1 ] || { echo "usage: computes_files.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"
cd "$dir" || exit 2
mkdir in

# numbers BYTES COUNT: so many numbers of 4 or 8 bytes, of either sign, from 0.5 to 2
numbers() {
    drawn=$((drawn + 1))
    awk -v bytes="$1" -v count="$2" -v seed="$drawn" 'BEGIN {
        srand(seed)
        while (count-- > 0) {
            for (i = 0; i < bytes - 2; i++) printf "\\0%03o", int(256 * rand())
            printf "\\0%03o", bytes == 4 ? int(256 * rand()) : 224 + int(32 * rand())
            printf "\\0%03o", rand() < 0.5 ? 63 : 191
        }
    }' >bytes
    printf '%b' "$(cat bytes)"
}
drawn=0

# random FILE BYTES SHAPE COUNT
random() {
    npy "$1" "<f$2" "$3" 0
    numbers "$2" "$4" >>"$1"
}

# values FILE: one number in a line
values() {
    length=$(od -An -tu2 -j8 -N2 "$1")
    dtype=$(head -c 128 "$1" | LC_ALL=C tr -cd "[:print:]" | sed "s/.*'descr': '<\(f[48]\)'.*/\1/")
    od -An -v -t"$dtype" -w"${dtype#f}" -j $((10 + length)) "$1"
}

# is_near LIMIT FOLDER FOLDER: the same files, whose differences are small beside their numbers
is_near() {
    limit=$1 count=0
    for file in "$2"/*.npy; do
        values "$file" >first
        values "$3/${file##*/}" >second || return 1
        [ "$(wc -l <first)" -eq "$(wc -l <second)" ] || return 1
        paste first second | awk -v limit="$limit" -v file="$file" '
            { error += ($1 - $2) ^ 2; size += $1 ^ 2 }
            END {
                far = !(NR > 0 && size > 0 && sqrt(error) <= limit * sqrt(size))
                if (far) printf "%s: the difference is %g, the numbers are %g\n", file, sqrt(error), sqrt(size)
                exit far
            }' >>"$out" || return 1
        count=$((count + 1))
    done
    [ "$count" -eq "$(find "$3" -name '*.npy' | wc -l)" ] && [ "$count" -ge 2 ]
}

# compared LIMIT OPTIONS COMMAND...: the command on the CPU and, with these options, on the emulated GPU
compared() {
    limit=$1 options=$2
    shift 2
    works "$@" --backend cpu --out cpu
    # The words are split on purpose, here and below.
    # shellcheck disable=SC2086
    works "$@" --backend cuda $options --out cuda
    check "attngrad $* $options gives the numbers of the CPU" is_near "$limit" cpu cuda
    rm -rf cpu cuda
}

inputs() { # inputs BYTES HEAD_SIZE: b2, h2 kv1, q20 k30
    random in/q.npy "$1" "(2, 2, 20, $2)" $((80 * $2))
    random in/k.npy "$1" "(2, 1, 30, $2)" $((60 * $2))
    random in/v.npy "$1" "(2, 1, 30, $2)" $((60 * $2))
    random in/do.npy "$1" "(2, 2, 20, $2)" $((80 * $2))
    random in/bias.npy "$1" '(2, 20, 30)' 1200
    random in/table.npy "$1" '(2, 9)' 18
    random in/sink.npy "$1" '(2,)' 2
}

npy in/lengths.npy '<i8' '(2,)' 0
little_endian 8 30 17 >>in/lengths.npy
qkv="--q in/q.npy --k in/k.npy --v in/v.npy"
features="--bias in/bias.npy --bias-table in/table.npy --sink in/sink.npy --softcap 5"

# shellcheck disable=SC2086
{
    inputs 8 16
    compared 1e-12 "" forward $qkv $features --kv-lengths in/lengths.npy --causal
    compared 1e-12 "" grad $qkv $features --do in/do.npy --dropout 0.2,5
    compared 1e-12 "--device 1" grad $qkv --do in/do.npy --q-offsets in/lengths.npy --window 9,4
    compared 1e-12 "" jvp $qkv $features --tq in/q.npy --tk in/k.npy --tbias in/bias.npy
    compared 1e-12 "" jvp2 $qkv --tq in/q.npy --tv in/v.npy --sk in/k.npy
    compared 1e-12 "" hvp $qkv $features --do in/do.npy --tq in/q.npy --tv in/v.npy --ttable in/table.npy
    inputs 4 64
    compared 2e-5 "" grad $qkv --do in/do.npy --causal
    compared 2e-5 "--device 1" forward $qkv
    for command in forward "grad --do in/do.npy" "hvp --do in/do.npy --tq in/q.npy"; do
        refused_with "device is 8, number 7 of cuda: there are 2" $command $qkv --backend cuda --device 7 --out results
        check "and writes nothing" [ ! -e results ]
    done
}

echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
