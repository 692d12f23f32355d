# The kernels of src/cuda run by emulation (src/cuda/emulate.h): no GPU is needed, only a C++ compiler. One object per image of kernels; the launches are those of the CUDA backend.
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
    message(STATUS "no C++ compiler: the CUDA kernels are not tested by emulation")
    return()
endif()
enable_language(CXX)

# emulated_image(NAME SOURCE [FORMAT])
function(emulated_image name source)
    add_library(emulated_cuda_${name} OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated_kernels.cpp)
    target_compile_definitions(emulated_cuda_${name} PRIVATE AGI_IMAGE_${source}
        "AGI_SOURCE=\"cuda/kernels/${source}.cu\"" ${ARGN})
    set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated_kernels.cpp APPEND PROPERTY OBJECT_DEPENDS
        ${PROJECT_SOURCE_DIR}/src/cuda/kernels/${source}.cu)
    emulated_flags(emulated_cuda_${name})
    target_sources(emulated_kernels INTERFACE $<TARGET_OBJECTS:emulated_cuda_${name}>)
endfunction()

# Floating point is strict; loops are unrolled for the GPU's compiler only.
function(emulated_flags target)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
        ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
    set_target_properties(${target} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON)
    target_compile_options(${target} PRIVATE -O1 -Wall -Wno-unknown-pragmas -Wno-psabi -ffp-contract=off
        $<$<BOOL:${ATTNGRAD_WERROR}>:-Werror>)
endfunction()

add_library(emulated_kernels INTERFACE)
foreach(format bf16 f16 f32 f64)
    foreach(source prepare rowwise backward gradients)
        emulated_image(${source}_${format} ${source} AGI_FORMAT=${format})
    endforeach()
endforeach()
emulated_image(common common)
foreach(format bf16 f16)
    foreach(source hopper_forward hopper_jvp hopper_backward hopper_ring hopper_second hopper_second_ring
            hopper_wide hopper_dbias)
        emulated_image(${source}_${format} ${source} AGI_FORMAT=${format})
    endforeach()
endforeach()
emulated_image(sets sets)
emulated_image(hopper_forward_f32 hopper_forward_f32)
add_library(emulated_cuda_launch OBJECT cuda/emulated_launch.cpp cuda/emulated_products.cpp)
emulated_flags(emulated_cuda_launch)
set_source_files_properties(cuda/emulated_products.cpp PROPERTIES COMPILE_OPTIONS -O3)
target_sources(emulated_kernels INTERFACE $<TARGET_OBJECTS:emulated_cuda_launch>)

# The host's part, and the list of backends with the emulated one in the place of the cpu backend.
add_library(emulated_cuda_host OBJECT cuda/emulated_backend.c ${PROJECT_SOURCE_DIR}/src/cuda/launches.c
    ${PROJECT_SOURCE_DIR}/src/cuda/hopper_launches.c
    ${PROJECT_SOURCE_DIR}/src/cuda/schedule.c ${PROJECT_SOURCE_DIR}/src/attngrad.c)
target_include_directories(emulated_cuda_host PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
    ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
target_compile_definitions(emulated_cuda_host PRIVATE agi_cpu_backend=agi_emulated_backend)
attngrad_flags(emulated_cuda_host)
add_library(emulated_cuda INTERFACE)
target_sources(emulated_cuda INTERFACE $<TARGET_OBJECTS:emulated_cuda_host>)
target_link_libraries(emulated_cuda INTERFACE emulated_kernels)

# add_cuda_program(NAME OBJECTS): a program of these objects and the emulated kernels.
function(add_cuda_program name)
    add_executable(${name} ${ARGN})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
        ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
    target_link_libraries(${name} PRIVATE emulated_cuda attngrad_check attngrad_static)
    attngrad_flags(${name})
endfunction()

# add_sampled_test(PROGRAM STEP): in `make test` one of STEP of its problems, in `make test-all` all of them. A prime, so
# that a sample has every kind of number.
function(add_sampled_test program step)
    set(sample sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/sample.sh ${PROJECT_SOURCE_DIR})
    add_attngrad_test(${program} ${sample} ${step} $<TARGET_FILE:${program}>)
    add_long_test(${program} ${sample} 1 $<TARGET_FILE:${program}>)
endfunction()

add_cuda_program(cuda_emulated cuda/emulated_problems.c)
add_sampled_test(cuda_emulated 61)

add_cuda_program(cuda_faults cuda/emulated_faults.c)
add_attngrad_test(cuda_faults $<TARGET_FILE:cuda_faults>)

# Faults in the kernels themselves: a copy of them, with the faults behind switches. Nothing of it may meet the objects
# above, whose functions have the same names.
set(planted ${CMAKE_CURRENT_BINARY_DIR}/cuda/planted)
file(GLOB kernel_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/kernels/*)
add_custom_command(OUTPUT ${planted}/planted_faults.c
    COMMAND ${CMAKE_COMMAND} -D FROM=${PROJECT_SOURCE_DIR}/src/cuda/kernels -D TO=${planted}
        -P ${CMAKE_CURRENT_SOURCE_DIR}/cuda/plant.cmake
    DEPENDS ${kernel_files} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/plant.cmake)
add_custom_target(planted_kernels DEPENDS ${planted}/planted_faults.c)
add_executable(cuda_logic_faults cuda/logic_faults.c ${planted}/planted_faults.c $<TARGET_OBJECTS:emulated_cuda_host>
    $<TARGET_OBJECTS:emulated_cuda_launch>)
foreach(source prepare rowwise backward common)
    add_library(planted_${source} OBJECT cuda/emulated_kernels.cpp)
    target_include_directories(planted_${source} BEFORE PRIVATE ${planted})
    target_compile_definitions(planted_${source} PRIVATE AGI_IMAGE_${source} AGI_FORMAT=f32
        "AGI_SOURCE=\"cuda/kernels/${source}.cu\"")
    emulated_flags(planted_${source})
    target_compile_options(planted_${source} PRIVATE -include ${CMAKE_CURRENT_SOURCE_DIR}/cuda/few_kernels.h)
    add_dependencies(planted_${source} planted_kernels)
    target_sources(cuda_logic_faults PRIVATE $<TARGET_OBJECTS:planted_${source}>)
endforeach()
add_dependencies(cuda_logic_faults planted_kernels)
set_target_properties(cuda_logic_faults PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(cuda_logic_faults PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
    ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
target_link_libraries(cuda_logic_faults PRIVATE attngrad_check attngrad_static)
attngrad_flags(cuda_logic_faults)
add_attngrad_test(cuda_logic_faults $<TARGET_FILE:cuda_logic_faults>)

add_cuda_program(cuda_float32_floor cuda/float32_floor.c)
add_attngrad_test(cuda_float32_floor $<TARGET_FILE:cuda_float32_floor>)

# The table sm90: its kernels by the error rule, and the faults that must be found.
add_cuda_program(cuda_hopper_emulated cuda/hopper_problems.c)
add_sampled_test(cuda_hopper_emulated 3)
add_cuda_program(cuda_hopper_random cuda/hopper_random.c)
add_sampled_test(cuda_hopper_random 13)
add_attngrad_test(cuda_hopper_invariant ${CMAKE_COMMAND} -E env EMULATED_HOPPER=1 AG_TEST_COUNT=20
    $<TARGET_FILE:cuda_invariant>)
add_cuda_program(cuda_hopper_faults cuda/hopper_faults.c)
add_attngrad_test(cuda_hopper_faults $<TARGET_FILE:cuda_hopper_faults>)

# A driver whose kernels run by emulation: whatever runs on a GPU runs on it, slowly.
fake_driver(computes FAKE_VERSION=${cuda_toolkit_major}000 FAKE_COMPUTES)
target_include_directories(fake_driver_computes PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
target_link_libraries(fake_driver_computes PRIVATE emulated_kernels attngrad_static) # of which it takes the list of kernels
set_target_properties(fake_driver_computes PROPERTIES LINKER_LANGUAGE CXX)

# Tests of the maps on the emulated kernels, short in `make test`, whole in `make test-all`.
foreach(name bad_values empty_rows extremes given_o invariant jvp_jvp low_halves merge packed strides)
    add_cuda_program(cuda_${name} $<TARGET_OBJECTS:test_${name}>)
    add_attngrad_test(cuda_${name} ${CMAKE_COMMAND} -E env AG_TEST_COUNT=20 $<TARGET_FILE:cuda_${name}>)
    add_long_test(cuda_${name} $<TARGET_FILE:cuda_${name}>)
endforeach()

# The table sm90 where rows see nothing and sinks are huge; the range of its float32, and its scores.
foreach(name bad_values empty_rows extremes float32_floor)
    add_attngrad_test(cuda_hopper_${name} ${CMAKE_COMMAND} -E env EMULATED_HOPPER=1 AG_TEST_COUNT=20
        $<TARGET_FILE:cuda_${name}>)
    add_long_test(cuda_hopper_${name} ${CMAKE_COMMAND} -E env EMULATED_HOPPER=1 $<TARGET_FILE:cuda_${name}>)
endforeach()

# Whole calls on that driver: the library as it is, kernels that compute, the check engine's copies.
foreach(name empty_rows merge packed)
    add_attngrad_test(cuda_driver_${name} ${CMAKE_COMMAND} -E env AG_TEST_COUNT=20 ATTNGRAD_BACKEND=cuda
        $<TARGET_FILE:test_${name}>)
    with_driver(cuda_driver_${name} computes)
endforeach()
# Programs of `make test-gpu`, some of which are tests on that driver too: a machine with a GPU shall not be the first to
# compile them.
set_target_properties(gpu_bits gpu_capture gpu_hopper gpu_host gpu_kernels gpu_lists gpu_long gpu_progress PROPERTIES
    EXCLUDE_FROM_ALL OFF)
foreach(table sm80 sm90)
    add_attngrad_test(cuda_driver_lists_${table} ${CMAKE_COMMAND} -E env ATTNGRAD_BACKEND=cuda ATTNGRAD_ISA=${table}
        FAKE_PROCESSORS=64 $<TARGET_FILE:gpu_lists> 1)
    with_driver(cuda_driver_lists_${table} computes)
endforeach()
add_attngrad_test(cuda_driver_capture ${CMAKE_COMMAND} -E env ATTNGRAD_ISA=sm90 FAKE_PROCESSORS=64
    $<TARGET_FILE:gpu_capture> global "h2 q70 k90 d64 causal bf16")
with_driver(cuda_driver_capture computes)
if(ATTNGRAD_COMMAND)
    add_attngrad_test(cuda_driver_command sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/computes.sh $<TARGET_FILE:attngrad>)
    with_driver(cuda_driver_command computes)
endif()
if(ATTNGRAD_HAS_IO)
    add_attngrad_test(cuda_driver_files sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/computes_files.sh $<TARGET_FILE:attngrad>)
    with_driver(cuda_driver_files computes)
endif()
if(TARGET attngrad_python)
    add_attngrad_test(cuda_driver_python sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/python.sh ${PROJECT_SOURCE_DIR}
        $<TARGET_FILE:attngrad_python> test_arrays.py)
    with_driver(cuda_driver_python computes)
endif()
