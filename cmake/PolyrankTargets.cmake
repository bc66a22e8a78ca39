# The libraries. Each needs only what it names: polyrank::core builds where there is no MPI.
# GLOBAL: a project that takes us by add_subdirectory links the targets from its own folders.

# polyrank::core: std and threads.
find_package(Threads REQUIRED GLOBAL)
add_library(polyrank_core INTERFACE)
add_library(polyrank::core ALIAS polyrank_core)
set_target_properties(polyrank_core PROPERTIES EXPORT_NAME core)
target_compile_features(polyrank_core INTERFACE cxx_std_20)
target_include_directories(polyrank_core INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(polyrank_core INTERFACE Threads::Threads)
set(polyrank_components core)

# polyrank::mpi: the host backend, with MPI beneath it.
if(POLYRANK_MPI)
  find_package(MPI 3.1 QUIET GLOBAL COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(polyrank_mpi INTERFACE)
    add_library(polyrank::mpi ALIAS polyrank_mpi)
    set_target_properties(polyrank_mpi PROPERTIES EXPORT_NAME mpi)
    target_link_libraries(polyrank_mpi INTERFACE polyrank_core MPI::MPI_CXX)
    list(APPEND polyrank_components mpi)
  elseif(NOT POLYRANK_MPI STREQUAL "AUTO")
    message(FATAL_ERROR "POLYRANK_MPI=${POLYRANK_MPI}, but there is no MPI 3.1 or later: "
      "apt install libopenmpi-dev openmpi-bin")
  endif()
endif()

# polyrank::checkpoint: files of checkpoints; the only part that needs nlohmann/json.
find_package(nlohmann_json 3.10 QUIET GLOBAL)
if(nlohmann_json_FOUND)
  add_library(polyrank_checkpoint INTERFACE)
  add_library(polyrank::checkpoint ALIAS polyrank_checkpoint)
  set_target_properties(polyrank_checkpoint PROPERTIES EXPORT_NAME checkpoint)
  target_link_libraries(polyrank_checkpoint INTERFACE polyrank_core nlohmann_json::nlohmann_json)
  list(APPEND polyrank_components checkpoint)
endif()

# polyrank::cuda: the CUDA + NCCL backend.
include(${CMAKE_CURRENT_LIST_DIR}/PolyrankCuda.cmake)
