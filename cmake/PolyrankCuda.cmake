# polyrank::cuda: the CUDA + NCCL backend. Included by PolyrankTargets.cmake.
#   POLYRANK_CUDA=AUTO  where toolkit, NCCL >= 2.19 and (for our own tests) nvcc are there
#   POLYRANK_CUDA=ON    or configuration fails
#   POLYRANK_CUDA=OFF   never
# The target needs no nvcc: headers compile with any compiler, and one .cu file of the program holds
# the kernels. Our own .cu files compile and link without a GPU or driver.
set(polyrank_cuda_why "")
if(NOT POLYRANK_CUDA)
  set(polyrank_cuda_why "off (POLYRANK_CUDA=${POLYRANK_CUDA})")
  return()
endif()

find_package(CUDAToolkit QUIET GLOBAL)
if(CUDAToolkit_FOUND)
  list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
  find_package(NCCL 2.19 QUIET MODULE GLOBAL)
endif()
if(NOT CUDAToolkit_FOUND)
  set(polyrank_cuda_why "no CUDA toolkit (nvcc is not in PATH; CUDAToolkit_ROOT is not set)")
elseif(CUDAToolkit_VERSION VERSION_LESS 12)
  set(polyrank_cuda_why "the CUDA toolkit is ${CUDAToolkit_VERSION}; 12 or later is needed")
elseif(NOT TARGET CUDA::cublas)
  set(polyrank_cuda_why "the CUDA toolkit ${CUDAToolkit_VERSION} has no cuBLAS")
elseif(NOT NCCL_FOUND)
  set(polyrank_cuda_why "no NCCL 2.19 or later; set NCCL_ROOT (searched: ${NCCL_SEARCHED})")
elseif(PROJECT_IS_TOP_LEVEL)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(polyrank_cuda_why "no nvcc that works")
  endif()
endif()
if(polyrank_cuda_why)
  if(NOT POLYRANK_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "POLYRANK_CUDA=${POLYRANK_CUDA}, but ${polyrank_cuda_why}")
  endif()
  return()
endif()

add_library(polyrank_cuda INTERFACE)
add_library(polyrank::cuda ALIAS polyrank_cuda)
set_target_properties(polyrank_cuda PROPERTIES EXPORT_NAME cuda)
target_link_libraries(polyrank_cuda INTERFACE polyrank_core CUDA::cudart CUDA::cublas NCCL::nccl
  ${CMAKE_DL_LIBS})
# CMake 3.25.1 does not know nvcc's C++20, and would take cxx_std_20 for C++17.
target_compile_options(polyrank_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
list(APPEND polyrank_components cuda)

if(PROJECT_IS_TOP_LEVEL)
  # One architecture: the GPU of this machine, else Hopper. Releases: all-major.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE _gpus ERROR_QUIET RESULT_VARIABLE _smi)
    if(_smi EQUAL 0 AND _gpus MATCHES "GPU 0")
      set(CMAKE_CUDA_ARCHITECTURES native)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  enable_language(CUDA)
endif()
