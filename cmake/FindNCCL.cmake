# Finds NCCL and defines NCCL::nccl. Looks, in this order, for
#   1. a CMake package of NCCL itself;
#   2. NCCL_ROOT (variable or environment), then NCCL_HOME, NCCL_DIR in the environment;
#   3. the CUDA toolkit, the system's folders, and pip's nvidia-nccl wheels below any of these.
# Header and library are taken from one place. The version comes from nccl.h; nothing is run.
# Sets NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY, NCCL_SEARCHED.
# SPDX-License-Identifier: Apache-2.0
include(FindPackageHandleStandardArgs)

if(NOT NCCL_ROOT AND NOT DEFINED ENV{NCCL_ROOT} AND NOT DEFINED ENV{NCCL_HOME} AND NOT DEFINED ENV{NCCL_DIR})
  find_package(NCCL CONFIG QUIET)
  if(TARGET NCCL::nccl)
    find_package_handle_standard_args(NCCL CONFIG_MODE)
    return()
  endif()
endif()

set(NCCL_SEARCHED ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME} $ENV{NCCL_DIR}
  ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_BIN_DIR}/.. /usr/local/cuda)
# With a root given, nothing else will do: a header from here and a library from there is the
# mistake that hurts most.
set(_nccl_only "")
if(NCCL_ROOT OR DEFINED ENV{NCCL_ROOT} OR DEFINED ENV{NCCL_HOME} OR DEFINED ENV{NCCL_DIR})
  set(NCCL_SEARCHED ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME} $ENV{NCCL_DIR})
  set(_nccl_only NO_DEFAULT_PATH)
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_SEARCHED}
  PATH_SUFFIXES include nvidia/nccl/include ${_nccl_only})
if(NCCL_INCLUDE_DIR)
  get_filename_component(_nccl_prefix ${NCCL_INCLUDE_DIR} DIRECTORY)
  # Wheels hold libnccl.so.2 only; NAMES_PER_DIR keeps the library beside its header.
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
    HINTS ${_nccl_prefix} ${NCCL_SEARCHED}
    PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} nvidia/nccl/lib ${_nccl_only})
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _nccl_numbers "${_nccl_lines}")
  list(JOIN _nccl_numbers "." NCCL_VERSION)
endif()
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

list(JOIN NCCL_SEARCHED " " NCCL_SEARCHED)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "set NCCL_ROOT to the folder that holds include/nccl.h and lib/libnccl.so, searched: ${NCCL_SEARCHED}")
if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl SHARED IMPORTED GLOBAL)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
