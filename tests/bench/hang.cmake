add_executable(hang_bench ${CMAKE_CURRENT_LIST_DIR}/hang_bench.cpp)
target_link_libraries(hang_bench PRIVATE polyrank::core polyrank_dev)
add_test(NAME hang.bench_small COMMAND hang_bench --small)
set_tests_properties(hang.bench_small PROPERTIES LABELS "bench" TIMEOUT 60)
