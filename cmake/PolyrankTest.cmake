# polyrank_test(name source... [OPTIMISED] [LIBS lib...] [LABELS label...] [TIMEOUT seconds])
#   one Catch2 executable without MPI, registered as `name`.
# polyrank_mpi_test(name source... NP 1 2 3 4 [LIBS lib...] [LABELS label...] [TIMEOUT seconds])
#   one Catch2 executable, run under mpirun once per rank count, registered as `name.npN`.
#   Not registered where POLYRANK_TEST_MPI is off (ThreadSanitizer would judge MPI itself).
# polyrank_expect_test(name COMMAND command... [EXIT code|fail] [MATCH regex...] [NO_MATCH regex...]
#                      [LABELS label...] [TIMEOUT seconds] [ENVIRONMENT NAME=value...])
#   runs a command and judges its exit code and what it prints (tests/support/expect.sh).
# polyrank_mpi_expect_test(name NP n COMMAND command... ...)
#   the same under mpirun.
# polyrank_compile_fail(name file EXPECT regex)
#   compiling the file must fail with the sentence. With POLYRANK_FIXED defined, which takes the
#   faulty line out, it must compile: so nothing else in the file is the reason.
# polyrank_fuzz_test(name source... HEADERS folder... [INCLUDES dir...] [LIBS lib...] [MAX_LEN n])
#   a libFuzzer target under AddressSanitizer and UBSan, run for ten seconds; its dictionary and seeds
#   are the files of these names beside the sources. Left out where there is no clang++ with libFuzzer.
# polyrank_build_test(name target)
#   building the target (EXCLUDE_FROM_ALL) must succeed.

find_package(Catch2 QUIET)
if(NOT Catch2_FOUND)
  message(FATAL_ERROR "The tests need Catch2 2.13 or 3: apt install catch2 "
    "(or set POLYRANK_BUILD_TESTS=OFF)")
endif()

set(POLYRANK_MPI_FLAGS --map-by :OVERSUBSCRIBE --bind-to none CACHE STRING
    "Flags for mpirun in the tests")

set(POLYRANK_TEST_MPI ON)
if(POLYRANK_SANITIZE MATCHES "thread")
  set(POLYRANK_TEST_MPI OFF)
endif()

# MPI's own leaks are not ours to report.
set(polyrank_mpi_environment "OMPI_MCA_btl_vader_single_copy_mechanism=none" "OMP_NUM_THREADS=1"
    "OPENBLAS_NUM_THREADS=1" "ASAN_OPTIONS=detect_leaks=0")
execute_process(COMMAND id -u OUTPUT_VARIABLE polyrank_user_id OUTPUT_STRIP_TRAILING_WHITESPACE)
if(polyrank_user_id STREQUAL "0")
  list(APPEND polyrank_mpi_environment "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endif()

# Everything that `ctest -L unit` (or `-L mpi`) runs; the sanitizer builds need only the first.
add_custom_target(polyrank_unit_tests)
add_custom_target(polyrank_mpi_tests)
add_custom_target(polyrank_build_tests)

# Tests are compiled with -O1: half the time of -O3, and the subject is what they do, not how fast.
# OPTIMISED is for those whose subject is what the optimiser does.
function(polyrank_optimise_test name optimised)
  if(NOT optimised)
    target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endif()
endfunction()

function(polyrank_test name)
  cmake_parse_arguments(arg "OPTIMISED" "TIMEOUT" "LIBS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  polyrank_optimise_test(${name} "${arg_OPTIMISED}")
  target_link_libraries(${name} PRIVATE polyrank::core polyrank_test_support polyrank_catch_main
    ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(polyrank_unit_tests ${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "unit;${arg_LABELS}"
    SKIP_RETURN_CODE 77)
endfunction()

function(polyrank_mpi_test name)
  if(NOT POLYRANK_TEST_MPI)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "LIBS;LABELS;NP" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  polyrank_optimise_test(${name} FALSE)
  target_link_libraries(${name} PRIVATE polyrank::mpi polyrank_test_support polyrank_catch_mpi_main
    ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(polyrank_mpi_tests ${name})
  # Three clocks, so that the first to ring is the one that explains most: the watchdog inside the
  # program names the test case, mpirun ends all ranks, CTest only kills.
  math(EXPR ctest_timeout "${arg_TIMEOUT} + 10")
  foreach(n IN LISTS arg_NP)
    add_test(NAME ${name}.np${n} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n}
      ${POLYRANK_MPI_FLAGS} $<TARGET_FILE:${name}>)
    set_tests_properties(${name}.np${n} PROPERTIES TIMEOUT ${ctest_timeout} PROCESSORS ${n}
      LABELS "mpi;np${n};${arg_LABELS}" SKIP_RETURN_CODE 77
      ENVIRONMENT "${polyrank_mpi_environment};MPIEXEC_TIMEOUT=${arg_TIMEOUT}")
  endforeach()
endfunction()

function(polyrank_expect_test name)
  cmake_parse_arguments(arg "" "EXIT;TIMEOUT" "COMMAND;MATCH;NO_MATCH;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set(judge)
  if(DEFINED arg_EXIT)
    list(APPEND judge --exit ${arg_EXIT})
  endif()
  foreach(regex IN LISTS arg_MATCH)
    list(APPEND judge --match ${regex})
  endforeach()
  foreach(regex IN LISTS arg_NO_MATCH)
    list(APPEND judge --no-match ${regex})
  endforeach()
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/support/expect.sh ${judge} -- ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
    SKIP_RETURN_CODE 77 ENVIRONMENT "${polyrank_mpi_environment};${arg_ENVIRONMENT}")
endfunction()

function(polyrank_mpi_expect_test name)
  if(NOT POLYRANK_TEST_MPI)
    return()
  endif()
  cmake_parse_arguments(arg "" "NP;EXIT;TIMEOUT" "COMMAND;MATCH;NO_MATCH;LABELS;ENVIRONMENT" ${ARGN})
  polyrank_expect_test(${name} EXIT ${arg_EXIT} TIMEOUT ${arg_TIMEOUT} MATCH ${arg_MATCH}
    NO_MATCH ${arg_NO_MATCH} LABELS mpi ${arg_LABELS} ENVIRONMENT ${arg_ENVIRONMENT}
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_NP} ${POLYRANK_MPI_FLAGS}
      ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES PROCESSORS ${arg_NP})
endfunction()

# The flags with which a file that includes polyrank and MPI compiles.
function(polyrank_compile_flags result)
  set(flags -std=c++20 -pthread -I${PROJECT_SOURCE_DIR}/include)
  if(TARGET MPI::MPI_CXX)
    get_target_property(folders MPI::MPI_CXX INTERFACE_INCLUDE_DIRECTORIES)
    foreach(folder IN LISTS folders)
      list(APPEND flags -I${folder})
    endforeach()
  endif()
  set(${result} ${flags} PARENT_SCOPE)
endfunction()

function(polyrank_compile_fail name file)
  cmake_parse_arguments(arg "" "EXPECT" "" ${ARGN})
  polyrank_compile_flags(flags)
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/support/compile_fail.sh
    ${CMAKE_CURRENT_SOURCE_DIR}/${file} ${arg_EXPECT} ${CMAKE_CXX_COMPILER} ${flags}
    -I${PROJECT_SOURCE_DIR}/tests COMMAND_EXPAND_LISTS)
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS "compile")
endfunction()

function(polyrank_build_test name target)
  add_test(NAME ${name}
    COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target ${target} --config $<CONFIG>)
  # One build at a time in a build tree; what was built before (polyrank_build_tests) costs nothing.
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS "compile" RESOURCE_LOCK build_tree)
  add_dependencies(polyrank_build_tests ${target})
endfunction()

# libFuzzer comes with clang only: fuzz targets are built by clang++ whatever compiles the rest.
set(polyrank_fuzz_flags -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
function(polyrank_find_libfuzzer)
  find_program(POLYRANK_CLANGXX
    NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
  if(NOT POLYRANK_CLANGXX OR DEFINED POLYRANK_HAS_LIBFUZZER)
    return()
  endif()
  set(trial ${PROJECT_BINARY_DIR}/CMakeFiles/libfuzzer_trial)
  file(WRITE ${trial}.cpp "#include <cstddef>\n#include <vector>\n"
    "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }\n")
  execute_process(COMMAND ${POLYRANK_CLANGXX} ${polyrank_fuzz_flags} ${trial}.cpp -o ${trial}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  set(works ON)
  if(failed)
    set(works OFF)
  endif()
  set(POLYRANK_HAS_LIBFUZZER ${works} CACHE INTERNAL "clang++ links libFuzzer")
endfunction()

function(polyrank_fuzz_test name)
  cmake_parse_arguments(arg "" "MAX_LEN" "HEADERS;INCLUDES;LIBS" ${ARGN})
  polyrank_find_libfuzzer()
  if(NOT POLYRANK_CLANGXX OR NOT POLYRANK_HAS_LIBFUZZER)
    message(STATUS "${name} is left out: no clang++ with libFuzzer")
    return()
  endif()
  if(NOT arg_MAX_LEN)
    set(arg_MAX_LEN 512)
  endif()
  set(headers)
  foreach(folder IN LISTS arg_HEADERS)
    file(GLOB more CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/polyrank/${folder}/*.hpp)
    list(APPEND headers ${more})
  endforeach()
  set(program ${PROJECT_BINARY_DIR}/tests/${name})
  add_custom_command(OUTPUT ${program}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/tests
    COMMAND ${POLYRANK_CLANGXX} ${polyrank_fuzz_flags} -Wall -Wextra -I${PROJECT_SOURCE_DIR}/include
      ${arg_INCLUDES} ${arg_UNPARSED_ARGUMENTS} ${arg_LIBS} -o ${program}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} DEPENDS ${arg_UNPARSED_ARGUMENTS} ${headers} VERBATIM)
  string(REPLACE "." "_" target ${name})
  add_custom_target(${target} ALL DEPENDS ${program})
  set(corpus ${CMAKE_CURRENT_BINARY_DIR}/corpus_${target})
  file(MAKE_DIRECTORY ${corpus})
  set(inputs ${corpus})
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/seeds)
    list(APPEND inputs ${CMAKE_CURRENT_SOURCE_DIR}/seeds)
  endif()
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/dictionary)
    list(APPEND inputs -dict=${CMAKE_CURRENT_SOURCE_DIR}/dictionary)
  endif()
  add_test(NAME ${name}
    COMMAND ${program} -max_total_time=10 -max_len=${arg_MAX_LEN} -timeout=5 -rss_limit_mb=2048
      -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/ ${inputs})
  set_tests_properties(${name} PROPERTIES LABELS "fuzz" TIMEOUT 120)
endfunction()
