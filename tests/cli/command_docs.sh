#!/bin/bash
# The man page and the completion for bash know every command and every option that the help names:
# command_docs.sh PATH_TO_ATTNGRAD ROOT
set -u
attngrad=$1 root=$2
page=$root/docs/attngrad.1
passed=0 failed=0

check() { # check DESCRIPTION COMMAND...
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $what"
    fi
}

# complete_words WORD...: the completion's answers to a line whose last word is under the cursor
complete_words() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _attngrad "$attngrad" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
    printf '%s\n' "${COMPREPLY[@]}"
}

offers() { # offers ANSWER WORD...
    local answer=$1
    shift
    complete_words "$@" | grep -qxF -e "$answer"
}

# The page writes a dash as \-.
page_text() {
    sed 's/\\-/-/g' "$page"
}

page_has() {
    page_text | grep -qE -e "(^|[^a-z-])$1([^a-z-]|\$)"
}

# page_of COMMAND: the parts of the page that describe its options: its entries in COMMANDS, the options of all
# commands, and the part that begins with "Of" and its name; for commands on arrays in files also their section
page_of() {
    page_text | awk -v command="$1" '
        /^\.SH/ {
            section = $0
            arrays = section ~ /FILES OF ARRAYS/ && command ~ /^(forward|grad|jvp|jvp2|hvp|view)$/
            part = section ~ /^\.SH OPTIONS/
        }
        section ~ /^\.SH COMMANDS/ && /^\.TP/ { getline; entry = $0 ~ "^\\.[A-Z]+ \"?" command "( |$)" }
        section ~ /^\.SH COMMANDS/ && entry { print }
        section ~ /^\.SH OPTIONS/ && /^Of$/ { getline; part = $2 == command }
        part || arrays { print }'
}

page_of_has() {
    page_of "$1" | grep -qE -e "(^|[^a-z-])$2([^a-z-]|\$)"
}

# shellcheck source=/dev/null
. "$root/completions/attngrad.bash"
commands=$("$attngrad" --help | awk '/^commands:/ { inside = 1; next } /^$/ { inside = 0 } inside && /^  [a-z]/ { print $1 }')
check "the help names commands" [ "$(echo "$commands" | wc -l)" -ge 7 ]
for command in $commands; do
    check "the completion offers $command" offers "$command" attngrad ""
    check "the man page has $command" page_has "$command"
    options=$("$attngrad" "$command" --help | grep -oE -- '--[a-z][a-z-]*' | sort -u)
    check "the help of $command names options" [ -n "$options" ]
    for option in $options; do
        check "the completion offers $command $option" offers "$option" attngrad "$command" --
        check "the man page has $option of $command" page_of_has "$command" "$option"
    done
done
check "a command is completed" offers forward attngrad forw
check "an option is completed" offers --causal attngrad grad --cau

work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
mkdir folder && touch q.npy x.safetensors other.txt
check "an array is completed" offers q.npy attngrad grad --q ""
check "a file of tensors is completed" offers x.safetensors attngrad grad --q x
check "an array of the second direction is completed" offers q.npy attngrad jvp2 --sq ""
check "a list of offsets is completed" offers q.npy attngrad jvp2 --q-offsets ""
check "a folder is completed" offers folder/ attngrad grad --bias f
touch zz.txt
check "no option is offered in the place of a file, whatever is last in the folder" sh -c '[ "$1" -eq 1 ]' - \
    "$(offers --causal attngrad grad --q ""; echo $?)"
check "nor if there is no array" [ -z "$(complete_words attngrad grad --q zz)" ]
check "no other file is" sh -c '[ "$1" -eq 1 ]' - "$(offers other.txt attngrad grad --q ""; echo $?)"
check "the folder of results is completed" offers folder attngrad grad --out f
check "a number is not completed" [ -z "$(complete_words attngrad grad --threads '')" ]
check "the text of train is completed" offers other.txt attngrad train oth
check "and the folder on the way to it" offers folder attngrad train fol
check "also after an option and its value" offers other.txt attngrad train --steps 5 ""
check "train's options still are" offers --steps attngrad train --st
check "the prompt of sample is not a file" [ -z "$(complete_words attngrad sample oth)" ]
# Bash splits --causal=x into three words, and file:name too.
check "--causal's values" offers bottom-right attngrad grad --causal = bot
check "--causal's values, after the sign" offers top-left attngrad grad --causal =
check "--backend's values" offers cuda attngrad check --backend cu
check "--align's values" offers top-left attngrad grad --align top
for value in top-left bottom-right; do
    check "the help of grad names $value" sh -c '"$1" grad --help | grep -qF "$2"' - "$attngrad" "$value"
    check "the man page has $value of grad" page_of_has grad "$value"
done
check "slopes of --alibi=F" offers q.npy attngrad grad --alibi = q
check "the value of --out=DIR" offers folder attngrad grad --out = f
"$attngrad" train --steps 1 --width 8 --heads 1 --context 4 --batch 1 --model m.safetensors >/dev/null 2>&1
check "names of tensors" offers embedding.moment1 attngrad grad --q m.safetensors : embed
check "all names of tensors" offers layer.0.wq attngrad grad --q m.safetensors :
check "no metadata among them" sh -c '[ "$1" -eq 1 ]' - "$(offers __metadata__ attngrad grad --q m.safetensors :; echo $?)"
check "none of a file that is not valid" [ -z "$(complete_words attngrad grad --q x.safetensors :)" ]

echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
