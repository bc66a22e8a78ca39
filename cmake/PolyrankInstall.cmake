# The install tree. Component `headers`: the headers, a CMake package, a pkg-config file. Programs
# are installed by the folders of examples/ that build them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/polyrank DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT headers
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/polyrank
  COMPONENT headers)

# One export file for each component, so that the config loads only what is asked for.
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/polyrank)
foreach(component IN LISTS polyrank_components)
  install(TARGETS polyrank_${component} EXPORT polyrank-${component})
  install(EXPORT polyrank-${component} NAMESPACE polyrank:: DESTINATION ${package_dir}
    COMPONENT headers)
endforeach()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/polyrankConfig.cmake.in
  ${PROJECT_BINARY_DIR}/polyrankConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/polyrankConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/polyrankConfig.cmake
  ${PROJECT_BINARY_DIR}/polyrankConfigVersion.cmake ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake DESTINATION ${package_dir}
  COMPONENT headers)

# The prefix is relative to the .pc file, so the tree can be moved.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_DATADIR}/pkgconfig /)
# The C bindings are all we use; the first of their names that this machine's pkg-config knows.
set(pc_requires "")
find_program(PKG_CONFIG pkg-config)
if(TARGET polyrank_mpi AND PKG_CONFIG)
  foreach(module mpi-c ompi-c ompi mpich)
    execute_process(COMMAND ${PKG_CONFIG} --exists ${module} RESULT_VARIABLE unknown)
    if(NOT unknown)
      set(pc_requires ${module})
      break()
    endif()
  endforeach()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/polyrank.pc.in ${PROJECT_BINARY_DIR}/polyrank.pc @ONLY)
if(TARGET polyrank_cuda)
  set(pc_cuda_cflags "-I${NCCL_INCLUDE_DIR}")
  foreach(dir IN LISTS CUDAToolkit_INCLUDE_DIRS)
    string(APPEND pc_cuda_cflags " -I${dir}")
  endforeach()
  get_filename_component(pc_nccl_dir ${NCCL_LIBRARY} DIRECTORY)
  set(pc_cuda_libs "-L${pc_nccl_dir} -L${CUDAToolkit_LIBRARY_DIR}")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/polyrank-cuda.pc.in ${PROJECT_BINARY_DIR}/polyrank-cuda.pc
    @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/polyrank-cuda.pc
    DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig COMPONENT headers)
endif()
install(FILES ${PROJECT_BINARY_DIR}/polyrank.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig
  COMPONENT headers)
