# libFuzzer comes with clang only: the target is built by clang++ whatever compiles the rest, and left
# out where there is none.
find_program(POLYRANK_CLANGXX NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14)
if(NOT POLYRANK_CLANGXX)
  message(STATUS "hang.fuzz_ring is left out: no clang++")
  return()
endif()
set(probe ${CMAKE_CURRENT_BINARY_DIR}/probe.cpp)
file(WRITE ${probe} "#include <cstddef>\n#include <vector>\n"
  "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }\n")
set(fuzz_flags -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
execute_process(COMMAND ${POLYRANK_CLANGXX} ${fuzz_flags} ${probe} -o ${CMAKE_CURRENT_BINARY_DIR}/probe
  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
if(failed)
  message(STATUS "hang.fuzz_ring is left out: ${POLYRANK_CLANGXX} has no libFuzzer")
  return()
endif()

set(program ${CMAKE_BINARY_DIR}/tests/hang.fuzz_ring)
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/polyrank/hang/*.hpp
  ${PROJECT_SOURCE_DIR}/include/polyrank/core/*.hpp ${PROJECT_SOURCE_DIR}/include/polyrank/launch/hang_message.hpp)
add_custom_command(OUTPUT ${program}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/tests
  COMMAND ${POLYRANK_CLANGXX} ${fuzz_flags} -Wall -Wextra -I${PROJECT_SOURCE_DIR}/include
    ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_ring.cpp -o ${program}
  DEPENDS fuzz_ring.cpp ${headers} VERBATIM)
add_custom_target(hang_fuzz_ring ALL DEPENDS ${program})
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/corpus)
add_test(NAME hang.fuzz_ring
  COMMAND ${program} -max_total_time=10 -max_len=8192 -timeout=5 -rss_limit_mb=1024
    -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/ ${CMAKE_CURRENT_BINARY_DIR}/corpus)
set_tests_properties(hang.fuzz_ring PROPERTIES LABELS "fuzz" TIMEOUT 120)
