# The tests of `make test-deep` that run the programs of `make test` as they are: under valgrind, on a small processor
# that qemu emulates, with much memory or for a long time. `ctest -C deep` runs them, a plain ctest does not.

# add_deep_test(PREFIX NAME COMMAND...)
function(add_deep_test prefix name)
    set(ATTNGRAD_TEST_CONFIGURATION deep)
    set(ATTNGRAD_TEST_PREFIX ${prefix}/)
    add_attngrad_test(${name} ${ARGN})
endfunction()

# run_deep(PREFIX ISA COUNT FIRST WRAPPER TEST...): programs of tests once more, by the command WRAPPER.
function(run_deep prefix isa count first wrapper)
    set(ATTNGRAD_TEST_ISA ${isa})
    set(ATTNGRAD_TEST_COUNT ${count})
    set(ATTNGRAD_TEST_FIRST ${first})
    list(TRANSFORM ARGN REPLACE "^kernels$" "kernels_f32;kernels_f64")
    list(TRANSFORM ARGN REPLACE "^feature_pairs$" "feature_pairs_bf16;feature_pairs_f32")
    foreach(name ${ARGN})
        add_deep_test(${prefix} ${name} ${wrapper} $<TARGET_FILE:test_${name}>)
    endforeach()
endfunction()

# An x86-64 with nothing above SSE3. (On aarch64 every processor runs the same kernels.) The other kind of processor has a
# preset of its own: qemu-aarch64, qemu-x86_64. valgrind has no AVX-512.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(valgrind_isa neon)
else()
    set(valgrind_isa avx2)
    run_deep(qemu-x86_64 scalar 50 400 "qemu-x86_64;-cpu;qemu64" ${foreign_tests})
endif()
run_deep(valgrind ${valgrind_isa} 1 0 "valgrind;--quiet;--error-exitcode=99;--leak-check=full"
    empty_rows kernels memory packed strides text)

# The sharded maps on another MPI, and on a slow network.
if(ATTNGRAD_HAS_MPI)
    add_deep_test(mpi mpich sh ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpi_mpich.sh ${PROJECT_SOURCE_DIR}
        $<TARGET_FILE:attngrad_mpi_static> $<TARGET_FILE:attngrad_check> $<TARGET_FILE:attngrad_static>)
    add_deep_test(mpi hidden sh ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpi_hidden.sh $<TARGET_FILE:attngrad>)
    set_tests_properties(mpi/hidden PROPERTIES RUN_SERIAL ON)
    set_tests_properties(mpi/mpich mpi/hidden PROPERTIES SKIP_RETURN_CODE 77)
endif()

# The maps on a long sequence, and the memory that they hold; the default training run, by itself because it looks
# at the time too.
add_deep_test(limits memory_limits_run $<TARGET_FILE:test_memory_limits> --run)
if(ATTNGRAD_HAS_IO)
    add_deep_test(limits train_recall sh ${CMAKE_CURRENT_SOURCE_DIR}/train/train_recall.sh $<TARGET_FILE:attngrad>)
    set_tests_properties(limits/train_recall PROPERTIES RUN_SERIAL ON)
endif()
