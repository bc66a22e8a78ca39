add_executable(pipeline_bench ${CMAKE_CURRENT_LIST_DIR}/pipeline_bench.cpp)
target_link_libraries(pipeline_bench PRIVATE polyrank::core polyrank_dev)
add_test(NAME pipeline.bench_small COMMAND pipeline_bench --small)
set_tests_properties(pipeline.bench_small PROPERTIES LABELS "bench" TIMEOUT 60)
