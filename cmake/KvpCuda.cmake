# The CUDA backend. KVP_CUDA=AUTO builds it where nvcc is found, ON insists, OFF leaves it out.
# nvcc is taken from the machine (CMAKE_CUDA_COMPILER, CUDACXX, PATH) or from the wheels
# nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl in the
# Python environment.
set(KVP_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE KVP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(KVP_CUDA_ARCHITECTURES "" CACHE STRING
    "GPU architectures to build for, as CMAKE_CUDA_ARCHITECTURES; empty: all that nvcc knows of")

if(NOT KVP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "KVP_CUDA is \"${KVP_CUDA}\", expected AUTO, ON or OFF")
endif()

# Points CMake to the wheels' nvcc, which lacks the folders that it looks for its runtime in.
macro(kvp_find_nvcc_wheels)
  find_package(Python 3.10 QUIET COMPONENTS Interpreter)
  if(Python_FOUND)
    # -E: an isolated build hides the environment's packages by PYTHONPATH.
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -E -c "import nvidia.cu13 as m; print(list(m.__path__)[0])"
      OUTPUT_VARIABLE kvp_cuda_wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(kvp_cuda_wheels AND EXISTS "${kvp_cuda_wheels}/bin/nvcc")
      set(CMAKE_CUDA_COMPILER "${kvp_cuda_wheels}/bin/nvcc")
      set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -L${kvp_cuda_wheels}/lib")
      set(CUDA_CUDART "${kvp_cuda_wheels}/lib/libcudart.so.13")
    endif()
  endif()
endmacro()

set(KVP_HAS_CUDA OFF)
if(NOT KVP_CUDA STREQUAL OFF)
  set(CMAKE_CUDA_ARCHITECTURES 80-real)  # for checking that nvcc works
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
    kvp_find_nvcc_wheels()
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25.1 does not know nvcc's
    endif()
    set(kvp_architectures ${KVP_CUDA_ARCHITECTURES})
    if(NOT kvp_architectures)
      set(kvp_architectures 80-real 86-real 89-real 90a-real 90-virtual)
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
        list(APPEND kvp_architectures 100a-real 120-real)
      endif()
    endif()
    set(KVP_HAS_CUDA ON)
  elseif(KVP_CUDA STREQUAL ON)
    message(FATAL_ERROR
      "KVP_CUDA is ON and no nvcc was found. Install the CUDA toolkit 12.4 or newer, or into the\n"
      "Python environment of this build:\n"
      "  pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime "
      "nvidia-cuda-cccl\nor name it with -DCMAKE_CUDA_COMPILER=.../nvcc.")
  else()
    message(STATUS "No nvcc: kvp is built without its CUDA backend (KVP_CUDA=ON insists)")
  endif()
endif()

function(kvp_add_cuda target)
  add_library(kvp_cuda OBJECT
    csrc/cuda/evict_bf16.cu
    csrc/cuda/evict_fp16.cu
    csrc/cuda/finish.cu
    csrc/cuda/launch.cu
    csrc/cuda/plan.cpp)
  target_include_directories(kvp_cuda PRIVATE csrc csrc/include)
  # The driver is not needed to load the library: it says what is missing when it is used.
  set_target_properties(
    kvp_cuda PROPERTIES CUDA_ARCHITECTURES "${kvp_architectures}" CUDA_STANDARD 20
                        CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Static
                        POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                        CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(kvp_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda>)
  if(KVP_WERROR)
    # A kernel that spills registers is a defect.
    target_compile_options(
      kvp_cuda PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror=all-warnings -Xptxas=--warn-on-spills,--warning-as-error,-v>")
  endif()
  list(JOIN kvp_architectures " " architectures)
  set_source_files_properties(csrc/cuda/launch.cu PROPERTIES
                              COMPILE_DEFINITIONS "KVP_ARCHITECTURES=\"${architectures}\"")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:kvp_cuda>)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_compile_definitions(${target} PRIVATE KVP_HAS_CUDA)
  # What `make cuda` asks about launches: plan.cpp is host code, and needs no GPU.
  add_executable(cuda_plan EXCLUDE_FROM_ALL bench/cuda_plan.cpp csrc/cuda/plan.cpp
                 csrc/host/error.cpp csrc/host/policy.cpp csrc/host/policy_fragments.cpp
                 csrc/host/rows.cpp)
  target_include_directories(cuda_plan PRIVATE csrc csrc/include)
  target_link_libraries(cuda_plan PRIVATE kvp_options)
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart_static)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
  endif()
  add_executable(evict_cuda EXCLUDE_FROM_ALL examples/evict_cuda.cu)
  target_link_libraries(evict_cuda PRIVATE ${target})
  set_target_properties(evict_cuda PROPERTIES CUDA_ARCHITECTURES "${kvp_architectures}"
                                              CUDA_RUNTIME_LIBRARY Static)
endfunction()
