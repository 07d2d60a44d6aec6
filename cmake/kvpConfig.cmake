# libkvp hides its dependencies: linking kvp::kvp is all a consumer does.
include(${CMAKE_CURRENT_LIST_DIR}/kvpTargets.cmake)
