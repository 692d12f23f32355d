# The tests that mpirun starts, on 1 to 7 ranks of this machine: of 300 random problems, 60 in `make test` and the
# others in `make test-all`.
set(mpirun sh ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpirun.sh)

# add_mpi_program(NAME SOURCE...): with the shards of the check engine's arrays.
function(add_mpi_program name)
    add_executable(test_${name} ${ARGN} ${PROJECT_SOURCE_DIR}/cli/mpi/shards.c)
    set_target_properties(test_${name} PROPERTIES OUTPUT_NAME ${name})
    target_include_directories(test_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
        ${PROJECT_SOURCE_DIR}/cli/mpi)
    target_link_libraries(test_${name} PRIVATE attngrad_mpi_static attngrad_check)
    attngrad_flags(test_${name})
endfunction()

add_mpi_program(mpi_maps mpi/mpi_maps.c)
foreach(ranks 1 2 3 4 7)
    add_attngrad_test(mpi_maps_${ranks} ${mpirun} ${ranks} $<TARGET_FILE:test_mpi_maps>)
    add_long_test(mpi_maps_${ranks} ${mpirun} ${ranks} $<TARGET_FILE:test_mpi_maps> 60 240)
endforeach()
add_attngrad_test(mpi_bits sh ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpi_bits.sh $<TARGET_FILE:test_mpi_maps>)
add_long_test(rings $<TARGET_FILE:test_rings> 60 240)

# Messages of more than 500 bytes in pieces of 8, as if they were longer than MPI can count.
add_mpi_program(mpi_pieces mpi/mpi_maps.c ${PROJECT_SOURCE_DIR}/src/mpi/transport_mpi.c)
target_compile_definitions(test_mpi_pieces PRIVATE AGI_MPI_MAX_BYTES=500)
add_attngrad_test(mpi_pieces ${mpirun} 3 $<TARGET_FILE:test_mpi_pieces> 0 20)

add_mpi_program(mpi_failures mpi/mpi_failures.c)
add_attngrad_test(mpi_failures sh ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpi_failures.sh $<TARGET_FILE:test_mpi_failures>)
add_attngrad_test(mpi_command sh ${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpi_command.sh $<TARGET_FILE:attngrad>)
find_program(PYTHON3_PROGRAM python3)
if(PYTHON3_PROGRAM)
    add_attngrad_test(mpi_cost_model ${PYTHON3_PROGRAM} -B ${CMAKE_CURRENT_SOURCE_DIR}/mpi/cost_model.py
        $<TARGET_FILE:attngrad> ${PROJECT_SOURCE_DIR})
else()
    message(STATUS "no python3: the cost model is not tested")
endif()
