# The tests of `make test-gpu`: `ctest -C gpu -L gpu` runs them, a plain ctest does not. Labels: gpu and the part. The
# target gpu_tests builds the programs.
add_custom_target(gpu_tests DEPENDS attngrad)
set(ATTNGRAD_TEST_CONFIGURATION gpu)

# add_gpu_test(PART NAME COMMAND...): plans are for cuda unless they say otherwise; in Python the arrays decide. The
# tests of the maps fail if they ran nothing on the GPU; the programs of tests/cuda look at each plan.
function(add_gpu_test part name)
    set(environment ${CMAKE_COMMAND} -E env ATTNGRAD_BACKEND=cuda AG_TEST_ON_DEVICE=1)
    if(part STREQUAL python)
        set(environment)
    endif()
    add_attngrad_test(gpu_${name} ${environment} ${ARGN})
    set_tests_properties(${ATTNGRAD_TEST_PREFIX}gpu_${name} PROPERTIES LABELS "gpu;${part}" TIMEOUT 300)
endfunction()

# The tests of the maps on copies of their arrays in the GPU's memory. The long ones first; of random_problems a fifth.
foreach(name random_problems invariant error_rule low_precision feature_pairs_bf16 feature_pairs_f32 strides
        bad_values empty_rows extremes finite_differences given_d given_o identities jvp_jvp low_halves low_halves_calls
        merge offsets packed)
    set(count)
    if(name STREQUAL random_problems)
        set(count ${CMAKE_COMMAND} -E env AG_TEST_COUNT=200)
    endif()
    add_gpu_test(maps ${name} ${count} $<TARGET_FILE:test_${name}>)
    add_dependencies(gpu_tests test_${name})
endforeach()

# Every kernel; lists on the device; a first call inside a capture; the range of float32; the same bits over repeats, at
# length with values, and beside other work; small problems under memcheck; host time, for bench/gpu.py.
foreach(name gpu_bits gpu_capture gpu_float32_floor gpu_hopper gpu_host gpu_kernels gpu_lists gpu_long gpu_progress)
    string(REPLACE gpu_float32 float32 source ${name}) # which runs by emulation too
    add_executable(${name} EXCLUDE_FROM_ALL cuda/${source}.c)
    target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PRIVATE attngrad_check attngrad_static)
    attngrad_flags(${name})
    add_dependencies(gpu_tests ${name})
endforeach()
add_gpu_test(kernels kernels $<TARGET_FILE:gpu_kernels> 8)
add_gpu_test(kernels hopper $<TARGET_FILE:gpu_hopper> 8)
set_tests_properties(${ATTNGRAD_TEST_PREFIX}gpu_hopper PROPERTIES PROCESSORS 8 SKIP_RETURN_CODE 77)
add_gpu_test(kernels float32_floor $<TARGET_FILE:gpu_float32_floor>)
add_gpu_test(kernels fork $<TARGET_FILE:test_cuda_fork>) # which runs on the fake driver too
add_dependencies(gpu_tests test_cuda_fork)
set(gpu_memcheck ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_memcheck.sh)
add_gpu_test(kernels lists $<TARGET_FILE:gpu_lists> 20)
foreach(mode global relaxed)
    foreach(dtype bf16 f32)
        add_gpu_test(kernels capture_${mode}_${dtype} $<TARGET_FILE:gpu_capture> ${mode}
            "h2 q200 k300 d64 causal softcap=5 ${dtype}")
    endforeach()
endforeach()
foreach(dtype bf16 f16 f32 f64)
    add_gpu_test(bits bits_${dtype} $<TARGET_FILE:gpu_bits> --dtype ${dtype})
    add_gpu_test(bits long_${dtype} $<TARGET_FILE:gpu_long> --dtype ${dtype})
    set_tests_properties(${ATTNGRAD_TEST_PREFIX}gpu_long_${dtype} PROPERTIES PROCESSORS 8) # its threads
    add_gpu_test(memcheck memcheck_${dtype} sh ${gpu_memcheck} memcheck $<TARGET_FILE:gpu_bits>
        "h2 kv1 q70 k90 d40 causal ${dtype}" "h2 kv1 q1 k600 d64 ${dtype}" "b2 h1 q20 k30 d300 packed=30,40 ${dtype}"
        "b2 h4 kv2 q9 k600 d40 packed=12,700 causal ${dtype}"
        "b2 h2 q33 k70 d64 bias=1hqk table=5 mask sink softcap=4 dropout=0.2 ${dtype}")
endforeach()
# Each set of the table sm90, head sizes of each of its kernels, tiles that are cut; windows to the right of a mask.
foreach(dtype bf16 f16)
    set(problems)
    foreach(d 64 128)
        foreach(words "" softcap=5 "alibi table=9" bias=1hqk mask=11qk "bias=1hqk mask=11qk" dropout=0.3
                "dropout=0.3 bias=1hqk")
            list(APPEND problems "h2 kv1 q70 k136 d${d} causal ${words} ${dtype}")
        endforeach()
        list(APPEND problems "h2 q70 k136 d${d} ${dtype}" "b2 h1 q70 k90 d${d} packed=110,150 sink ${dtype}")
    endforeach()
    list(APPEND problems "h2 q70 k90 d256 causal ${dtype}" "h1 q70 k90 d200 dv136 window=30,9 ${dtype}")
    add_gpu_test(memcheck memcheck_hopper_${dtype} sh ${gpu_memcheck} memcheck $<TARGET_FILE:gpu_bits> ${problems})
endforeach()
add_gpu_test(memcheck racecheck sh ${gpu_memcheck} racecheck $<TARGET_FILE:gpu_bits>
    "h1 q70 k136 d64 mask=11qk window=20,9 bf16")
# Alone: other processes would take the device away from it by turns.
add_gpu_test(bits progress $<TARGET_FILE:gpu_progress>)
set_tests_properties(${ATTNGRAD_TEST_PREFIX}gpu_progress PROPERTIES RUN_SERIAL TRUE)

if(ATTNGRAD_COMMAND)
    add_gpu_test(command check_random $<TARGET_FILE:attngrad> check --random 200 --backend cuda)
    foreach(dtype bf16 f32 f64) # the table's last line comes after all others
        add_gpu_test(command bench_${dtype} sh -c "\"$0\" bench 'h2 q300 d64 ${dtype}' --backend cuda \
            | tee /dev/stderr | grep -A 20 'tensor cores in ${dtype}: [1-9]' | grep jvp_jvp" $<TARGET_FILE:attngrad>)
    endforeach()
    add_gpu_test(command info sh -c "\"$0\" info | grep 'plan in bfloat16.*cuda, sm[89]0'"
        $<TARGET_FILE:attngrad>)
endif()
if(TARGET attngrad_python)
    add_dependencies(gpu_tests attngrad_python)
    if(NOT Python_EXECUTABLE)
        set(Python_EXECUTABLE python3)
    endif()
    file(GLOB gpu_python RELATIVE ${PROJECT_SOURCE_DIR}/python/gpu_tests CONFIGURE_DEPENDS
        ${PROJECT_SOURCE_DIR}/python/gpu_tests/test_*.py)
    foreach(file ${gpu_python})
        get_filename_component(name ${file} NAME_WE)
        add_gpu_test(python ${name} ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/python/gpu_tests/run.py
            $<TARGET_FILE:attngrad_python> ${file})
        set_tests_properties(${ATTNGRAD_TEST_PREFIX}gpu_${name} PROPERTIES SKIP_RETURN_CODE 77) # all of the file
    endforeach()
endif()
unset(ATTNGRAD_TEST_CONFIGURATION)
