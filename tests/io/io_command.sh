#!/bin/sh
# forward, grad, jvp, jvp2 and hvp on files made by hand: which results there are, wrong arguments, wrong files, a
# full disk, signals. Whatever is wrong: exit code 2, or 1 if it cannot be written, one clear line, and no file is touched. The numbers
# are compared in io_python.sh. usage: io_command.sh PATH_TO_ATTNGRAD
set -u
[ $# -eq 1 ] || { echo "usage: io_command.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"
cd "$dir" || exit 2
mkdir in

# safetensors FILE HEADER BYTES: with a header as given
safetensors() {
    {
        little_endian 8 ${#2}
        printf '%s' "$2"
        head -c "$3" /dev/zero
    } >"$1"
}

# tensor NAME DTYPE SHAPE OFFSETS: one entry of a header
tensor() {
    printf '"%s":{"dtype":"%s","shape":%s,"data_offsets":%s}' "$1" "$2" "$3" "$4"
}

# results FOLDER NAME...: the folder holds NAME.npy of each and nothing else
results() {
    folder=$1
    shift
    found=$(find "$folder" -mindepth 1 -printf '%P\n' | LC_ALL=C sort)
    [ "$found" = "$(printf '%s.npy\n' "$@" | LC_ALL=C sort)" ]
}

shape_is() { # shape_is FILE SHAPE
    head -c 120 "$1" | tr -d '\000-\037' | grep -qF "'shape': $2"
}

# bad_file TEXT ARGUMENT...: exit code 2, one line that holds TEXT, no folder of results
bad_file() {
    unusable_with "$@" --out results
    check "attngrad $* writes nothing" [ ! -e results ]
}

# ---- What works ----
npy in/q.npy '<f8' '(2, 4, 3, 5)' 960
npy in/k.npy '<f8' '(2, 2, 6, 5)' 960
npy in/v.npy '<f8' '(2, 2, 6, 7)' 1344
npy in/do.npy '<f8' '(2, 4, 3, 7)' 1344
npy in/dlse.npy '<f8' '(2, 4, 3)' 192
npy in/bias.npy '<f8' '(1, 3, 6)' 144
npy in/mask.npy '|b1' '(3, 6)' 18
npy in/odd.npy '|b1' '(2, 6)' 12
npy in/table.npy '<f8' '(4, 5)' 160
npy in/table2.npy '<f8' '(3,)' 24
npy in/even.npy '<f8' '(4, 4)' 128
npy in/buckets.npy '<i4' '(7,)' 28
npy in/sink.npy '<f8' '(4,)' 32
npy in/two.npy '<f8' '(2,)' 16
npy in/lengths.npy '<i8' '(2,)' 16
npy in/f32.npy '<f4' '(2, 4, 3, 5)' 480
npy in/ints.npy '<i4' '(2, 4, 3, 5)' 480
qkv="--q in/q.npy --k in/k.npy --v in/v.npy"
features="--bias in/bias.npy --mask in/mask.npy --bias-table in/table.npy --sink in/sink.npy"

# The words are split on purpose, here and below.
# shellcheck disable=SC2086
{
    works forward $qkv --out forward
    check "forward's results" results forward o lse
    check "shape of o" shape_is forward/o.npy '(2, 4, 3, 7)'
    check "shape of lse" shape_is forward/lse.npy '(2, 4, 3)'
    works grad $qkv --do in/do.npy --out grad
    check "grad's results" results grad o lse dq dk dv
    check "shape of dk" shape_is grad/dk.npy '(2, 2, 6, 5)'
    works grad $qkv --dlse in/dlse.npy $features --out features
    check "grad's results with features" results features o lse dq dk dv dbias dtable dsink
    check "shape of dbias" shape_is features/dbias.npy '(1, 3, 6)'
    check "shape of dtable" shape_is features/dtable.npy '(4, 5)'
    check "shape of dsink" shape_is features/dsink.npy '(4,)'
    works jvp $qkv --tk in/k.npy --out jvp
    check "jvp's results" results jvp o lse to mu
    works jvp2 $qkv --tk in/k.npy --out jvp2
    check "jvp2's results along one direction" results jvp2 o lse to mu sto nu
    works jvp2 $qkv --tk in/k.npy --sq in/q.npy $features --sbias in/bias.npy --out jvp2
    check "jvp2's results along two directions" results jvp2 o lse to mu so smu sto nu
    check "shape of sto" shape_is jvp2/sto.npy '(2, 4, 3, 7)'
    check "shape of so" shape_is jvp2/so.npy '(2, 4, 3, 7)'
    check "shape of nu" shape_is jvp2/nu.npy '(2, 4, 3)'
    works hvp $qkv --do in/do.npy --tq in/q.npy --tdlse in/dlse.npy $features --tsink in/sink.npy --out hvp
    check "hvp's results" results hvp o lse to mu dq dk dv dbias dtable dsink tdq tdk tdv tdbias tdtable tdsink
    works forward $qkv --bias-table in/table2.npy --buckets in/buckets.npy --causal=bottom-right --window 3,-1 \
        --softcap 20 --scale -0.5 --dropout 0.1,0x7 --alibi --threads 2 --q-lengths in/lengths.npy \
        --kv-lengths in/lengths.npy --out forward
    works forward $qkv --causal --q-offsets in/lengths.npy --k-offset 1 --out forward
    works forward $qkv --causal --q-offset 3 --k-offset -1 --alibi=in/sink.npy --out forward
    works forward $qkv --causal=bottom-right --alibi --out by-causal
    works forward $qkv --causal --align bottom-right --alibi --out by-align
    check "--causal=A is --causal --align A" cmp by-causal/lse.npy by-align/lse.npy
    works forward $qkv --align bottom-right --alibi --out by-align
    works forward $qkv --align=top-left --alibi --out by-default
    check "--align alone counts for ALiBi" sh -c '! cmp -s by-align/lse.npy by-default/lse.npy'
    works forward $qkv --alibi --out by-align
    check "top-left is the default" cmp by-align/lse.npy by-default/lse.npy
    check "results were replaced without litter" results forward o lse
}

# bf16: bytes of zero are the number 0.
safetensors in/x.safetensors "{$(tensor q BF16 '[3,2]' '[0,12]'),$(tensor 'do' BF16 '[3,2]' '[12,24]')}" 24
x=in/x.safetensors
works grad --q $x:q --k $x:q --v $x:q --do $x:do --out bf16
check "bf16 gives one file" [ "$(ls -A bf16)" = out.safetensors ]
check "and its arrays can be read" grep -qF 'out.safetensors:dq  bf16 [3, 2]' "$out"
works forward --q bf16/out.safetensors:o --k bf16/out.safetensors:dk --v bf16/out.safetensors:dv --out bf16
check "which may be replaced while they are read" [ "$(ls -A bf16)" = out.safetensors ]

# Packed: 3 and 2 queries against 1 and 4 keys.
npy in/pq.npy '<f4' '(5, 4, 3)' 240
npy in/pk.npy '<f4' '(5, 2, 3)' 120
{ npy in/cq.npy '<i8' '(3,)' 0 && little_endian 8 0 3 5 >>in/cq.npy; }
{ npy in/ck.npy '<i4' '(3,)' 0 && little_endian 4 0 1 5 >>in/ck.npy; }
{ npy in/beyond.npy '<i8' '(3,)' 0 && little_endian 8 0 1 9 >>in/beyond.npy; }
packed="--q in/pq.npy --k in/pk.npy --v in/pk.npy --q-packed in/cq.npy"
# shellcheck disable=SC2086
{
    works grad $packed --k-packed in/ck.npy --do in/pq.npy --out packed
    check "shape of packed lse" shape_is packed/lse.npy '(5, 4)'
    check "shape of packed dk" shape_is packed/dk.npy '(5, 2, 3)'
    refused_with "need each other" forward $packed --out packed
    unusable_with "rows 1 to 9" forward $packed --k-packed in/beyond.npy --out packed
    unusable_with "instead of 3" forward $packed --k-packed in/lengths.npy --out packed
}

{ npy in/late.npy '<i8' '(3,)' 0 && little_endian 8 1 3 5 >>in/late.npy; }
{ npy in/nines.npy '<i8' '(2,)' 0 && little_endian 8 9 9 >>in/nines.npy; }
{ npy in/large.npy '<i4' '(1,)' 0 && little_endian 4 7 >>in/large.npy; }
{ npy in/nan.npy '<f4' '(4,)' 0 && printf '\000\000\300\177\000\000\000\000\000\000\000\000\000\000\000\000' >>in/nan.npy; }
npy in/wide.npy '<f4' '(2, 600)' 4800
npy in/three.npy '<f8' '(2, 3, 6, 5)' 1440
npy in/bias32.npy '<f4' '(3, 6)' 72
npy in/two-rows.npy '<f8' '(2, 5)' 80

# ---- A terminal ----
if script -qec true /dev/null >/dev/null 2>&1; then
    npy in/long.npy '<f8' '(200000, 1)' 1600000
    terminal 5 40 hvp --q in/long.npy --k in/long.npy --v in/long.npy --do in/long.npy --tq in/long.npy --out shown
    check "a terminal shows which map runs, and for how long" bar_within 40 '0/3  jvp  0:0[0-9]'
    terminal 60 40 forward --q in/pq.npy --k in/pk.npy --v in/pk.npy --out shown
    check "nothing if it takes no time" sh -c '! grep -q "0/1" "$1"' - "$out"
    rm in/long.npy
else
    echo "not checked: the progress bar, as 'script' gives no terminal here"
fi

# ---- Wrong arguments ----
rm -rf results
# shellcheck disable=SC2086
{
    refused_with "--q is missing" forward --out results
    refused_with "--v is missing" forward --q in/q.npy --k in/k.npy --out results
    refused_with "--out is missing" forward $qkv
    refused_with "--do is missing" grad $qkv --out results
    refused_with "no tangent" jvp $qkv --out results
    refused_with "no tangent" jvp2 $qkv --out results
    refused_with "no tangent" jvp2 $qkv --sq in/q.npy --out results
    refused_with "unknown option '--sq'" jvp $qkv --tq in/q.npy --sq in/q.npy --out results
    refused_with "unknown option '--do'" jvp2 $qkv --tq in/q.npy --do in/do.npy --out results
    refused_with "--ssink needs --sink" jvp2 $qkv --tq in/q.npy --ssink in/sink.npy --out results
    refused_with "no tangent" hvp $qkv --do in/do.npy --out results
    refused_with "unknown option '--do'" forward $qkv --do in/do.npy --out results
    refused_with "unknown option '--tq'" grad $qkv --do in/do.npy --tq in/q.npy --out results
    refused_with "did you mean '--causal'" forward $qkv --casual --out results
    refused_with "--tbias needs --bias" jvp $qkv --tbias in/bias.npy --out results
    refused_with "--ttable needs --bias-table" jvp $qkv --ttable in/table.npy --out results
    refused_with "--buckets needs --bias-table" forward $qkv --buckets in/buckets.npy --out results
    refused_with "neither FILE.npy nor" forward --q in/q.npz --k in/k.npy --v in/v.npy --out results
    refused_with "name the tensor" forward --q in/x.safetensors --k in/k.npy --v in/v.npy --out results
    refused_with "--causal: 'left' is neither top-left nor bottom-right" forward $qkv --causal=left --out results
    refused_with "--align: 'left' is neither top-left nor bottom-right" forward $qkv --align left --out results
    refused_with "--causal=top-left and --align bottom-right contradict" forward $qkv --causal=top-left \
        --align bottom-right --out results
    refused_with "two values" forward $qkv --window 3 --out results
    refused_with "is not an integer" forward $qkv --window 3,x --out results
    refused_with "is not between -1" forward $qkv --window -2,0 --out results
    refused_with "two values" forward $qkv --dropout 0.5 --out results
    refused_with "not a finite number" forward $qkv --scale nan --out results
    refused_with "not a finite number" forward $qkv --softcap 1x --out results
    refused_with "needs a value" forward $qkv --out
    refused_with "unexpected argument" forward $qkv extra --out results
    unusable_with "must be f64 [2, 2, 6, 5]" forward --q in/q.npy --k in/k.npy --v in/q.npy --out results
    unusable_with "--k: 'in/f32.npy' is f32" forward --q in/q.npy --k in/f32.npy --v in/v.npy --out results
    unusable_with "must be f64, f32, f16 or bf16" forward --q in/ints.npy --k in/k.npy --v in/v.npy --out results
    unusable_with "--k: 'in/even.npy' has 2 axes" forward --q in/q.npy --k in/even.npy --v in/v.npy --out results
    unusable_with "--q: 'in/sink.npy' has 1 axes" forward --q in/sink.npy --k in/k.npy --v in/v.npy --out results
    unusable_with "--mask: 'in/bias.npy' is f64: it must be bool or u8" forward $qkv --mask in/bias.npy --out results
    unusable_with "--mask: 'in/even.npy' is f64: it must be bool or u8" forward $qkv --mask in/even.npy --out results
    unusable_with "--mask: 'in/odd.npy' is bool [2, 6]: it must be bool [3, 6], or 1 in any axis" \
        forward $qkv --mask in/odd.npy --out results
    unusable_with "--bias: 'in/even.npy' is f64 [4, 4]: it must be f64 [3, 6], or 1 in any axis" \
        forward $qkv --bias in/even.npy --out results
    unusable_with "--sink: 'in/two.npy' is f64 [2]" forward $qkv --sink in/two.npy --out results
    unusable_with "4 columns" forward $qkv --bias-table in/even.npy --out results
    unusable_with "--q-lengths: 'in/buckets.npy' has 7 entries instead of 2" forward $qkv --q-lengths in/buckets.npy --out results
    unusable_with "--k-offsets: 'in/buckets.npy' has 7 entries instead of 2" forward $qkv --k-offsets in/buckets.npy --out results
    unusable_with "--sk: 'in/q.npy' is f64 [2, 4, 3, 5]: it must be f64 [2, 2, 6, 5]" \
        jvp2 $qkv --tq in/q.npy --sk in/q.npy --out results
    unusable_with "must be i64 or i32" forward $qkv --q-lengths in/sink.npy --out results
    unusable_with "--alibi: 'in/table2.npy' has 3 slopes" forward $qkv --alibi=in/table2.npy --out results
    # What the library refuses names the option and its file too.
    unusable_with "--kv-lengths: 'in/nines.npy': kv_lengths[0] is 9: must be from 0 to 6" \
        forward $qkv --kv-lengths in/nines.npy --out results
    unusable_with "--q-lengths: 'in/nines.npy': q_lengths[0] is 9" forward $qkv --q-lengths in/nines.npy --out results
    unusable_with "--q-packed: 'in/late.npy': q_packed[0] is 1: must be 0" forward --q in/pq.npy --k in/pk.npy \
        --v in/pk.npy --q-packed in/late.npy --k-packed in/ck.npy --out results
    unusable_with "--kv-lengths: 'in/lengths.npy': kv_lengths is given, but packed" \
        forward $packed --k-packed in/ck.npy --kv-lengths in/lengths.npy --out results
    unusable_with "--buckets: 'in/large.npy': buckets[0] is 7: must be from 0 to" \
        forward $qkv --bias-table in/table2.npy --buckets in/large.npy --out results
    unusable_with "--q: 'in/wide.npy': dim_qk is 600: must be from" forward --q in/wide.npy --k in/wide.npy \
        --v in/wide.npy --out results
    unusable_with "--k: 'in/three.npy': heads is 4: must be a multiple of kv_heads, 3" forward --q in/q.npy \
        --k in/three.npy --v in/three.npy --out results
    unusable_with "--bias: 'in/bias32.npy': aux_dtype is f32: for dtype f64" forward $qkv --bias in/bias32.npy --out results
    unusable_with "--bias-table: 'in/two-rows.npy': table_heads is 2" forward $qkv --bias-table in/two-rows.npy --out results
    unusable_with "--alibi: 'in/nan.npy': alibi_slopes[0] is nan" forward $qkv --alibi=in/nan.npy --out results
    refused_with "--softcap: softcap is -1" forward $qkv --softcap -1 --out results
    refused_with "--dropout: dropout is 1.5" forward $qkv --dropout 1.5,1 --out results
    refused_with "--q-offset: q_offset is 1: bottom-right" forward $qkv --causal=bottom-right --q-offset 1 --out results
    unusable_with "--q-offsets: 'in/nines.npy': q_offsets is given: bottom-right alignment allows no" \
        forward $qkv --causal=bottom-right --q-offsets in/nines.npy --out results
    check "wrong arguments write nothing" [ ! -e results ]
}

# ---- Wrong files ----
good=$(tensor q F64 '[2,4,3,5]' '[0,960]')
rest="--k in/k.npy --v in/v.npy"
head -c 500 in/q.npy >in/short.npy
head -c 60 in/q.npy >in/stub.npy
{ cat in/q.npy && echo; } >in/long.npy
{ printf '\223NUMPX' && tail -c +7 in/q.npy; } >in/magic.npy
{ printf '\223NUMPY\002\000\377\377\377\177' && cat in/q.npy; } >in/absurd.npy
: >in/empty.npy
npy in/complex.npy '<c16' '(2, 4, 3, 5)' 1920
npy in/overflow.npy '<f8' '(999999999999999999, 999999999999999999)' 960
mkdir in/folder.npy in/folder.safetensors
safetensors in/good.safetensors "{$good}" 960
cp in/good.safetensors in/folder.safetensors/good.safetensors
safetensors in/short.safetensors "{$good}" 959
safetensors in/long.safetensors "{$good}" 961
safetensors in/twice.safetensors "{$good,$good}" 960
safetensors in/overlap.safetensors "{$(tensor q F64 '[2]' '[0,16]'),$(tensor k F64 '[2]' '[8,24]')}" 24
safetensors in/overflow.safetensors "{$(tensor q F64 '[4611686018427387904,4]' '[0,0]')}" 0
safetensors in/dtype.safetensors "{$(tensor q F8_E5M2 '[24]' '[0,24]')}" 24
safetensors in/mixed.safetensors "{$(tensor e F8_E5M2 '[24]' '[960,984]'),$good}" 984
safetensors in/named.safetensors "{$(tensor query F64 '[2]' '[0,16]')}" 16
safetensors in/json.safetensors "{nonsense}" 0
{ little_endian 8 99999999999 && cat in/good.safetensors; } >in/absurd.safetensors
# shellcheck disable=SC2086
{
    bad_file "cut short" forward --q in/short.npy $rest
    bad_file "cut short" forward --q in/stub.npy $rest
    bad_file "not a .npy file" forward --q in/empty.npy $rest
    bad_file "1 bytes follow" forward --q in/long.npy $rest
    bad_file "not a .npy file" forward --q in/magic.npy $rest
    bad_file "header's length is 2147483647" forward --q in/absurd.npy $rest
    bad_file "unknown dtype '<c16'" forward --q in/complex.npy $rest
    bad_file "overflows" forward --q in/overflow.npy $rest
    bad_file "it is a directory" forward --q in/folder.npy $rest
    bad_file "No such file" forward --q in/nothing.npy $rest
    bad_file "No such file" forward --q in/nothing.safetensors:q $rest
    bad_file "it is a directory" forward --q in/folder.safetensors:q $rest
    bad_file "not within the file" forward --q in/short.safetensors:q $rest
    bad_file "belong to no tensor" forward --q in/long.safetensors:q $rest
    bad_file "duplicate" forward --q in/twice.safetensors:q $rest
    bad_file "overlap" forward --q in/overlap.safetensors:q $rest
    bad_file "overflows" forward --q in/overflow.safetensors:q $rest
    bad_file "unknown dtype 'F8_E5M2'" forward --q in/dtype.safetensors:q $rest
    bad_file "wrong .safetensors header" forward --q in/json.safetensors:q $rest
    bad_file "header's length is 99999999999" forward --q in/absurd.safetensors:q $rest
    bad_file "there is no tensor 'keys'" forward --q in/good.safetensors:keys $rest
    bad_file "did you mean 'query'" forward --q in/named.safetensors:qeury $rest
    works forward --q in/good.safetensors:q $rest --out good
    works forward --q in/folder.safetensors/good.safetensors:q $rest --out good
    bad_file "--q: 'in/mixed.safetensors': tensor 'e': unknown dtype 'F8_E5M2'; known are" forward --q in/mixed.safetensors:e $rest
    works forward --q in/mixed.safetensors:q $rest --out good
}
if [ "$(id -u)" -ne 0 ]; then
    chmod 0 in/stub.npy
    bad_file "Permission denied" forward --q in/stub.npy --k in/k.npy --v in/v.npy
else
    echo "not checked: a file without permission to read, as root may read all"
fi

# ---- More than memory holds ----
npy in/many.npy '<f8' '(4194304, 1)' 33554432
npy in/one.npy '<f8' '(1, 1)' 8
npy in/wide.npy '<f8' '(1, 512)' 4096
printf '#!/bin/sh\nulimit -v 2000000\nexec "%s" "$@"\n' "$attngrad" >small && chmod +x small
old_attngrad=$attngrad
if ./small forward --q in/one.npy --k in/one.npy --v in/one.npy --threads 1 --out memory >"$out" 2>"$err"; then
    attngrad=./small
    run forward --q in/many.npy --k in/one.npy --v in/wide.npy --threads 1 --out none
    check "no memory: the array and its size are named" sh -c '[ "$1" -eq 2 ] &&
        grep -qx "attngrad: no memory for o: 16384 MiB" "$2"' - "$code" "$err"
    attngrad=$old_attngrad
else
    echo "not checked: what there is no memory for, as this build needs more than 2 GB"
fi
rm in/many.npy

# ---- Results that cannot be written ----

# unwritten TEXT FOLDER ARGUMENT...: exit code 1, one line with TEXT, and FOLDER/o.npy is the old one, alone
unwritten() {
    text=$1 folder=$2
    shift 2
    run "$@" --out "$folder"
    check "not written: attngrad $*" [ "$code" -eq 1 ]
    check "attngrad $* says '$text' in one line" sh -c '[ $(wc -l <"$1") -eq 1 ] && grep -qF -e "$2" "$1"' - "$err" "$text"
    check "attngrad $* leaves the old file and no other" sh -c '[ "$(ls -A "$1")" = o.npy ] && cmp -s old "$1/o.npy"' - "$folder"
}

echo old >old
npy in/rows.npy '<f8' '(20000, 1)' 160000
large="--q in/rows.npy --k in/one.npy --v in/wide.npy" # its o has 82 MB
# shellcheck disable=SC2086
{
    works forward $qkv --out deep/er//folder/
    check "folders are made on the way" results deep/er/folder o lse
    works forward $qkv --out "$dir/deep/../deeper/still"
    check "also with dots" results deeper/still o lse
    unwritten_with "Not a directory" forward $qkv --out new/folder/../../old/x
    check "those that were made go again" [ ! -e new ]
    unwritten_with "cannot make the folder 'old/x/y': Not a directory" forward $qkv --out old/x/y
    unwritten_with "cannot make the folder 'old': Not a directory" forward $qkv --out old
    check "which stays" [ "$(cat old)" = old ]
    mkdir blocked blocked/lse.npy
    run forward $qkv --out blocked
    check "a folder in the place of a result" [ "$code" -eq 1 ]
    check "no other result is written then" [ "$(ls -A blocked)" = lse.npy ]
    unwritten_with "cannot make the folder '/proc/results'" forward $qkv --out /proc/results
    mkdir limited && cp old limited/o.npy
    old_attngrad=$attngrad
    printf '#!/bin/sh\nulimit -f 2000\nexec "%s" "$@"\n' "$old_attngrad" >limit && chmod +x limit
    attngrad=./limit
    unwritten "File too large" limited forward $large
    attngrad=$old_attngrad
}
mkdir full
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=1m tmpfs full 2>/dev/null; then
    trap 'umount "$dir/full"; rm -rf "$dir"' EXIT
    cp old full/o.npy
    # shellcheck disable=SC2086
    unwritten "No space left on device" full forward $large
else
    echo "not checked: a small file system that fills up, as none can be mounted here"
fi

# ---- Signals ----

# stop SIGNAL SECONDS: sends the signal so long after the start of the command; no file may be incomplete
stop() {
    rm -rf stopped && mkdir stopped && cp old stopped/o.npy
    # shellcheck disable=SC2086
    "$attngrad" forward $large --out stopped >"$out" 2>"$err" &
    child=$!
    sleep "$2"
    kill -"$1" $child 2>/dev/null
    wait $child 2>/dev/null
    code=$?
    if [ "$code" -eq 0 ]; then
        check "finished before SIG$1: both results" results stopped o lse
    elif [ "$(find stopped -mindepth 1 | wc -l)" -eq 1 ]; then
        check "SIG$1 after $2 s: the old file is whole" cmp -s old stopped/o.npy
    else
        check "SIG$1 after the results were in place: no litter" results stopped o lse
    fi
}
for n in 1 2 3 4 5 6 7 8 9; do
    stop TERM 0.0$n
    stop TERM 0.1$n
    stop HUP 0.2$n
done

finish
