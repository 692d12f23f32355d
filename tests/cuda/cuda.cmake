# The tests of the CUDA backend that need no GPU: on a fake driver, a libcuda.so.1 that these tests build, in several kinds;
# the declarations of the driver; the compiler's report on the images.
set(fakes ${CMAKE_CURRENT_BINARY_DIR}/cuda)

# fake_driver(KIND DEFINITION...): KIND/libcuda.so.1.
function(fake_driver kind)
    add_library(fake_driver_${kind} SHARED cuda/fake_driver.c)
    set_target_properties(fake_driver_${kind} PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
        LIBRARY_OUTPUT_DIRECTORY ${fakes}/${kind})
    target_include_directories(fake_driver_${kind} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(fake_driver_${kind} PRIVATE ${ARGN})
    target_link_libraries(fake_driver_${kind} PRIVATE Threads::Threads)
    attngrad_flags(fake_driver_${kind})
endfunction()
fake_driver(works FAKE_VERSION=${cuda_toolkit_major}000)
fake_driver(old FAKE_VERSION=11080 FAKE_INCOMPLETE)
fake_driver(incomplete FAKE_VERSION=${cuda_toolkit_major}000 FAKE_INCOMPLETE)
fake_driver(older_than_images FAKE_VERSION=12000)
fake_driver(no_devices FAKE_VERSION=${cuda_toolkit_major}000 FAKE_NO_DEVICES)
file(WRITE ${fakes}/none/libcuda.so.1 "")

# with_driver(TEST KIND): the test finds this driver.
function(with_driver test kind)
    set_property(TEST ${ATTNGRAD_TEST_PREFIX}${test} APPEND PROPERTY ENVIRONMENT LD_LIBRARY_PATH=${fakes}/${kind})
endfunction()

foreach(name cuda_driver cuda_fork cuda_lists cuda_plan cuda_schedule cuda_stage)
    add_test_program(${name} cuda/${name}.c)
    target_include_directories(test_${name} PRIVATE cuda)
    add_dependencies(test_${name} fake_driver_works)
    with_driver(${name} works)
endforeach()

target_compile_definitions(test_cuda_plan PRIVATE AGI_CUDA_HAS_HOPPER=$<BOOL:${cuda_hopper}>
    AGI_CUDA_LOWEST=${cuda_lowest})

# cuda_absent(KIND REASON): plans are refused for this reason.
add_executable(test_cuda_absent cuda/cuda_absent.c)
set_target_properties(test_cuda_absent PROPERTIES OUTPUT_NAME cuda_absent)
target_include_directories(test_cuda_absent PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_cuda_absent PRIVATE attngrad_static)
attngrad_flags(test_cuda_absent)
add_dependencies(test_cuda_absent fake_driver_old fake_driver_incomplete fake_driver_older_than_images
    fake_driver_no_devices)
function(cuda_absent kind reason)
    add_attngrad_test(cuda_absent_${kind} ${ATTNGRAD_TEST_WRAPPER} $<TARGET_FILE:test_cuda_absent> ${reason})
    with_driver(cuda_absent_${kind} ${kind})
endfunction()
cuda_absent(none "cuda: no CUDA driver: ")
cuda_absent(no_devices "cuda: no CUDA device: CUDA_ERROR_NO_DEVICE")
cuda_absent(incomplete "cuda: the CUDA driver has no cuKernelSetAttribute")
# The numbers of NVIDIA's drivers.
set(needed_12 "12, driver 525")
set(needed_13 "13, driver 580")
set(needed "one of CUDA ${needed_${cuda_toolkit_major}} or newer")
cuda_absent(old "cuda: the driver is too old: it is of CUDA 11.8, and the kernels of this library need ${needed}")
if(cuda_toolkit_major GREATER 12)
    cuda_absent(older_than_images
        "cuda: the driver is too old: it is of CUDA 12.0, and the kernels of this library need ${needed}")
endif()

add_attngrad_test(cuda_images sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/images.sh ${PROJECT_BINARY_DIR}/src/cuda
    ${CMAKE_CURRENT_SOURCE_DIR}/cuda/spills.txt ${CMAKE_CURRENT_SOURCE_DIR}/cuda/consumers.txt ${cuda_images})
if(ATTNGRAD_NVCC)
    add_attngrad_test(cuda_image_cache sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/image_cache.sh ${PROJECT_SOURCE_DIR} ${ATTNGRAD_NVCC})
    add_long_test(cuda_architectures sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/architectures.sh ${PROJECT_SOURCE_DIR}
        ${PROJECT_BINARY_DIR}/cuda_architectures ${CMAKE_COMMAND} ${CMAKE_CTEST_COMMAND})
    get_filename_component(cuda_bin ${ATTNGRAD_NVCC} DIRECTORY)
endif()
if(ATTNGRAD_COMMAND)
    add_attngrad_test(cuda_command sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/cuda_command.sh $<TARGET_FILE:attngrad>)
    with_driver(cuda_command works)
endif()
add_attngrad_test(cuda_no_library sh ${CMAKE_CURRENT_SOURCE_DIR}/cuda/no_library.sh $<TARGET_FILE:attngrad_shared>)

find_path(CUDA_HEADER cuda.h HINTS ${cuda_bin}/../include /usr/local/cuda/include)
if(CUDA_HEADER)
    add_executable(cuda_declarations ${PROJECT_SOURCE_DIR}/src/cuda/driver_check.c)
    target_include_directories(cuda_declarations PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_include_directories(cuda_declarations SYSTEM PRIVATE ${CUDA_HEADER})
    attngrad_flags(cuda_declarations)
    add_attngrad_test(cuda_declarations $<TARGET_FILE:cuda_declarations>)
else()
    message(STATUS "no cuda.h: the declarations of the driver are not compared with it")
endif()
