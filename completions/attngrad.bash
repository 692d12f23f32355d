# Completion of `attngrad` for bash: commands and options are those that the command's own help names.

# _attngrad_options COMMAND: its options, one per line
_attngrad_options() {
    "$1" "${@:2}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | LC_ALL=C sort -u
}

_attngrad_commands() {
    "$1" --help 2>/dev/null | awk '/^commands:/ { inside = 1; next } /^$/ { inside = 0 } inside && /^  [a-z]/ { print $1 }'
}

# Files of arrays, and the folders on the way to them.
_attngrad_files() {
    local file
    compopt -o nospace -o filenames 2>/dev/null
    while IFS= read -r file; do
        case $file in
        *.npy | *.safetensors) COMPREPLY+=("$file") ;;
        *) [ ! -d "$file" ] || COMPREPLY+=("$file/") ;;
        esac
    done < <(compgen -f -- "$1")
}

# _attngrad_any KIND WORD: files (f) or folders (d)
_attngrad_any() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "-$1" -- "$2")
}

# The tensors of a .safetensors file: the keys of its header, whose length its first eight bytes hold.
_attngrad_tensors() {
    local size
    [ -r "$1" ] || return 0
    size=$(od -An -tu8 -N8 "$1" 2>/dev/null | tr -d ' ')
    [ -n "$size" ] && [ "${#size}" -lt 8 ] || return 0
    head -c "$((size + 8))" "$1" | tail -c +9 | tr -d '\000' | grep -oE '"[^"\\]*": *\{[^{}]*"dtype"' |
        sed 's/^"\([^"]*\)".*/\1/' | grep -vxF __metadata__
}

# _attngrad_value OPTION WORD: what may follow an option that takes a value; fails for one that takes none
_attngrad_value() {
    case $1 in
    --threads | --window | --softcap | --scale | --dropout | --seed | --random | --rounds | --device | --*-offset) ;;
    --heads | --layers | --width | --context | --batch | --steps | --rate | --save-every | --log-every) ;;
    --length | --count | --temperature | --sequences | --rows | --keys | --title) ;;
    --maps) mapfile -t COMPREPLY < <(compgen -W 'forward vjp jvp vjp_jvp' -- "$2") ;;
    --dtype) mapfile -t COMPREPLY < <(compgen -W 'f32 bf16 f16' -- "$2") ;;
    --align) mapfile -t COMPREPLY < <(compgen -W 'bottom-right top-left' -- "$2") ;;
    --plot) _attngrad_any f "$2" ;;
    --backend) mapfile -t COMPREPLY < <(compgen -W 'cpu reference cuda' -- "$2") ;;
    --map) mapfile -t COMPREPLY < <(compgen -W 'forward vjp jvp vjp_jvp jvp_jvp' -- "$2") ;;
    --out) _attngrad_any d "$2" ;;
    --model | --q | --k | --v | --do | --dlse | --[st][a-z]* | --bias | --mask | --bias-table | --buckets | --*-lengths | --*-packed | --*-offsets)
        _attngrad_files "$2"
        ;;
    *) return 1 ;;
    esac
}

# _attngrad_optional OPTION WORD: the same after '=', also for options whose value is optional
_attngrad_optional() {
    case $1 in
    --causal) _attngrad_value --align "$2" ;;
    --alibi) _attngrad_files "$2" ;;
    *) _attngrad_value "$1" "$2" ;;
    esac
}

# Bash splits --option=value and file.safetensors:tensor at '=' and ':', and the sign is a word of its own. Fails if
# the word under the cursor is no such part.
_attngrad_part() {
    local at=$COMP_CWORD word=${COMP_WORDS[COMP_CWORD]} sign
    case $word in
    = | :) sign=$word word='' ;;
    *) at=$((at - 1)) sign=${COMP_WORDS[COMP_CWORD - 1]} ;;
    esac
    case $sign in
    =) _attngrad_optional "${COMP_WORDS[at - 1]}" "$word" ;;
    :) mapfile -t COMPREPLY < <(compgen -W "$(_attngrad_tensors "${COMP_WORDS[at - 1]}")" -- "$word") ;;
    *) return 1 ;;
    esac
    return 0
}

_attngrad() {
    local program=$1 word=$2 previous=$3 command=${COMP_WORDS[1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_attngrad_commands "$program") --help --version" -- "$word")
    elif _attngrad_part || _attngrad_value "$previous" "$word"; then
        :
    elif [ "$command" = train ] && [ "${word#-}" = "$word" ]; then
        _attngrad_any f "$word"
    else
        mapfile -t COMPREPLY < <(compgen -W "$(_attngrad_options "$program" "$command")" -- "$word")
    fi
}

complete -F _attngrad attngrad
