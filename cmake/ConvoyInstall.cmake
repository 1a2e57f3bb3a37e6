# cmake --install: the libraries, their headers under include/convoy, the program, and what find_package(Convoy) reads.
# The targets are Convoy::convoy (graphs, training steps, data, checkpoints, networks) and Convoy::trainer (whole runs).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(installed convoy convoy_options convoy_dependencies)
if(TARGET convoy_trainer)
  list(APPEND installed convoy_trainer)
  set_target_properties(convoy_trainer PROPERTIES EXPORT_NAME trainer)
endif()
install(TARGETS ${installed} EXPORT ConvoyTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET convoy_cli)
  install(TARGETS convoy_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

foreach(folder kernels engine comm io layers nets apps)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/convoy
            FILES_MATCHING PATTERN "*.h" PATTERN "emulator" EXCLUDE PATTERN "commands.h" EXCLUDE)
  endif()
endforeach()

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Convoy)
set(with_mpi ${CONVOY_MPI})
if(NOT MPI_CXX_FOUND)
  set(with_mpi OFF)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ConvoyConfig.cmake.in ${PROJECT_BINARY_DIR}/ConvoyConfig.cmake
                              INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ConvoyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ConvoyConfig.cmake ${PROJECT_BINARY_DIR}/ConvoyConfigVersion.cmake
        DESTINATION ${config_folder})
install(EXPORT ConvoyTargets NAMESPACE Convoy:: DESTINATION ${config_folder})
