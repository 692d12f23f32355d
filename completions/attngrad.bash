# Completion of `attngrad` for bash: commands and options are those that the command's own help names.

# _attngrad_options COMMAND: its options, one a line
_attngrad_options() {
    "$1" "${@:2}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | LC_ALL=C sort -u
}

_attngrad_commands() {
    "$1" --help 2>/dev/null | awk '/^commands:/ { inside = 1; next } /^$/ { inside = 0 } inside && /^  [a-z]/ { print $1 }'
}

# Files of arrays, and the folders on the way to them.
_attngrad_files() {
    local file
    while IFS= read -r file; do
        case $file in
        *.npy | *.safetensors) COMPREPLY+=("$file") ;;
        *) [ -d "$file" ] && COMPREPLY+=("$file/") ;;
        esac
    done < <(compgen -f -- "$1")
}

# _attngrad_value OPTION WORD: what may follow an option that takes a value; fails for one that takes none
_attngrad_value() {
    case $1 in
    --threads | --window | --softcap | --scale | --dropout | --seed | --random | --rounds | --*-offset) ;;
    --heads | --layers | --width | --context | --batch | --steps | --rate | --save-every | --log-every) ;;
    --length | --count | --temperature) ;;
    --dtype) mapfile -t COMPREPLY < <(compgen -W 'f32 bf16 f16' -- "$2") ;;
    --plot)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$2")
        ;;
    --map) mapfile -t COMPREPLY < <(compgen -W 'forward vjp jvp vjp_jvp' -- "$2") ;;
    --out)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$2")
        ;;
    --model | --q | --k | --v | --do | --dlse | --t[a-z]* | --bias | --mask | --bias-table | --buckets | --sink | --*-lengths | --*-packed)
        compopt -o nospace -o filenames 2>/dev/null
        _attngrad_files "$2"
        ;;
    *) return 1 ;;
    esac
}

_attngrad() {
    local program=$1 word=$2 previous=$3 command=${COMP_WORDS[1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_attngrad_commands "$program") --help --version" -- "$word")
    elif ! _attngrad_value "$previous" "$word"; then
        mapfile -t COMPREPLY < <(compgen -W "$(_attngrad_options "$program" "$command")" -- "$word")
    fi
}

complete -F _attngrad attngrad
