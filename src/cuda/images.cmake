# Images of kernels: compiled by scripts/cuda-image, which keeps them in the user's cache, so that every build folder
# takes them from there; embedded by an assembler file that this writes.
enable_language(ASM)

set(ATTNGRAD_CUDA_IMAGES "" CACHE PATH "Folder with images that are built already; empty = compile them")

# Machine code for each architecture, and PTX of the lowest for all that come later: sm_80,sm_90,compute_80.
function(cuda_targets variable)
    set(archs ${ATTNGRAD_CUDA_ARCHS})
    if("${archs}" STREQUAL "native")
        cuda_native_archs(archs)
        if(NOT archs)
            message(FATAL_ERROR
                "ATTNGRAD_CUDA_ARCHS is native, but nvidia-smi finds no GPU of compute capability 8.0 or higher here")
        endif()
    elseif("${archs}" STREQUAL "all")
        cuda_known_archs(archs 80 90 100 120) # code for one of them runs on all GPUs of the same major number
        if(NOT archs)
            message(FATAL_ERROR "${ATTNGRAD_NVCC} can compile for none of sm_80, sm_90, sm_100 and sm_120")
        endif()
    endif()
    list(SORT archs COMPARE NATURAL)
    set(targets)
    foreach(arch ${archs})
        if(NOT arch MATCHES "^[1-9][0-9]+a?$")
            message(FATAL_ERROR "ATTNGRAD_CUDA_ARCHS has '${arch}': must be like 80, or all or native alone")
        endif()
        list(APPEND targets sm_${arch})
    endforeach()
    list(GET archs 0 lowest)
    string(REPLACE "a" "" lowest ${lowest}) # PTX with instructions of one architecture runs on no other
    list(APPEND targets compute_${lowest})
    list(JOIN targets "," targets)
    message(STATUS "CUDA backend: nvcc ${cuda_toolkit_version} compiles for ${targets}")
    set(${variable} ${targets} PARENT_SCOPE)
endfunction()

# Images and the C part agree only if both are of the same sources: a build leaves the hash of them beside its images.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cuh)
list(APPEND kernel_sources ${CMAKE_CURRENT_SOURCE_DIR}/params.h ${CMAKE_CURRENT_SOURCE_DIR}/hopper_params.h
    ${CMAKE_CURRENT_SOURCE_DIR}/hopper_sets.h
    ${PROJECT_SOURCE_DIR}/include/attngrad.h)
set(hash_sources sh ${PROJECT_SOURCE_DIR}/scripts/cuda-sources ${kernel_sources})

if(ATTNGRAD_CUDA_IMAGES)
    execute_process(COMMAND ${hash_sources} OUTPUT_VARIABLE hash)
    file(READ ${ATTNGRAD_CUDA_IMAGES}/sources images_hash)
    if(NOT hash STREQUAL images_hash)
        message(FATAL_ERROR "ATTNGRAD_CUDA_IMAGES: the images in ${ATTNGRAD_CUDA_IMAGES} are of other sources than these")
    endif()
    file(READ ${ATTNGRAD_CUDA_IMAGES}/toolkit cuda_toolkit_version)
    string(STRIP "${cuda_toolkit_version}" cuda_toolkit_version)
    file(READ ${ATTNGRAD_CUDA_IMAGES}/targets cuda_targets)
    string(STRIP "${cuda_targets}" cuda_targets)
else()
    find_program(ATTNGRAD_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(NOT ATTNGRAD_NVCC)
        message(FATAL_ERROR "ATTNGRAD_CUDA is ON, but nvcc is missing: install a CUDA toolkit, or set ATTNGRAD_CUDA_IMAGES")
    endif()
    execute_process(COMMAND ${ATTNGRAD_NVCC} --version OUTPUT_VARIABLE output)
    string(REGEX REPLACE ".*release ([0-9]+\\.[0-9]+).*" "\\1" cuda_toolkit_version "${output}")
    cuda_targets(cuda_targets)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/toolkit "${cuda_toolkit_version}\n")
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/targets "${cuda_targets}\n")
endif()

# The kernels for Hopper need its own instructions, those of sm_90a, and serve devices of compute capability 9.0 alone.
set(cuda_hopper OFF)
if("${cuda_targets}" MATCHES "sm_90")
    set(cuda_hopper ON)
endif()
string(REGEX REPLACE "\\..*" "" cuda_toolkit_major "${cuda_toolkit_version}")
string(REGEX REPLACE ".*,compute_" "" cuda_lowest "${cuda_targets}")
string(REPLACE "," ", " cuda_targets_text "${cuda_targets}")

if(NOT ATTNGRAD_CUDA_IMAGES)
    add_custom_command(OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/sources
        COMMAND ${hash_sources} > ${CMAKE_CURRENT_BINARY_DIR}/sources
        DEPENDS ${kernel_sources} ${PROJECT_SOURCE_DIR}/scripts/cuda-sources VERBATIM)
endif()

# cuda_image(NAME SOURCE FAMILY [TARGETS ...] [DEFINITIONS ...]): NAME.fatbin, NAME.log with the compiler's report, and for
# the tests NAME.TARGET.cubin if TARGET is for one architecture alone, in the binary folder, of kernels/FAMILY.cu. TARGETS:
# others than those of all images.
function(cuda_image name)
    cmake_parse_arguments(arg "" "SOURCE;TARGETS" "DEFINITIONS" ${ARGN})
    if(NOT arg_TARGETS)
        set(arg_TARGETS ${cuda_targets})
    endif()
    list(TRANSFORM arg_DEFINITIONS PREPEND -D)
    set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
    set(files ${name}.fatbin ${name}.log)
    foreach(target ${arg_TARGETS})
        if(target MATCHES "^sm_.*a$")
            list(APPEND files ${name}.${target}.cubin)
        endif()
    endforeach()
    if(ATTNGRAD_CUDA_IMAGES)
        foreach(file ${files})
            if(NOT file MATCHES "cubin$" OR EXISTS ${ATTNGRAD_CUDA_IMAGES}/${file}) # which only tests read
                configure_file(${ATTNGRAD_CUDA_IMAGES}/${file} ${CMAKE_CURRENT_BINARY_DIR}/${file} COPYONLY)
            endif()
        endforeach()
    else()
        file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cuh)
        list(TRANSFORM files PREPEND ${CMAKE_CURRENT_BINARY_DIR}/)
        add_custom_command(OUTPUT ${files}
            COMMAND ${PROJECT_SOURCE_DIR}/scripts/cuda-image ${ATTNGRAD_NVCC} ${PROJECT_SOURCE_DIR}
                src/cuda/kernels/${arg_SOURCE}.cu ${image} ${arg_TARGETS} -std=c++17 -O3 ${arg_DEFINITIONS}
            DEPENDS kernels/${arg_SOURCE}.cu ${headers} ${PROJECT_SOURCE_DIR}/scripts/cuda-image
            COMMENT "Image of kernels ${name}" VERBATIM)
    endif()
    set(cuda_images ${cuda_images} ${name} PARENT_SCOPE)
endfunction()

# cuda_embed_images(FILE): writes the assembler file with all images and agi_cuda_images, their table (images.c).
function(cuda_embed_images file)
    set(bytes "")
    set(table "")
    set(fatbins)
    if(NOT ATTNGRAD_CUDA_IMAGES)
        list(APPEND fatbins ${CMAKE_CURRENT_BINARY_DIR}/sources)
    endif()
    foreach(name ${cuda_images})
        set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
        string(APPEND bytes "name_${name}:\n    .asciz \"${name}\"\n    .balign 64\nimage_${name}:\n    .incbin \"${image}\"\n")
        string(APPEND table "    .quad name_${name}, image_${name}\n")
        list(APPEND fatbins ${image})
    endforeach()
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${file} CONTENT "    .section .note.GNU-stack, \"\"
    .section .rodata
${bytes}    .section .data.rel.ro, \"aw\"
    .balign 8
    .globl agi_cuda_images
    .hidden agi_cuda_images
agi_cuda_images:
${table}    .quad 0, 0
")
    set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/${file} PROPERTIES OBJECT_DEPENDS "${fatbins}")
endfunction()
