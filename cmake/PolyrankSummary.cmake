# One block that says what this build tree will make.
set(mpi_line "not found (polyrank::core only)")
if(TARGET polyrank_mpi)
  set(mpi_line "MPI ${MPI_CXX_VERSION}, ${MPIEXEC_EXECUTABLE}")
elseif(NOT POLYRANK_MPI)
  set(mpi_line "off (POLYRANK_MPI=${POLYRANK_MPI})")
endif()
set(cuda_line "${polyrank_cuda_why}")
if(TARGET polyrank_cuda)
  set(cuda_line "CUDA ${CUDAToolkit_VERSION}, NCCL ${NCCL_VERSION} (${NCCL_LIBRARY}), architectures ${CMAKE_CUDA_ARCHITECTURES}")
endif()
set(test_line ${POLYRANK_BUILD_TESTS})
if(POLYRANK_BUILD_TESTS)
  set(test_line "Catch2 ${Catch2_VERSION}")
  if(NOT POLYRANK_TEST_MPI)
    string(APPEND test_line ", without those under mpirun (ThreadSanitizer would judge MPI)")
  endif()
endif()
set(sanitize_line "${POLYRANK_SANITIZE}")
if(NOT POLYRANK_SANITIZE)
  set(sanitize_line "none")
endif()
message(STATUS "polyrank ${PROJECT_VERSION}
     build type   ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}
     components   ${polyrank_components}
     mpi          ${mpi_line}
     cuda         ${cuda_line}
     tests        ${test_line}
     examples     ${POLYRANK_BUILD_EXAMPLES}
     sanitizers   ${sanitize_line}")
