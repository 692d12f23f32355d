#!/bin/sh
# `attngrad view`: the file, its limits, what it refuses. usage: view.sh PATH_TO_ATTNGRAD
# What a reader sees in a browser is tested in python/tests/view/.
set -u
[ $# -eq 1 ] || { echo "usage: view.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"
cd "$dir" || exit 2

# npy FILE SHAPE COUNT: an array of float64 zeros
npy() {
    header="{'descr': '<f8', 'fortran_order': False, 'shape': ($2), }"
    length=118
    {
        printf '\223NUMPY\001\000\166\000'
        printf "%-$((length - 1))s\n" "$header"
        head -c $(($3 * 8)) /dev/zero
    } >"$1"
}

# lengths A B: lengths.npy, two int64 below 65536
lengths() {
    {
        printf '\223NUMPY\001\000\166\000'
        printf "%-117s\n" "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }"
        for n in "$1" "$2"; do
            printf '%b' "$(printf '\\0%03o\\0%03o' $((n % 256)) $((n / 256)))"
            head -c 6 /dev/zero
        done
    } >lengths.npy
}

size_at_most() { # size_at_most FILE BYTES
    [ "$(wc -c <"$1")" -le "$2" ]
}

has() { # has FILE TEXT
    grep -qF -e "$2" "$1"
}

# ---- Help and wrong arguments ----
works_with "usage: attngrad view" view --help
check "help of view is at most 80 columns wide" narrow
refused_with "--out is missing" view
refused_with "--k is missing" view --q q.npy --out x.html
refused_with "one of them" view "q4 d2 f32" --q q.npy --k q.npy --v q.npy --out x.html
refused_with "--backend: a page has no choice of it" view "q4 d2 f32" --backend cuda --out x.html
refused_with "--device: a page has no choice of it" view "q4 d2 f32" --device 1 --out x.html
refused_with "the worked example is shown as a whole" view --heads 0 --out x.html
refused_with "is not a list of numbers" view "q4 d2 f32" --heads a --out x.html
refused_with "is not a range such as 0-63" view "q4 d2 f32" --rows 5-3 --out x.html
refused_with "is not a range such as 0-63" view "q4 d2 f32" --keys 5 --out x.html
refused_with "no map 'hvp'" view "q4 d2 f32" --maps hvp --out x.html
refused_with "head 2: there are 2, from 0" view "h2 q4 d2 f32" --heads 2 --out x.html
refused_with "head 1 is asked for twice" view "h2 q4 d2 f32" --heads 1,0,1 --out x.html
refused_with "sequence 1: there are 1, from 0" view "h2 q4 d2 f32" --sequences 1 --out x.html
refused_with "queries 0 to 7: there are 4" view "q4 d2 f32" --rows 0-7 --out x.html
refused_with "there is nothing to show" view "q4 k0 d2 f32" --out x.html
refused_with "unknown option '--haeds' (did you mean '--heads'?)" view --haeds 0 --out x.html
refused view "q4 d2" --out x.html
refused_with "--causal is for arrays: a problem has its features in its text" view "q6 d4 f32" --causal --out x.html
refused_with "--softcap is for arrays" view "q6 d4 f32" --softcap 0 --out x.html
refused_with "--dropout is for arrays" view "q6 d4 f32" --dropout 0.5,1 --out x.html
refused_with "--scale is for arrays" view --scale 9 --out x.html
refused_with "--seed is for the random numbers of a problem" view --seed 4 --out x.html
refused_with "--seed is for the random numbers of a problem" view --q q.npy --k q.npy --v q.npy --seed 4 --out x.html
refused_with "'x' is not" view "q6 d4 f32" --seed x --out x.html
check "none of them wrote a file" [ ! -e x.html ]

# ---- The file ----
works_with "example.html" view --out example.html
check "the example has at most 250 KB" size_at_most example.html 250000
check "and is HTML" has example.html '<!doctype html>'
works view --out again.html
check "the same input gives the same bytes" cmp -s example.html again.html
works view "h2 q6 d4 f32 causal" --seed 2 --out new/folder/a.html
works view "h2 q6 d4 f32 causal" --seed 3 --out new/folder/b.html
check "another seed gives other numbers" sh -c '! cmp -s new/folder/a.html new/folder/b.html'
works view --out new/folder/a.html
check "a file that exists is replaced" cmp -s example.html new/folder/a.html

# ---- Arrays ----
npy q.npy "3, 4" 12
npy short.npy "2, 4" 8
works_with "No tangent was given" view --q q.npy --k q.npy --v q.npy --out forward.html
check "a page of forward alone says so" has forward.html '"maps":["forward"]'
works view --q q.npy --k q.npy --v q.npy --do q.npy --tq q.npy --causal --out all.html
check "cotangent and tangent give all maps" has all.html '"maps":["forward","vjp","jvp","vjp_jvp"]'
works_with "Not given, so zero: dO, tQ, tK." view --q q.npy --k q.npy --v q.npy --tv q.npy --tdo q.npy --out tv.html
unusable_with "must be f64 [3, 4]" view --q q.npy --k q.npy --v q.npy --do short.npy --out x.html
unusable_with "No such file" view --q none.npy --k q.npy --v q.npy --out x.html
refused_with "jvp and vjp_jvp need a tangent" view --q q.npy --k q.npy --v q.npy --maps jvp --out x.html
name='<script>alert(1)</script>&"'
works view --q q.npy --k q.npy --v q.npy --title "$name" --out title.html
check "a title is text" sh -c '! grep -qF "<script>alert" title.html'
long=$(printf 'ab%0200d' 0 | sed 's/0/é/g')
works view --q q.npy --k q.npy --v q.npy --title "$long" --out title.html
check "a long title is cut after a whole character" iconv -f UTF-8 -t UTF-8 -o /dev/null title.html
works view --q q.npy --k q.npy --v q.npy --dropout 0.5,77 --out dropout.html
check "the seed of dropout is a fact" has dropout.html "dropout 0.5, seed 77"
cp q.npy "<img src=x>.npy"
works view --q "<img src=x>.npy" --k q.npy --v q.npy --out named.html
check "a file's name is text" sh -c '! grep -qF "<img src=x>" named.html'

# ---- Large problems ----
works_with "one cell stands for" view "q1100 d4 f32" --maps forward,vjp --rows 8-15 --keys 1000-1003 --out large.html
npy long_q.npy "2, 1, 2000, 4" 16000
npy long_k.npy "2, 1, 1000, 4" 8000
lengths 2000 900
refused_with "queries 900 to 963: there are 900 of them in sequence 1" view --q long_q.npy --k long_k.npy \
    --v long_k.npy --q-lengths lengths.npy --sequences 0,1 --rows 900-963 --out x.html
works_with "Every number is shown" view "q6 d4 f32" --rows 1-2 --out rows.html
check "a page has at most 20 MB" size_at_most large.html 20000000
check "notes are at most 80 columns wide" narrow
check "the window is the one asked for" has large.html '"window":{"queries":[8,16],"keys":[1000,1004]}'
works view "b2 h8 q200 d64 f32" --heads 0,1,2,3,4,5,6,7 --out many.html
check "a page of many heads has at most 20 MB" size_at_most many.html 20000000
works view "h8 q64 d16 f32" --out eight.html
check "eight heads of 64 are there in full" sh -c '! grep -q "too large" "$1"' - "$out"
check "on a page of at most 20 MB" size_at_most eight.html 20000000
works_with "1 of 64 heads" view "h64 q64 d16 f32" --out first.html
check "if not all heads fit in full, the first one does" sh -c '! grep -q "too large" "$1"' - "$out"
refused_with "do not fit into a page of 20 MB" view "q2048 d4 f32" --maps forward --rows 0-2047 --keys 0-2047 --out x.html

# ---- What cannot be written ----
if [ "$(id -u)" -ne 0 ]; then
    mkdir closed && chmod 555 closed
    unwritten_with "Permission denied" view --out closed/x.html
fi
unwritten_with "cannot make the folder" view --out /proc/page/x.html
unwritten_with "Not a directory" view --out example.html/x.html
mkdir folder
unwritten_with "folder" view --out folder
if [ -e /dev/full ]; then
    (ulimit -f 8 && "$attngrad" view --out limited.html >"$out" 2>"$err")
    code=$?
    check "a file that is too large for the limit ends with 1" [ "$code" -eq 1 ]
    check "and leaves nothing" [ ! -e limited.html ]
fi
check "no temporary file is left" [ -z "$(find . -name '.attngrad*')" ]
finish
