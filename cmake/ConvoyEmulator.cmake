# Device `emulated` of the library: kernels/*.cu compiled by g++ against kernels/emulator/, which runs them on the CPU.
set(emulator_sources ${PROJECT_SOURCE_DIR}/kernels/emulator)
set(emulator_runtime fibers.cpp barriers.cpp grid.cpp runtime.cpp streams.cpp stream_order.cpp)
list(TRANSFORM emulator_runtime PREPEND ${emulator_sources}/)

# g++ takes a .cu file as C++ only by -x c++, for which CMake has no per-target switch: each gets a .cpp file that
# includes it.
function(convoy_as_cpp result)
  set(wrapped)
  foreach(source ${ARGN})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
    set(wrapper ${PROJECT_BINARY_DIR}/emulated/${name}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${name}\"\n")
    list(APPEND wrapped ${wrapper})
  endforeach()
  set(${result} ${wrapped} PARENT_SCOPE)
endfunction()
file(GLOB emulator_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
convoy_as_cpp(emulator_kernels ${emulator_kernels})

set(emulated_kernel_flags -O2 -g -Wno-unknown-pragmas -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND emulated_kernel_flags -mfma)  # kernels use fma freely; without the instruction it is a slow call
endif()

add_library(convoy_emulator OBJECT ${emulator_runtime})
target_compile_options(convoy_emulator PRIVATE -O2 -g)
target_link_libraries(convoy_emulator PUBLIC convoy_options OpenMP::OpenMP_CXX)
add_library(convoy_emulated_kernels OBJECT ${emulator_kernels})
target_compile_options(convoy_emulated_kernels PRIVATE ${emulated_kernel_flags})
target_link_libraries(convoy_emulated_kernels PUBLIC convoy_options)
