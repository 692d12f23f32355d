# The tests on an emulated AMX unit (amx_emulated.h), so that the AMX code runs on any x86-64 with AVX-512. An emulated
# program has the objects of the test program and of the library; the AMX sources, and the file that detects the
# processor's features, are compiled once more for it.

# amx_objects(NAME EMULATED SOURCES...): an object library, compiled like the library's AMX sources. If EMULATED, the
# flags for AMX, avx512_bf16 and avx512_vbmi are left out: the compiler then refuses an intrinsic that is not emulated.
function(amx_objects name emulated)
    get_target_property(options cpu_amx COMPILE_OPTIONS)
    get_target_property(definitions cpu_amx COMPILE_DEFINITIONS)
    add_library(${name} OBJECT ${ARGN})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
        ${CMAKE_CURRENT_SOURCE_DIR})
    if(emulated)
        list(FILTER options EXCLUDE REGEX "amx|bf16|vbmi")
        list(APPEND options "SHELL:-include \"${CMAKE_CURRENT_LIST_DIR}/amx_emulated.h\"")
        list(APPEND definitions AGI_EMULATED_AMX=1 AMX_INSTRUCTIONS=amx_emulated)
    else()
        list(APPEND definitions AMX_INSTRUCTIONS=amx_processor)
    endif()
    target_compile_definitions(${name} PRIVATE ${definitions})
    target_compile_options(${name} PRIVATE ${options})
    attngrad_flags(${name})
endfunction()

# Which unit a program has, and its instructions as functions.
add_library(amx_here_processor OBJECT amx/amx_here.c)
add_library(amx_here_emulated OBJECT amx/amx_here.c ${PROJECT_SOURCE_DIR}/src/core/cpu_info.c)
target_compile_definitions(amx_here_emulated PRIVATE AGI_EMULATED_AMX=1)
foreach(library amx_here_processor amx_here_emulated)
    target_include_directories(${library} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
        ${CMAKE_CURRENT_SOURCE_DIR})
    attngrad_flags(${library})
endforeach()

get_target_property(amx_sources cpu_amx SOURCES)
get_target_property(amx_folder cpu_amx SOURCE_DIR)
amx_objects(amx_processor OFF amx/amx_instructions.c)
amx_objects(amx_emulated ON amx/amx_instructions.c)
foreach(source ${amx_sources})
    get_filename_component(source ${source} ABSOLUTE BASE_DIR ${amx_folder})
    target_sources(amx_emulated PRIVATE ${source})
endforeach()

# The tests that use AMX. Of random_problems, only few problems do.
set(amx_tests)
foreach(name accuracy bad_values empty_rows error_rule extremes feature_pairs_bf16 given_o invariant isa kernels_f32
        low_halves low_precision masking memory_limits nn_formula nn_invariant nn_low nn_rules nn_second nn_train packed
        random_problems strides threads units_gemm wide_outputs)
    if(TARGET test_${name})
        target_link_libraries(test_${name} PRIVATE amx_here_processor amx_processor)
        list(APPEND amx_tests ${name})
    endif()
endforeach()

# Neither valgrind nor qemu has AVX-512.
if(ATTNGRAD_TEST_WRAPPER)
    return()
endif()

# add_emulated_program(NAME)
function(add_emulated_program name)
    add_executable(emulated_${name} $<TARGET_OBJECTS:test_${name}>)
    set_target_properties(emulated_${name} PROPERTIES LINKER_LANGUAGE C)
    target_link_libraries(emulated_${name} PRIVATE amx_here_emulated amx_emulated attngrad_check attngrad_static)
    attngrad_flags(emulated_${name})
endfunction()

# AG_TEST_COUNT is an upper limit of each test's count. On a processor with AMX, which runs these tests on its own unit
# too, 20 is enough for most on the emulated one, and so it is under sanitizers; packed and threads have 500, below which
# they leave out their large problems. low_precision, which has many large problems, always has 500. Else, without AMX,
# the others run in full.
set(amx_short_run)
if(ATTNGRAD_SANITIZE)
    set(amx_short_run AG_TEST_COUNT=20)
endif()
if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo amx_lines REGEX "amx_bf16" LIMIT_COUNT 1)
    if(amx_lines)
        set(amx_short_run AG_TEST_COUNT=20)
        list(REMOVE_ITEM amx_tests random_problems)
    endif()
endif()
list(REMOVE_ITEM amx_tests isa) # it is about what the library itself refuses

foreach(name ${amx_tests})
    set(count ${amx_short_run})
    if(name STREQUAL low_precision OR (amx_short_run AND name MATCHES "^(packed|threads)$"))
        set(count AG_TEST_COUNT=500)
    endif()
    add_emulated_program(${name})
    set(test ${ATTNGRAD_TEST_PREFIX}emulated_${name})
    add_attngrad_test(emulated_${name} ${CMAKE_COMMAND} -E env ATTNGRAD_ISA=amx ${count}
        $<TARGET_FILE:emulated_${name}>)
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77)
    if(NOT name STREQUAL memory_limits) # that one makes plans only
        set_tests_properties(${test} PROPERTIES FAIL_REGULAR_EXPRESSION "amx: never used")
    endif()
endforeach()

# Compares both units: by instructions, and in whole maps.
if(NOT ATTNGRAD_TEST_ONLY)
    add_test_program(amx_unit amx/amx_unit.c)
    target_link_libraries(test_amx_unit PRIVATE amx_here_processor amx_processor amx_emulated)
    add_executable(test_amx_maps amx/amx_maps.c)
    set_target_properties(test_amx_maps PROPERTIES OUTPUT_NAME amx_maps)
    target_include_directories(test_amx_maps PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(test_amx_maps PRIVATE amx_here_processor amx_processor attngrad_check attngrad_static)
    attngrad_flags(test_amx_maps)
    add_emulated_program(amx_maps)
    add_attngrad_test(amx_maps sh ${CMAKE_CURRENT_LIST_DIR}/amx_maps.sh $<TARGET_FILE:test_amx_maps>
        $<TARGET_FILE:emulated_amx_maps>)
    foreach(name amx_unit amx_maps)
        set_tests_properties(${ATTNGRAD_TEST_PREFIX}${name} PROPERTIES SKIP_RETURN_CODE 77)
    endforeach()
endif()
