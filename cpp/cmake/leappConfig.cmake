# find_package(leapp): header-only, so there is nothing to link but what it stands on.
#
#   leapp::leapp         reads, checks and plans bundles; needs libyaml
#   leapp::onnxruntime   and runs them with ONNX Runtime
#   leapp::openvino      and runs them with OpenVINO
#   leapp::signatures    checks who signed them (Options::trust); needs OpenSSL 3
#
# All but the first exist when their library is found; name those you need as COMPONENTS. Where CMake does not find a library, say
# ONNXRUNTIME_ROOT, YAML_ROOT, OpenVINO_DIR or OPENSSL_ROOT_DIR.
include(CMakeFindDependencyMacro)

foreach(_leapp_up ".." "../../..")
  if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/${_leapp_up}/include/leapp/leapp.hpp")
    get_filename_component(_leapp_include "${CMAKE_CURRENT_LIST_DIR}/${_leapp_up}/include" ABSOLUTE)
    break()
  endif()
endforeach()

if(NOT TARGET leapp::leapp)
  find_path(YAML_INCLUDE_DIR yaml.h HINTS ${YAML_ROOT} PATH_SUFFIXES include)
  find_library(YAML_LIBRARY yaml HINTS ${YAML_ROOT} PATH_SUFFIXES lib lib/${CMAKE_LIBRARY_ARCHITECTURE})
  if(NOT YAML_INCLUDE_DIR OR NOT YAML_LIBRARY)
    set(leapp_FOUND FALSE)
    set(leapp_NOT_FOUND_MESSAGE "libyaml is missing: apt install libyaml-dev, or set YAML_ROOT.")
    return()
  endif()
  find_dependency(Threads)
  add_library(leapp::leapp INTERFACE IMPORTED)
  set_target_properties(leapp::leapp PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_leapp_include};${YAML_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${YAML_LIBRARY};Threads::Threads"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()

if(NOT TARGET leapp::onnxruntime)
  find_path(ONNXRUNTIME_INCLUDE_DIR onnxruntime_c_api.h HINTS ${ONNXRUNTIME_ROOT}
    PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session)
  find_library(ONNXRUNTIME_LIBRARY onnxruntime HINTS ${ONNXRUNTIME_ROOT} PATH_SUFFIXES lib)
  if(ONNXRUNTIME_INCLUDE_DIR AND ONNXRUNTIME_LIBRARY)
    add_library(leapp::onnxruntime INTERFACE IMPORTED)
    set_target_properties(leapp::onnxruntime PROPERTIES
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${ONNXRUNTIME_INCLUDE_DIR}"
      INTERFACE_INCLUDE_DIRECTORIES "${ONNXRUNTIME_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "leapp::leapp;${ONNXRUNTIME_LIBRARY}")
  endif()
endif()

if(NOT TARGET leapp::openvino)
  find_package(OpenVINO QUIET COMPONENTS Runtime)
  if(OpenVINO_FOUND)
    add_library(leapp::openvino INTERFACE IMPORTED)
    set_target_properties(leapp::openvino PROPERTIES INTERFACE_LINK_LIBRARIES "leapp::leapp;openvino::runtime")
  endif()
endif()

if(NOT TARGET leapp::signatures)
  find_package(OpenSSL 3 QUIET COMPONENTS Crypto)
  if(OpenSSL_FOUND)
    add_library(leapp::signatures INTERFACE IMPORTED)
    set_target_properties(leapp::signatures PROPERTIES
      INTERFACE_COMPILE_DEFINITIONS LEAPP_SIGNATURES
      INTERFACE_LINK_LIBRARIES "leapp::leapp;OpenSSL::Crypto")
  endif()
endif()

set(leapp_FOUND TRUE)
foreach(_leapp_component ${leapp_FIND_COMPONENTS})
  if(TARGET leapp::${_leapp_component})
    set(leapp_${_leapp_component}_FOUND TRUE)
  elseif(leapp_FIND_REQUIRED_${_leapp_component})
    set(leapp_FOUND FALSE)
    set(leapp_NOT_FOUND_MESSAGE "${_leapp_component} is missing: set ONNXRUNTIME_ROOT, OpenVINO_DIR or OPENSSL_ROOT_DIR.")
  endif()
endforeach()
