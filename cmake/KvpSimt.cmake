# The CUDA sources compiled for the host, on the layer of csrc/simt. In these targets the token
# `cuda` names the namespace cuda_on_host, so that one library can hold them beside the real ones.
set(KVP_SIMT_ARCHITECTURE 80 CACHE STRING "Architecture that the CUDA sources are compiled as")

function(kvp_add_simt target)
  add_library(kvp_simt_runtime OBJECT
    csrc/simt/async_copies.cpp
    csrc/simt/barrier.cpp
    csrc/simt/configure.cpp
    csrc/simt/fiber.cpp
    csrc/simt/grid.cpp
    csrc/simt/launch.cpp
    csrc/simt/mma.cpp
    csrc/simt/multiprocessor.cpp
    csrc/simt/overflow.cpp
    csrc/simt/pages.cpp
    csrc/simt/report.cpp
    csrc/simt/runtime_api.cpp
    csrc/simt/shared_arena.cpp
    csrc/simt/stacks.cpp
    csrc/simt/warp.cpp
    csrc/simt/words.cpp)
  # Through sources of their own, since in a build with CUDA nvcc compiles the same files.
  set(kernels "")
  foreach(kernel evict_bf16 evict_fp16 finish launch)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/simt/${kernel}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"cuda/${kernel}.cu\"\n")
    list(APPEND kernels ${source})
  endforeach()
  add_library(kvp_simt_kernels OBJECT ${kernels} csrc/cuda/plan.cpp)
  target_compile_definitions(kvp_simt_kernels PRIVATE cuda=cuda_on_host)
  target_compile_options(kvp_simt_kernels PRIVATE -Wno-unknown-pragmas)
  # Sanitizers watch the kernels; the runtime tells them of its fibers.
  target_link_libraries(kvp_simt_runtime PRIVATE kvp_warnings Threads::Threads)
  target_link_libraries(kvp_simt_kernels PRIVATE kvp_options Threads::Threads)
  foreach(part kvp_simt_runtime kvp_simt_kernels)
    target_include_directories(${part} PRIVATE csrc/simt/include csrc csrc/include)
    target_compile_definitions(${part} PRIVATE KVP_SIMT_ARCHITECTURE=${KVP_SIMT_ARCHITECTURE})
    set_target_properties(
      ${part} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                         VISIBILITY_INLINES_HIDDEN ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${part}>)
  endforeach()
  target_compile_definitions(${target} PRIVATE KVP_HAS_SIMT)
endfunction()
