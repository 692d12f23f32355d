# ATTNGRAD_CUDA=AUTO, as `pip install .` has it: the CUDA backend is built if nvcc and a GPU are found, for the GPUs of this
# machine alone. One line says so either way.
if(ATTNGRAD_CUDA STREQUAL "AUTO")
    find_program(ATTNGRAD_NVCC nvcc HINTS /usr/local/cuda/bin)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
        OUTPUT_VARIABLE gpus RESULT_VARIABLE result ERROR_QUIET)
    if(NOT ATTNGRAD_NVCC)
        set(ATTNGRAD_CUDA OFF)
        message(STATUS "attngrad without its CUDA backend: nvcc is not here")
    elseif(NOT "${result}" STREQUAL "0" OR NOT gpus MATCHES "[0-9]")
        set(ATTNGRAD_CUDA OFF)
        message(STATUS "attngrad without its CUDA backend: nvidia-smi finds no GPU")
    else()
        set(ATTNGRAD_CUDA ON)
        set(ATTNGRAD_CUDA_ARCHS native CACHE STRING "Compute capabilities to compile the kernels for")
        message(STATUS "attngrad with its CUDA backend, for this machine's GPUs")
    endif()
endif()
