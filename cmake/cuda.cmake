# Which GPUs the kernels are compiled for: what nvcc can compile for and what this machine has; and ATTNGRAD_CUDA=AUTO,
# as `pip install .` has it, which builds the CUDA backend if nvcc and a GPU are found. One line says so either way.
set(ATTNGRAD_CUDA_ARCHS all CACHE STRING
    "Compute capabilities to compile the kernels for, without the dot; all = 80, 90, 100 and 120, as far as nvcc knows \
them; native = those of this machine's GPUs")

# cuda_known_archs(VARIABLE ARCH...): those of the list that nvcc can compile for.
function(cuda_known_archs variable)
    execute_process(COMMAND ${ATTNGRAD_NVCC} --list-gpu-code OUTPUT_VARIABLE output)
    string(REGEX MATCHALL "sm_[0-9]+[a-z]?" known "${output}")
    set(archs)
    foreach(arch ${ARGN})
        if(sm_${arch} IN_LIST known)
            list(APPEND archs ${arch})
        endif()
    endforeach()
    set(${variable} ${archs} PARENT_SCOPE)
endfunction()

# cuda_native_archs(VARIABLE): the compute capabilities of the GPUs of this machine that run the kernels, 80 or higher;
# empty if there is none.
function(cuda_native_archs variable)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
        OUTPUT_VARIABLE output RESULT_VARIABLE result ERROR_QUIET)
    set(archs)
    if("${result}" STREQUAL "0")
        string(REGEX MATCHALL "[0-9]+\\.[0-9]+" archs "${output}")
        string(REPLACE "." "" archs "${archs}")
        list(REMOVE_DUPLICATES archs)
        list(FILTER archs EXCLUDE REGEX "^[1-7].$") # 10.0 has become 100
    endif()
    set(${variable} ${archs} PARENT_SCOPE)
endfunction()

# cuda_auto(OPTION REASON): ON or OFF, and why it is OFF.
function(cuda_auto option reason)
    set(${option} OFF PARENT_SCOPE)
    find_program(ATTNGRAD_NVCC nvcc PATHS /usr/local/cuda/bin)
    cuda_native_archs(gpus)
    list(JOIN gpus ", sm_" names)
    if(NOT ATTNGRAD_NVCC)
        set(${reason} "nvcc is not here" PARENT_SCOPE)
        return()
    elseif(NOT gpus)
        set(${reason} "nvidia-smi finds no GPU of compute capability 8.0 or higher" PARENT_SCOPE)
        return()
    endif()
    cuda_known_archs(known ${gpus})
    if(NOT "${known}" STREQUAL "${gpus}")
        set(${reason} "${ATTNGRAD_NVCC} cannot compile for this machine's GPUs, sm_${names}" PARENT_SCOPE)
        return()
    endif()
    set(${option} ON PARENT_SCOPE)
endfunction()

if(ATTNGRAD_CUDA STREQUAL "AUTO")
    cuda_auto(ATTNGRAD_CUDA cuda_reason)
    if(ATTNGRAD_CUDA)
        if(ATTNGRAD_CUDA_ARCHS STREQUAL "all") # nobody has asked for others
            set(ATTNGRAD_CUDA_ARCHS native)
        endif()
        message(STATUS "attngrad with its CUDA backend: nvcc and a GPU are here")
    else()
        message(STATUS "attngrad without its CUDA backend: ${cuda_reason}")
    endif()
endif()
