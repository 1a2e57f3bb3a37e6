# kernels/*.cu: compiled for GPUs into the library convoy_cuda where nvcc is found, and run on the CPU by the emulator
# in the tests, which needs no CUDA. CONVOY_CUDA: AUTO (when nvcc is found), ON (it must be), OFF.
#
# nvcc is called by own rules rather than by CMake's CUDA language: that way the same compilation also writes what
# ptxas reports on registers and spills (build/cuda/<kernel>.ptxas), and any pair of CMake and CUDA versions works.
if(NOT CONVOY_CUDA STREQUAL OFF)
  find_program(CONVOY_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin
               DOC "CUDA compiler")
  mark_as_advanced(CONVOY_NVCC)
endif()
if(CONVOY_CUDA STREQUAL ON AND NOT CONVOY_NVCC)
  message(FATAL_ERROR "CONVOY_CUDA=ON, but nvcc was not found. Install the CUDA Toolkit, 12.4 or later "
                      "(Debian: nvidia-cuda-toolkit, or NVIDIA's packages), set CUDA_PATH or "
                      "-DCONVOY_NVCC=/path/to/nvcc, or configure with -DCONVOY_CUDA=OFF.")
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
set(CONVOY_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures, each as machine code; the first also as PTX")
if(CONVOY_CUDA STREQUAL OFF)
  message(STATUS "CUDA: switched off")
elseif(NOT CONVOY_NVCC)
  message(STATUS "CUDA: nvcc not found, built for CPUs only")
elseif(CONVOY_SANITIZE)
  message(STATUS "CUDA: left out of sanitizer builds")
elseif(cuda_sources)
  message(STATUS "CUDA: ${CONVOY_NVCC}, architectures ${CONVOY_CUDA_ARCHITECTURES}")
  list(GET CONVOY_CUDA_ARCHITECTURES 0 first)
  set(gencode -gencode arch=compute_${first},code=compute_${first})
  foreach(architecture ${CONVOY_CUDA_ARCHITECTURES})
    list(APPEND gencode -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  set(nvcc_flags -std=c++20 -O3 ${gencode} -Xptxas -v -ccbin ${CMAKE_CXX_COMPILER} -I${PROJECT_SOURCE_DIR}
                 -Xcompiler=-fPIC,-Wall,-Wextra)
  if(CONVOY_WERROR)
    list(APPEND nvcc_flags -Werror all-warnings -Xcompiler=-Werror)
  endif()
  set(cuda_objects)
  set(cuda_reports)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  foreach(source ${cuda_sources})
    get_filename_component(name ${source} NAME_WE)
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    set(report ${PROJECT_BINARY_DIR}/cuda/${name}.ptxas)
    add_custom_command(
      OUTPUT ${object} ${report}
      COMMAND sh -c "\"$@\" 2> \"$0\" || { cat \"$0\" >&2; exit 1; }" ${report}
              ${CONVOY_NVCC} ${nvcc_flags} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Compiling kernels/${name}.cu for GPUs"
      VERBATIM)
    list(APPEND cuda_objects ${object})
    file(STRINGS ${source} kernels REGEX "__global__")
    if(kernels)
      list(APPEND cuda_reports ${report})
    endif()
  endforeach()
  add_library(convoy_cuda STATIC ${cuda_objects})
  set_target_properties(convoy_cuda PROPERTIES LINKER_LANGUAGE CXX)
endif()

if(CONVOY_BUILD_TESTS)
  enable_testing()
  include(ConvoyEmulatorTests)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(TARGET convoy_cuda AND Python3_FOUND)
    add_test(NAME cuda_ptxas_budgets
             COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/emulator/check_ptxas.py
                     ${PROJECT_SOURCE_DIR}/tests/emulator/ptxas_budgets.json ${cuda_reports})
  endif()
endif()
