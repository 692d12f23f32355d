# shellcheck shell=sh
# What the tests of the command share; sourced with the path of the command as $1.
# Streams and exit code of the last run are in $out, $err and $code.

attngrad=$1
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
out=$dir/out err=$dir/err
passed=0 failed=0

# check DESCRIPTION COMMAND...: one check that passes if the command succeeds
check() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $what (exit code $code)"
        sed 's/^/    stdout: /' "$out" | head -n 5
        sed 's/^/    stderr: /' "$err" | head -n 5
    fi
}

# run ARGUMENT...: runs the command piped, with its streams in files and its exit code in $code
run() {
    "$attngrad" "$@" </dev/null >"$out" 2>"$err"
    code=$?
}

is_refusal() {
    [ "$code" -eq 2 ] && [ ! -s "$out" ] && [ "$(wc -l <"$err")" -eq 2 ] &&
        sed -n 1p "$err" | grep -q '^attngrad.*: .' && sed -n 2p "$err" | grep -q "^try 'attngrad.* --help'$"
}

is_success() {
    [ "$code" -eq 0 ] && [ -s "$out" ] && [ ! -s "$err" ]
}

# refused ARGUMENT...: exit code 2, one error line and a hint, nothing on stdout
refused() {
    run "$@"
    check "refused: attngrad $*" is_refusal
}

# refused_with TEXT ARGUMENT...: and the error line holds TEXT
refused_with() {
    text=$1
    shift
    refused "$@"
    check "attngrad $* says '$text'" grep -qF -e "$text" "$err"
}

# unusable_with TEXT ARGUMENT...: a file's fault, not the arguments': exit code 2, one line that holds TEXT
unusable_with() {
    one_line_with 2 "$@"
}

# unwritten_with TEXT ARGUMENT...: what is right cannot be written: exit code 1, one line that holds TEXT
unwritten_with() {
    one_line_with 1 "$@"
}

# one_line_with CODE TEXT ARGUMENT...: this exit code, one line that holds TEXT
one_line_with() {
    wanted=$1 text=$2
    shift 2
    run "$@"
    check "attngrad $* ends with $wanted" [ "$code" -eq "$wanted" ]
    check "attngrad $*: one line, nothing on stdout" sh -c '[ "$(wc -l <"$1")" -eq 1 ] && [ ! -s "$2" ]' - "$err" "$out"
    check "attngrad $* says '$text'" grep -qF -e "$text" "$err"
}

works() {
    run "$@"
    check "works: attngrad $*" is_success
}

# works_with TEXT ARGUMENT...: success, and stdout holds TEXT
works_with() {
    text=$1
    shift
    works "$@"
    check "attngrad $* prints '$text'" grep -qF -e "$text" "$out"
}

# little_endian BYTES NUMBER...: each number in so many bytes, the lowest first
little_endian() {
    bytes=$1
    shift
    for number in "$@"; do
        for _ in $(seq "$bytes"); do
            printf '%b' "$(printf '\\0%03o' $((number % 256)))"
            number=$((number / 256))
        done
    done
}

# npy FILE DTYPE SHAPE BYTES: an array of zeros
npy() {
    header="{'descr': '$2', 'fortran_order': False, 'shape': $3, }"
    {
        printf '\223NUMPY\001\000'
        little_endian 2 ${#header}
        printf '%s' "$header"
        head -c "$4" /dev/zero
    } >"$1"
}

# terminal SECONDS COLUMNS ARGUMENT...: runs the command on a terminal so wide, ends it after so long; what was
# drawn is in $out, each drawing on a line of its own
terminal() {
    seconds=$1 columns=$2
    shift 2
    timeout "$seconds" script -qec "stty cols $columns; exec '$attngrad' $*" /dev/null </dev/null >"$err" 2>/dev/null
    code=$?
    tr '\r' '\n' <"$err" | sed "s/$(printf '\033')\[[0-9;]*[mK]//g" >"$out"
}

# bar_within COLUMNS TEXT: bars were drawn, with TEXT in one of them, and none wraps
bar_within() {
    grep -q "^\[.*$2" "$out" && awk -v most="$1" '/^\[=*>? *\]/ && length($0) >= most { wide = 1 } END { exit wide }' "$out"
}

narrow() {
    awk 'length($0) > 80 { wide = 1 } END { exit wide }' "$out"
}

plain() {
    ! grep -q "$(printf '\033')" "$out"
}

# finish: the closing line, and the exit code of the test
finish() {
    echo "$passed checks passed, $failed failed"
    [ "$failed" -eq 0 ]
}
