add_executable(cpu_adamw_bench cpu_adamw_bench.cpp)
target_link_libraries(cpu_adamw_bench PRIVATE polyrank::core polyrank_dev)
add_executable(zero_bench zero_bench.cpp)
target_link_libraries(zero_bench PRIVATE polyrank::mpi polyrank_dev)
