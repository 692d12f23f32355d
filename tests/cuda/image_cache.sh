#!/bin/sh
# The cache of images, with a stand-in for nvcc that counts its runs: image_cache.sh ROOT NVCC
# A target of an image is compiled once for all folders, and again if the source, a file that it includes, a flag or the
# compiler changes; a compilation that fails or is ended leaves nothing, two at a time do not disturb each other, and the
# real nvcc makes an image of two targets.
set -eu
root=$1 real=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
export XDG_CACHE_HOME="$work/cache"

mkdir -p "$work/src/cuda/kernels" "$work/a" "$work/b"
printf '#include "cuda/one.h"\n#include <stdint.h>\n' >"$work/src/cuda/kernels/fold.cu"
printf '#include "cuda/two.h"\n#include "public.h"\n' >"$work/src/cuda/one.h"
mkdir "$work/include"
: >"$work/include/public.h"
printf '#include "cuda/one.h"\n' >"$work/src/cuda/two.h"
: >"$work/src/cuda/unused.h"
cat >"$work/nvcc" <<'END'
#!/bin/sh
here=$(dirname "$0")
[ "$1" != --version ] || { cat "$here/version" && exit; }
echo run >>"$here/runs"
while [ -e "$here/hold" ] && [ "$(wc -l <"$here/runs")" -lt "$(cat "$here/hold")" ]; do sleep 0.05; done
[ ! -e "$here/broken" ] || { echo "fold.cu(1): error: no" && exit 2; }
while [ "$1" != -o ]; do shift; done
echo image >"$2"
END
cat >"$work/fatbinary" <<'END'
#!/bin/sh
echo "$@" >image
END
cat >"$work/ptxas" <<'END'
#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo code >"$2"
END
chmod +x "$work/nvcc" "$work/fatbinary" "$work/ptxas"
echo "release 13.0" >"$work/version"
: >"$work/runs"

build() { # build FOLDER FLAG...
    folder=$1
    shift
    "$script" "$work/nvcc" "$work" src/cuda/kernels/fold.cu "$work/$folder/fold.fatbin" "$targets" "$@"
}
targets=sm_90 script=$root/scripts/cuda-image

hold() { # hold COUNT: until nvcc has been started so many times more
    echo $(($(wc -l <"$work/runs") + $1)) >"$work/hold"
}

runs() { # runs COUNT DESCRIPTION
    if [ "$(wc -l <"$work/runs")" -eq "$1" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $2: $(wc -l <"$work/runs") runs instead of $1"
    fi
}

build a -O3
runs 1 "the first build"
build a -O3
build b -O3
runs 1 "the same again, in another folder"
if ! cmp "$work/a/fold.fatbin" "$work/b/fold.fatbin" || [ ! -e "$work/b/fold.log" ]; then
    echo "FAIL: b differs"
    failed=$((failed + 1))
fi
echo >>"$work/src/cuda/unused.h"
build a -O3
runs 1 "a file that is not included changed"
echo '/* a comment */' >>"$work/src/cuda/two.h"
build a -O3
runs 1 "a comment changed"
build a -O2
runs 2 "another flag"
echo 'int two;' >>"$work/src/cuda/two.h"
build a -O3
runs 3 "a file that an included file includes changed"
echo 'int fold;' >>"$work/src/cuda/kernels/fold.cu"
build a -O3
runs 4 "the source changed"
echo 'int public_one;' >>"$work/include/public.h"
build a -O3
runs 5 "a public header changed"
echo "release 13.1" >"$work/version"
build a -O3
runs 6 "another compiler"
: >"$work/broken"
if build a -O1 2>"$work/errors"; then echo "FAIL: a broken compiler is no error" && failed=$((failed + 1)); fi
grep -q 'error: no' "$work/errors" || { echo "FAIL: its message is lost" && failed=$((failed + 1)); }
rm "$work/broken"
build a -O1
runs 8 "after a failure"
targets=sm_90,sm_100,compute_90
build a -O1
runs 9 "one more architecture, and the PTX that is there"
grep -q 'kind=elf,sm=90,.*kind=elf,sm=100,.*kind=ptx,sm=90,' "$work/a/fold.fatbin" || {
    echo "FAIL: the image is made of $(cat "$work/a/fold.fatbin")" && failed=$((failed + 1))
}
[ "$(grep -c seconds "$work/a/fold.log")" -eq 4 ] || { echo "FAIL: the report has not 4 parts" && failed=$((failed + 1)); }

# The flags of ptxas, which only the script knows.
sed "s/^ptxas_flags='/&-O2 /" "$script" >"$work/cuda-image"
chmod +x "$work/cuda-image"
targets=sm_90 script=$work/cuda-image
build a -O1
runs 10 "other flags of ptxas"
script=$root/scripts/cuda-image

# Two writers of one image: neither goes on before both compile.
hold 2
targets=sm_90a
build a -O0 &
first=$!
build a -O0 &
wait "$first" || { echo "FAIL: the first of two writers" && failed=$((failed + 1)); }
wait $! || { echo "FAIL: the second of two writers" && failed=$((failed + 1)); }
runs 12 "two writers at the same time"
grep -q 'kind=elf,sm=90a,' "$work/a/fold.fatbin" || { echo "FAIL: their image is broken" && failed=$((failed + 1)); }
[ "$(cat "$work/a/fold.sm_90a.cubin")" = code ] || { echo "FAIL: their cubin is broken" && failed=$((failed + 1)); }

# The end of a writer while it compiles; the shell acts on it when the compiler is done.
hold 2
"$root/scripts/cuda-image" "$work/nvcc" "$work" src/cuda/kernels/fold.cu "$work/b/ended.fatbin" sm_90 -O0 -g &
writer=$!
started=$(cat "$work/hold")
while [ "$(wc -l <"$work/runs")" -lt $((started - 1)) ]; do sleep 0.05; done
kill -TERM "$writer"
echo run >>"$work/runs"
if wait "$writer"; then echo "FAIL: an ended writer has succeeded" && failed=$((failed + 1)); fi
rm "$work/hold"
left=$(find "$work/cache" -name 'work.*' && find "$work/a" "$work/b" -name '*fatbin.*' -o -name 'ended*')
[ -z "$left" ] || { echo "FAIL: left behind: $left" && failed=$((failed + 1)); }

# The image is moved into place from beside it, where no other file system can be between.
mkdir "$work/bin"
printf '#!/bin/sh\necho "$@" >>"%s/moves"\nexec %s "$@"\n' "$work" "$(command -v mv)" >"$work/bin/mv"
chmod +x "$work/bin/mv"
(PATH="$work/bin:$PATH" && build a -O0)
grep "/a/fold" "$work/moves" | grep -v "^$work/a/" >"$work/far" || true
if [ "$(grep -c "/a/fold" "$work/moves")" -ne 3 ] || [ -s "$work/far" ]; then
    echo "FAIL: moved into place:" && cat "$work/moves" && failed=$((failed + 1))
fi

echo '#include "missing.h"' >>"$work/src/cuda/one.h"
if build a -O1 2>/dev/null; then echo "FAIL: a missing file is no error" && failed=$((failed + 1)); fi

"$root/scripts/cuda-image" "$real" "$root" src/cuda/kernels/common.cu "$work/common.fatbin" sm_80,compute_80 -std=c++17
[ "$(od -An -tx4 -N4 "$work/common.fatbin" | tr -d ' ')" = ba55ed50 ] || { echo "FAIL: no fatbin" && failed=$((failed + 1)); }
echo "$((passed + 1)) checks passed, $failed failed"
[ "$failed" -eq 0 ]
