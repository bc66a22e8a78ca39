add_executable(all_reduce_bench all_reduce_bench.cpp)
target_link_libraries(all_reduce_bench PRIVATE polyrank::mpi polyrank_dev)

if(TARGET polyrank_classifier)
  add_executable(ddp_step ddp_step.cpp)
  target_link_libraries(ddp_step PRIVATE polyrank_classifier polyrank_dev)
endif()

add_executable(grad_sync_overhead grad_sync_overhead.cpp)
target_link_libraries(grad_sync_overhead PRIVATE polyrank::mpi polyrank_dev)
