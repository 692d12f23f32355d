# The compiler's flags, the same for the library, the command and the tests. Floating point is strict:
# no fast-math, and a product and a sum are never contracted into an FMA.

function(attngrad_flags target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
        C_VISIBILITY_PRESET hidden)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wpedantic -Wshadow -Wconversion
        -ffp-contract=off -fno-math-errno
        $<$<BOOL:${ATTNGRAD_WERROR}>:-Werror>)
    if(ATTNGRAD_SANITIZE)
        target_compile_options(${target} PRIVATE
            -fsanitize=${ATTNGRAD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
        target_link_options(${target} PRIVATE -fsanitize=${ATTNGRAD_SANITIZE})
    endif()
    if(ATTNGRAD_FUZZ)
        target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
endfunction()
