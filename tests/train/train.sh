#!/bin/sh
# train and sample: the loss goes down on a text and on recall in every dtype; a run that is stopped and resumed
# ends in the bytes of one that was not, for any number of threads; signals, full disks, wrong arguments and
# invalid checkpoints. usage: train.sh PATH_TO_ATTNGRAD [short]
# short, for slow builds: 16-bit runs have too few steps to learn, and runs that are stopped have fewer.
set -u
[ $# -eq 1 ] || [ "$*" = "$1 short" ] || { echo "usage: train.sh PATH_TO_ATTNGRAD [short]" >&2; exit 2; }
long=$((2 - $#)) # 0: short
. "$(dirname "$0")/../command.sh"
cd "$dir" || exit 2

# trains ARGUMENT...: success, with something on both streams
trains() {
    run train "$@"
    check "works: attngrad train $*" sh -c '[ "$1" -eq 0 ] && [ -s "$2" ] && [ -s "$3" ]' - "$code" "$out" "$err"
}

# value NAME: the number after NAME in the line of stdout about the test
value() {
    sed -n "s/^\(new sequences\|text not trained on\):.*$1 \([0-9.]*\).*/\2/p" "$out"
}

below() { # below NUMBER NUMBER
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 < b + 0) }'
}

same() {
    cmp -s "$1" "$2"
}

only() { # only FOLDER NAME: the folder holds that file alone
    [ "$(ls -A "$1")" = "$2" ]
}

for command in train sample; do
    works_with "usage: attngrad $command" $command --help
    check "help of $command is at most 80 columns wide" narrow
done

# ---- Learning ----
awk 'BEGIN { for (i = 0; i < 150; i++) print "the cat sat on the mat and the dog on the log, " i % 7 }' >text
for dtype in f32 bf16 f16; do
    recall_steps=300 text_steps=200 learns=check
    if [ $long -eq 0 ] && [ $dtype != f32 ]; then
        recall_steps=20 text_steps=20 learns=: # what is learnt is not checked
    fi
    trains --model recall-$dtype --dtype $dtype --width 32 --heads 2 --context 16 --steps $recall_steps --rate 0.01
    $learns "recall in $dtype: over 99%" below 99 "$(value recall)"
    trains text --model text-$dtype --dtype $dtype --width 32 --heads 2 --context 16 --steps $text_steps --rate 0.01
    $learns "text in $dtype: loss below 1, from 5.5" below "$(value loss)" 1
done
for prompt in aXbYcZa: bQxRmSx: zAyBxCwDz:; do
    prompt=${prompt%:}
    run sample "$prompt" --model recall-f32
    answer=$(printf %s "$prompt" | sed 's/.*\(.\)$/\1/')
    answer=$(printf %s "$prompt" | sed "s/.*$answer\(.\).*$answer\$/\1/")
    check "recall: $prompt is answered by $answer" [ "$(cat "$out")" = "$prompt$answer" ]
done

# ---- Threads by the environment ----
for threads in 1 3; do
    ATTNGRAD_THREADS=$threads "$attngrad" train --model threads --overwrite --width 16 --heads 2 --context 16 --steps 1 \
        >"$out" 2>"$err"
    code=$?
    check "ATTNGRAD_THREADS=$threads is what train takes" grep -q ", threads $threads\$" "$err"
done
ATTNGRAD_THREADS=3 "$attngrad" train --model threads --overwrite --width 16 --heads 2 --context 16 --steps 1 --threads 2 \
    >"$out" 2>"$err"
check "--threads comes before ATTNGRAD_THREADS" grep -q ', threads 2$' "$err"
for command in "train --model threads --overwrite --steps 1" "sample a --model threads"; do
    # shellcheck disable=SC2086 # the command and its options are words
    ATTNGRAD_THREADS=none "$attngrad" $command >"$out" 2>"$err"
    code=$?
    check "$command refuses a wrong ATTNGRAD_THREADS" is_refusal
    check "$command names it" grep -qF "ATTNGRAD_THREADS is 'none'" "$err"
done

# ---- Sampling ----
works sample "the cat" --model text-f32 --length 40 --temperature 0
check "the text is continued" grep -q '^the cat sat on the mat and the dog on the log' "$out"
works sample "the cat" --model text-f32 --length 30 --count 3 --seed 5 --temperature 2
cp "$out" three
check "three continuations" [ "$(grep -ac '^the cat' three)" -ge 3 ]
works sample "the cat" --model text-f32 --length 30 --count 3 --seed 5 --temperature 2 --threads 2
check "the same seed continues alike, for any number of threads" same "$out" three
works sample "the cat" --model text-f32 --length 30 --count 3 --seed 6 --temperature 2
check "another seed does not" sh -c '! cmp -s "$1" "$2"' - "$out" three
works sample "the cat sat on the mat and the dog on the log" --model text-f32 --length 20
check "a prompt longer than the context" grep -q 'on the log, [0-9]' "$out"
timeout 2 "$attngrad" sample "the cat" --model text-f32 --length 100000000 >"$out" 2>"$err"
code=$?
check "each byte is written as soon as it is known" [ "$(wc -c <"$out")" -gt 20 ]
# closed COMMAND...: its exit code if the reader of its output leaves after ten bytes, in $code
closed() {
    : >"$out" && : >"$err"
    { "$@" 2>"$err"; echo $? >code; } | head -c 10 >/dev/null
    code=$(cat code)
}
closed yes
usual=$code
closed timeout 60 "$attngrad" sample "the cat" --model text-f32 --length 100000000
check "a closed pipe ends it, with the exit code that every program has then, $usual" [ "$code" -eq "$usual" ]

# ---- The same bits ----
small="--width 16 --heads 2 --context 16 --batch 4 --save-every 7"
steps=$((long == 1 ? 500 : 200))
# The words are split on purpose, here and below.
# shellcheck disable=SC2086
{
    trains $small --model whole --steps 60 --threads 1
    trains $small --model two --steps 60 --threads 2
    check "two threads give the same bytes" same whole two
    for dtype in f32 f16; do
        for data in "" text; do
            start=$(date +%s%N)
            trains $data $small --dtype $dtype --model uncut --overwrite --steps $steps --plot uncut.svg
            half=$(date +%s%N | awk -v start="$start" '{ printf "%.3f", ($1 - start) / 2e9 }')
            # SIGINT halfway through the run, once: without --foreground, timeout sends it to the program and to its
            # process group, and a second SIGINT ends the run at once
            timeout --foreground --preserve-status -s INT "$half" "$attngrad" train $data $small --dtype $dtype --model cut --overwrite \
                --steps $steps --plot cut.svg >"$out" 2>"$err"
            code=$?
            if [ "$code" -eq 0 ]; then
                echo "not checked: Ctrl-C for $dtype ${data:-recall}, as the run was over before it"
            else
                check "Ctrl-C ends as by the signal" [ "$code" -eq 130 ]
                # A run that was past its last step when the signal came has nothing to stop: its test ends at once.
                check "Ctrl-C says where it stopped" grep -q -e "^stopped: cut holds step [0-9]* of $steps; --resume" \
                    -e "^step $steps " "$err"
                works sample abc --model cut
            fi
            trains $data --resume --model cut --plot cut.svg --threads 2
            check "$dtype ${data:-recall}: resumed, it ends in the bytes of a run that was not stopped" same uncut cut
            check "$dtype ${data:-recall}: and draws the same curve" same uncut.svg cut.svg
        done
    done
}
# A step that takes minutes, or at least longer than the time until the second signal.
"$attngrad" train --context 32768 --batch 2 --threads 1 --model slow --log-every 1 >"$out" 2>"$err" &
child=$!
sleep 1.5
kill -TERM $child
sleep 0.5
kill -TERM $child
wait $child 2>/dev/null
code=$?
check "a second signal ends at once, in the midst of a step" [ "$code" -eq 143 ]
check "no step was finished" sh -c '! grep -q -e "^step " -e "^stopped" "$1"' - "$err"
works sample a --model slow
rm slow

trains --resume --model whole
check "a run that is over is tested again and left alone" same whole two
trains --resume --model whole --steps 80
check "more steps may be requested" grep -q '^whole: step 80 of 80' "$out"

# ---- The curve ----
if command -v xmllint >/dev/null 2>&1; then
    check "the curve is well-formed XML" xmllint --noout uncut.svg
elif python3 -c '' 2>/dev/null; then
    check "the curve is well-formed XML" python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' uncut.svg
else
    echo "not checked: that the curve is well-formed XML, as neither xmllint nor python3 is available"
fi
check "the curve has its labels" sh -c 'grep -q ">step<" "$1" && grep -q ">loss<" "$1" && grep -q ">$2<" "$1"' - uncut.svg $steps
check "and two lines" [ "$(grep -c '<polyline' uncut.svg)" -eq 2 ]

# ---- A terminal ----
if script -qec true /dev/null >/dev/null 2>&1; then
    terminal 60 80 train --model bar --steps 40 --width 16 --heads 2 --context 16
    check "a terminal shows a bar that is redrawn" sh -c 'grep -q "^\[=*>* *\].*tokens/s.*left" "$1" &&
        ! grep -q "^step 20 " "$1"' - "$out"
    terminal 60 40 train --model bar --overwrite --steps 40 --width 16 --heads 2 --context 16
    check "on 40 columns it shows less, and does not wrap" sh -c 'grep -q "/40  loss [0-9.]*" "$1" &&
        ! grep "/40  loss" "$1" | grep -q "^.\{40\}"' - "$out"
    terminal 4 60 sample a --model recall-f32 --length 100000000 '>sampled'
    check "sample shows its progress if its output is no terminal" bar_within 60 '/100000000  [0-9:]* left'
    terminal 2 60 sample the --model text-f32 --length 100000000
    check "and on a terminal its text, without a bar" sh -c 'grep -qa "^the" "$1" && ! grep -qa " left" "$1"' - "$out"
else
    echo "not checked: the progress bar, as 'script' gives no terminal here"
fi

run train --model none --steps 5 --log-every 1 --rate 1e12 --width 16 --heads 2 --context 16
check "a rate too large ends the run, with its loss as nan" sh -c '[ "$1" -eq 1 ] && grep -q "loss nan" "$2" &&
    ! grep -q -e "-nan" "$2" && grep -q "step 2: the gradients, or the weights after it, are not finite" "$2"' - "$code" "$err"
works sample a --model none

# ---- Wrong arguments ----
refused_with "unknown option '--step'" train --step 5
refused_with "--heads: 0 is not between" train --heads 0
refused_with "--width 8192: with --heads 4 a head has 2048 channels" train --width 8192 --model new
refused_with "--layers 256 --width 16384 --context 65536 --batch 65536 needs" train --width 16384 --heads 256 \
    --layers 256 --context 65536 --batch 65536 --model new
refused_with "no multiple of --heads" train --width 10 --heads 4 --model new
refused_with "is not f32, bf16 or f16" train --dtype f64
refused_with "is not more than 0" train --rate 0
refused_with "not a finite number" train --rate fast
refused_with "needs an even one" train --context 15 --model new
refused_with "4 or more" train --context 2 --model new
refused_with "exclude each other" train --resume --overwrite
refused_with "unexpected argument" train text text2
unusable_with "No such file" train nothing --model new
unusable_with "Is a directory" train . --model new
mkfifo pipe
for name in /dev/zero pipe; do
    # Ends the test soon if the file is read without a bound after all. A limit of memory would end every run of
    # a sanitizer.
    printf '#!/bin/sh\nexec timeout 10 "%s" "$@"\n' "$attngrad" >bounded && chmod +x bounded
    old_attngrad=$attngrad attngrad=./bounded
    unusable_with "'$name' is no regular file" train "$name" --model new
    attngrad=$old_attngrad
done
truncate -s 1T huge && unusable_with "'huge' has 1024.0 GiB: a text is held in memory" train huge --model new
truncate -s 70M long && run train long --steps 1 --width 16 --heads 2 --context 16 --model long-text
check "a long text is announced, with its size" sh -c '[ "$1" -eq 0 ] && grep -qx "reading .long.: 70 MiB" "$2"' - "$code" "$err"
rm -f huge long long-text pipe
unusable_with "'three' has" train three --context 64 --model new
unusable_with "--context 64 needs 650 or more" train three --context 64 --model new
refused_with "is there already" train --model whole
unusable_with "No such file" train --resume --model nothing
refused_with "no prompt given" sample
refused_with "no prompt given" sample ""
refused_with "is less than 0" sample a --temperature -1 --model whole
unusable_with "No such file" sample a
check "nothing was written" [ ! -e new ]

# ---- Invalid checkpoints ----
cp whole before
refused_with "width 16, not 32; context 16, not 8" train --resume --model whole --width 32 --context 8
refused_with "heads 2, not 4" train --resume --model whole --heads 4
refused_with "layers 2, not 3" train --resume --model whole --layers 3
refused_with "batch 4, not 5" train --resume --model whole --batch 5
refused_with "dtype f32, not bf16" train --resume --model whole --dtype bf16
refused_with "seed 1, not 2" train --resume --model whole --seed 2
refused_with "recall task, not on a text" train text --resume --model whole
refused_with "is at step 80 already" train --resume --model whole --steps 40
refused_with "name it again" train --resume --model cut
{ cat text && echo more; } >text2
unusable_with "is not the text that 'cut' was trained on" train text2 --resume --model cut
for bytes in 0 7 100 5000 60000; do
    head -c $bytes whole >short
    unusable_with "'short': " train --resume --model short
    unusable_with "'short': " sample a --model short
done
# changed FROM TO: makes `changed`, the checkpoint with one text of its header replaced by another of the same length
changed() {
    LC_ALL=C sed "1s/$1/$2/" whole >changed
    check "the test changed $1" sh -c '! cmp -s whole changed'
}
changed '"width":"16"' '"width":"18"'
unusable_with "'embedding' is f32 [256, 16]: the model needs f32 [256, 18]" sample a --model changed
unusable_with "'embedding' is f32 [256, 16]: the model needs f32 [256, 18]" train --resume --model changed
changed '"layer.1.wk":' '"layer.9.wk":'
unusable_with "'changed': there is no tensor 'layer.1.wk'" sample a --model changed
changed '"norm.moment2":' '"norm.moment9":'
unusable_with "there is no tensor 'norm.moment2'" train --resume --model changed
works sample a --model changed
changed '"heads":"2"' '"heads":"x"'
unusable_with "its heads is 'x'" sample a --model changed
changed '"heads":"2"' '"heads":"0"'
unusable_with "its heads is '0'" sample a --model changed
changed '"heads":"2"' '"heads":"3"'
unusable_with "contradict each other" sample a --model changed
changed '"text_bytes":"0"' '"text_bytes":"7"'
unusable_with "contradict each other" train --resume --model changed --steps 90
changed '"step":"80"' '"step":"81"'
unusable_with "'losses' is f32 [80]: the model needs f32 [81]" train --resume --model changed --steps 90
changed '"seed":"1"' '"sead":"1"'
unusable_with "its seed is 'missing'" sample a --model changed
changed '"width":"16"' '"width":"10"' # 5 channels per head
unusable_with "'changed': 'embedding' is f32 [256, 16]: the model needs f32 [256, 10]" sample a --model changed

# resized FROM TO: the same for texts of any length
resized() {
    size=$(($(od -An -tu8 -N8 whole)))
    header=$(tail -c +9 whole | head -c "$size" | sed "s/$1/$2/")
    { little_endian 8 ${#header} && printf %s "$header" && tail -c +$((size + 9)) whole; } >changed
    check "the test changed $1" sh -c '! cmp -s whole changed'
}
# Sizes that would take gigabytes are refused before anything is allocated: because the tensors have other shapes or,
# if their shapes do not depend on these sizes, because the machine has less memory.
printf '#!/bin/sh\nulimit -v 2000000\nexec "%s" "$@"\n' "$attngrad" >small && chmod +x small
old_attngrad=$attngrad
if ./small sample a --model recall-f32 --threads 1 >"$out" 2>"$err"; then
    attngrad=./small
else
    echo "not checked: sizes that are refused in 2 GB, as this build runs in more only"
fi
resized '"width":"16"' '"width":"1024"'
unusable_with "'changed': 'embedding' is f32 [256, 16]: the model needs f32 [256, 1024]" sample a --model changed
unusable_with "'changed': 'embedding' is f32 [256, 16]: the model needs f32 [256, 1024]" train --resume --model changed --steps 90
resized '"width":"16"' '"width":"16384"'
unusable_with "contradict each other" sample a --model changed
resized '"layers":"2"' '"layers":"256"'
unusable_with "'changed': there is no tensor 'layer.2.norm'" sample a --model changed
unusable_with "'changed': there is no tensor 'layer.2.norm'" train --resume --model changed --steps 90
resized '"context":"16","batch":"4"' '"context":"65536","batch":"65536"'
unusable_with "'layer.0.table' is f32 [2, 16]: the model needs f32 [2, 33]" train --resume --model changed --steps 90
attngrad=$old_attngrad
trains --width 16 --heads 2 --context 40 --batch 4 --steps 80 --model whole --overwrite
resized '"context":"40","batch":"4"' '"context":"65536","batch":"65536"'
unusable_with "GiB of memory: this machine has" train --resume --model changed --steps 90
cp before whole

# put_nan BYTES: makes `changed`, the checkpoint with a NaN that many bytes after the header
put_nan() {
    cp whole changed
    printf '\000\000\300\177' | dd of=changed bs=1 seek=$((8 + $(od -An -tu8 -N8 whole) + $1)) conv=notrunc 2>/dev/null
}
put_nan 20
unusable_with "'changed': 'embedding' is not finite: its element 5 is nan" sample a --model changed
unusable_with "'changed': 'embedding' is not finite: its element 5 is nan" train --resume --model changed --steps 90
put_nan $((256 * 16 * 4 + 8))
works sample a --model changed
unusable_with "'changed': 'embedding.moment1' is not finite: its element 2 is nan" train --resume --model changed --steps 90
# The second moment of the first weight, a mean of squares, becomes -1.
cp whole changed
printf '\000\000\200\277' | dd of=changed bs=1 seek=$((8 + $(od -An -tu8 -N8 whole) + 2 * 256 * 16 * 4)) conv=notrunc 2>/dev/null
works sample a --model changed
unusable_with "'changed': 'embedding.moment2' is negative: its element 0 is -1" train --resume --model changed --steps 90
changed 'attngrad train 1' 'attngrad train 9'
unusable_with "no checkpoint of 'attngrad train'" sample a --model changed
unusable_with "it is a directory" sample a --model .
check "a checkpoint that was refused is left alone" same whole before

# ---- What cannot be written ----
mkdir limited && cp whole limited/model
printf '#!/bin/sh\nulimit -f 40\nexec "%s" "$@"\n' "$attngrad" >limit && chmod +x limit
old_attngrad=$attngrad
attngrad=./limit
run train --resume --model limited/model --steps 90
attngrad=$old_attngrad
check "a file that would be too large" sh -c '[ "$1" -eq 1 ] && grep -q "File too large" "$2"' - "$code" "$err"
check "leaves the old checkpoint" same limited/model whole
check "and no other file" only limited model
run train --model no/folder
check "a checkpoint in no folder" sh -c '[ "$1" -eq 1 ] && grep -q "No such file" "$2"' - "$code" "$err"
run train --model /proc/new
check "a checkpoint in a folder that takes none" sh -c '[ "$1" -eq 1 ] && grep -q "cannot write" "$2"' - "$code" "$err"
mkdir plots
run train --model new --steps 5 --plot plots/no/curve.svg
check "a curve in no folder" sh -c '[ "$1" -eq 1 ] && grep -q "cannot write" "$2"' - "$code" "$err"
check "is refused before the first step" sh -c '! grep -q "^step [0-9]" "$1"' - "$err"
check "and before the model is written" [ ! -e new ]
run train --model new --steps 5 --plot plots
check "a folder in the place of the curve" [ "$code" -eq 2 ]
check "no model is written then" [ ! -e new ]
check "no litter" [ -z "$(ls -A plots)" ]

# ---- Files that are the same, files that exist ----
# No two of text, model and curve may be the same file, however their paths are spelt.
mkdir same && cp text same/text && cp whole same/model && ln -s text same/link && ln same/text same/hard
(cd same && cksum ./*) >sums
twice="are the same file"
refused_with "$twice" train --model new --plot new
refused_with "$twice" train --model new --plot ./new
refused_with "$twice" train --model same/new --plot "same/../same/new"
refused_with "$twice" train --model no/new --plot no/new
refused_with "$twice" train --resume --model same/model --plot ./same/model
refused_with "$twice" train --overwrite --model same/model --plot "$dir/same/model"
for name in same/text ./same/text same/link same/hard "$dir/same/text"; do
    refused_with "--plot '$name' and the text" train same/text --model new --overwrite --plot "$name"
    refused_with "--model '$name' and the text" train same/text --model "$name" --overwrite
done
echo mine >mine
refused_with "--plot: 'mine' is there already" train --model new --steps 5 --plot mine
check "a file in the place of the curve is left alone" [ "$(cat mine)" = mine ]
check "and the model not begun" [ ! -e new ]
check "nothing was changed" sh -c 'cd same && cksum ./* | cmp -s - ../sums'
trains --model new --steps 5 --width 16 --heads 2 --context 16 --plot mine --overwrite
check "--overwrite replaces it" grep -q '<svg' mine
chmod 600 new mine
trains --model new --steps 8 --resume --plot mine
check "what is replaced keeps its mode" [ "$(stat -c %a new mine | tr '\n' ' ')" = "600 600 " ]
rm new mine

# ---- The curve holds what the checkpoint holds ----
for moment in 0.05 0.13 0.21 0.34 0.55; do
    for every in 1 1000; do
        rm -f now now.svg
        timeout --foreground --preserve-status -s INT $moment "$attngrad" train --width 16 --heads 2 --context 16 --batch 4 \
            --steps 100000 --save-every $every --model now --plot now.svg >"$out" 2>"$err"
        code=$?
        if [ ! -e now ]; then
            echo "not checked: Ctrl-C after $moment s, as the training had not begun"
            continue
        fi
        step=$(sed -n 's/^stopped: now holds step \([0-9]*\) .*/\1/p' "$err")
        check "Ctrl-C after $moment s: the checkpoint is at the step it says, $step" grep -qa "\"step\":\"$step\"" now
        cp now again
        trains --resume --model again --plot again.svg --steps "$step"
        check "and the curve too" same now.svg again.svg
    done
done

# ---- Two trainers ----
long="--width 16 --heads 2 --context 16 --batch 4 --steps 100000000"
# shellcheck disable=SC2086
{
    "$attngrad" train $long --save-every 1 --model shared >first.out 2>first.err &
    first=$!
    for _ in $(seq 600); do
        [ ! -e shared ] || break
        sleep 0.1
    done
    for n in 1 2 3 4 5 6 7 8 9 10; do
        for how in --resume --overwrite; do
            run train $how --model ./shared
            check "a second trainer is refused, $how, try $n" sh -c '[ "$1" -eq 1 ] && [ "$(wc -l <"$2")" -eq 1 ] &&
                grep -q "another process is training ...shared." "$2"' - "$code" "$err"
        done
    done
    check "the first goes on" kill -0 $first
    works sample a --model shared
    trains $small --steps 3 --model beside
    kill -KILL $first
    wait $first 2>/dev/null
    trains $small --steps 3 --overwrite --model shared
    check "a trainer that was killed leaves no lock" [ "$code" -eq 0 ]
    # Both begin without a file: the one that saves later is refused.
    "$attngrad" train $long --model fresh >first.out 2>first.err &
    first=$!
    "$attngrad" train $long --model fresh >second.out 2>second.err &
    second=$!
    sleep 3
    kill -KILL $first 2>/dev/null && one=1 || one=0
    kill -KILL $second 2>/dev/null && one=$((one + 1))
    wait $first $second 2>/dev/null
    check "of two that begin at once, one goes on" [ "$one" -eq 1 ]
    check "and the other says why" grep -q -e "another process is training .fresh." -e "'fresh' is there already" \
        first.err second.err
}

# ---- The test at the end ----
# at_step_1 FILE: the checkpoint exists and is at step 1
at_step_1() {
    grep -qa '"step":"1"' "$1" 2>/dev/null
}
# SIGINT is sent from the background and train runs in the foreground: a shell makes background commands ignore SIGINT.
(
    for _ in $(seq 600); do
        ! at_step_1 tested || break
        sleep 0.1
    done
    kill -INT "$(cat pid)"
) &
sh -c 'echo $$ >pid && exec "$@"' - "$attngrad" train --context 8192 --batch 3 --threads 1 --steps 1 --layers 1 \
    --model tested >"$out" 2>"$err"
code=$?
wait
check "Ctrl-C in the test at the end does not wait for it" sh -c '[ "$1" -eq 130 ] && [ ! -s "$2" ]' - "$code" "$out"
check "after the last checkpoint" at_step_1 tested
if script -qec true /dev/null >/dev/null 2>&1; then
    terminal 300 60 train --context 8192 --batch 6 --threads 1 --steps 1 --layers 1 --model tested --overwrite
    check "a long test shows a bar" bar_within 60 '0/1  test  0:[0-9]'
fi
trains --context 2048 --batch 1 --steps 1 --layers 1 --width 16 --heads 2 --model tested --overwrite
check "fewer sequences are tested if they are long: 16 of 2048 bytes" grep -q 'of 15968)' "$out"

finish
