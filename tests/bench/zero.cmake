add_executable(cpu_adamw_bench cpu_adamw_bench.cpp)
target_link_libraries(cpu_adamw_bench PRIVATE polyrank::core polyrank_dev)
