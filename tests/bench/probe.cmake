if(TARGET polyrank_probe_tool)
  add_executable(probe_bench ${CMAKE_CURRENT_LIST_DIR}/probe_bench.cpp)
  target_link_libraries(probe_bench PRIVATE polyrank_probe_tool polyrank_dev)
endif()
