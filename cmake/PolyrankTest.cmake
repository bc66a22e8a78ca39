# polyrank_test(name source... [LIBS lib...] [LABELS label...] [TIMEOUT seconds])
#   one Catch2 executable without MPI, registered as `name`.
# polyrank_mpi_test(name source... NP 1 2 3 4 [LIBS lib...] [TIMEOUT seconds])
#   one Catch2 executable, run under mpirun once per rank count, registered as `name.npN`.

set(POLYRANK_MPI_FLAGS --map-by :OVERSUBSCRIBE --bind-to none CACHE STRING
    "Flags for mpirun in the tests")

set(polyrank_mpi_environment "OMPI_MCA_btl_vader_single_copy_mechanism=none" "OMP_NUM_THREADS=1"
    "OPENBLAS_NUM_THREADS=1")
execute_process(COMMAND id -u OUTPUT_VARIABLE user_id OUTPUT_STRIP_TRAILING_WHITESPACE)
if(user_id STREQUAL "0")
  list(APPEND polyrank_mpi_environment "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endif()

function(polyrank_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LIBS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS} $<TARGET_OBJECTS:polyrank_catch_main>)
  target_link_libraries(${name} PRIVATE polyrank::core polyrank_test_support ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "unit;${arg_LABELS}"
    SKIP_RETURN_CODE 77)
endfunction()

function(polyrank_mpi_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LIBS;LABELS;NP" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS} $<TARGET_OBJECTS:polyrank_catch_mpi_main>)
  target_link_libraries(${name} PRIVATE polyrank::mpi polyrank_test_support ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  math(EXPR ctest_timeout "${arg_TIMEOUT} + 10")
  foreach(n IN LISTS arg_NP)
    add_test(NAME ${name}.np${n} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n}
      ${POLYRANK_MPI_FLAGS} $<TARGET_FILE:${name}>)
    set_tests_properties(${name}.np${n} PROPERTIES TIMEOUT ${ctest_timeout} PROCESSORS ${n}
      LABELS "mpi;np${n};${arg_LABELS}" SKIP_RETURN_CODE 77
      ENVIRONMENT "${polyrank_mpi_environment};MPIEXEC_TIMEOUT=${arg_TIMEOUT}")
  endforeach()
endfunction()
