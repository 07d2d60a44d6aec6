# Compiles csrc/cpu/score.cpp once for every instruction set that the target's processor family
# offers. KVP_ISA names the namespace of each copy, and csrc/cpu/isa.cpp chooses at run time.
function(kvp_add_score_isas target)
  set(isas baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND isas v3 v4)
  endif()
  foreach(isa IN LISTS isas)
    add_library(kvp_score_${isa} OBJECT csrc/cpu/score.cpp)
    target_compile_definitions(kvp_score_${isa} PRIVATE KVP_ISA=${isa})
    if(NOT isa STREQUAL baseline)
      target_compile_options(kvp_score_${isa} PRIVATE -march=x86-64-${isa})
    endif()
    target_include_directories(kvp_score_${isa} PRIVATE csrc csrc/include)
    target_link_libraries(kvp_score_${isa} PRIVATE kvp_options)
    set_target_properties(
      kvp_score_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                  VISIBILITY_INLINES_HIDDEN ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:kvp_score_${isa}>)
  endforeach()
endfunction()
