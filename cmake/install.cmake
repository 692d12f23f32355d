# What `make install` puts where: the command, and attngrad-mpi, which it runs for --mpi; the libraries, the headers,
# attngrad.pc, attngrad_io.pc, attngrad_mpi.pc and attngrad_check.pc, the CMake package (attngrad::attngrad,
# attngrad::io and attngrad::mpi are the shared libraries, attngrad::static, attngrad::io_static, attngrad::mpi_static
# and attngrad::check the static ones), the man page, the completion for bash.
include(CMakePackageConfigHelpers)

install(TARGETS attngrad RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set(libraries attngrad_static attngrad_shared attngrad_check)
set(packages attngrad attngrad_check)
if(ATTNGRAD_HAS_IO)
    list(APPEND libraries attngrad_io_static attngrad_io_shared)
    list(APPEND packages attngrad_io)
endif()
if(ATTNGRAD_HAS_MPI)
    install(TARGETS attngrad-mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    list(APPEND libraries attngrad_mpi_static attngrad_mpi_shared)
    list(APPEND packages attngrad_mpi)
endif()
install(TARGETS ${libraries} EXPORT attngrad-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

file(GLOB public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/attngrad*.h)
if(NOT ATTNGRAD_HAS_IO)
    list(FILTER public_headers EXCLUDE REGEX "attngrad_io.h$")
endif()
if(NOT ATTNGRAD_HAS_MPI)
    list(FILTER public_headers EXCLUDE REGEX "attngrad_mpi.h$")
endif()
install(FILES ${public_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES docs/attngrad.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES completions/attngrad.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME attngrad)

# dlopen, which is a part of the C library from glibc 2.34 on: for the check engine, and for the CUDA backend.
set(dl_library)
if(CMAKE_DL_LIBS)
    set(dl_library -l${CMAKE_DL_LIBS})
endif()
set(dl_if_cuda)
if(ATTNGRAD_CUDA)
    set(dl_if_cuda ${dl_library})
endif()
foreach(name ${packages})
    configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attngrad)
configure_package_config_file(cmake/attngrad-config.cmake.in attngrad-config.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(attngrad-config-version.cmake COMPATIBILITY SameMajorVersion)
install(EXPORT attngrad-targets NAMESPACE attngrad:: DESTINATION ${package_dir})
install(FILES
    ${PROJECT_BINARY_DIR}/attngrad-config.cmake
    ${PROJECT_BINARY_DIR}/attngrad-config-version.cmake
    DESTINATION ${package_dir})
