# The CUDA kernels on the CPU: kernels/*.cu and tests/emulator/*.cu compiled by g++ against kernels/emulator/, in
# flavours. ctest names: emulator_<program>_<flavour>.
#   plain  optimised
#   check  every load and store goes through the checker: races, bounds, uninitialised reads
#   asan   AddressSanitizer, a second opinion on bounds; the kernels' tests only with -DCONVOY_EMULATOR_ASAN=ON
#   ucontext  stacks switched by the C library, as on processors other than x86-64; the self-test only
option(CONVOY_EMULATOR_ASAN "Also run the kernels' emulator tests under AddressSanitizer" OFF)

if(CONVOY_SANITIZE)
  message(STATUS "Emulator tests: left out, they bring their own sanitizer flavours")
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  message(STATUS "Emulator tests: left out, the checker stands on g++'s instrumentation (compiler: ${CMAKE_CXX_COMPILER_ID})")
  return()
endif()

set(emulator_checker ${emulator_sources}/check.cpp ${emulator_sources}/check_hooks.cpp)
set(emulator_tests ${PROJECT_SOURCE_DIR}/tests/emulator)

convoy_as_cpp(emulator_bugs ${emulator_tests}/planted_bugs.cu ${emulator_tests}/stream_bugs.cu)

# The emulated kernels run beside their CPU twins, which must not be instrumented.
set(emulator_cpu_objects)
foreach(part convoy_kernels convoy_kernels_base convoy_kernels_avx512)
  if(TARGET ${part})
    list(APPEND emulator_cpu_objects $<TARGET_OBJECTS:${part}>)
  endif()
endforeach()

# convoy_emulator_flavour(<name> [SELF_ONLY] RUNTIME <flags> KERNELS <flags> LINK <flags> CHECKER <files>)
function(convoy_emulator_flavour flavour)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SELF_ONLY" "" "RUNTIME;KERNELS;LINK;CHECKER")
  add_library(convoy_emulator_${flavour} OBJECT ${emulator_runtime} ${arg_CHECKER})
  target_compile_options(convoy_emulator_${flavour} PRIVATE -O2 -g ${arg_RUNTIME})
  set(instrumented bugs)
  add_library(convoy_emulated_bugs_${flavour} OBJECT ${emulator_bugs})
  if(NOT arg_SELF_ONLY AND arg_KERNELS)
    add_library(convoy_emulated_kernels_${flavour} OBJECT ${emulator_kernels})
    list(APPEND instrumented kernels)
    set(emulated_kernels convoy_emulated_kernels_${flavour})
  else()
    set(emulated_kernels convoy_emulated_kernels)  # as the library has them
  endif()
  foreach(part ${instrumented})
    target_compile_options(convoy_emulated_${part}_${flavour} PRIVATE ${emulated_kernel_flags} ${arg_KERNELS})
    target_link_libraries(convoy_emulated_${part}_${flavour} PUBLIC convoy_options)
  endforeach()
  target_link_libraries(convoy_emulator_${flavour} PUBLIC convoy_options OpenMP::OpenMP_CXX)

  # Objects are linked in the order written. Of an inline function that several objects hold the linker keeps the first
  # copy, so what must not call an instrumented one comes first.
  function(program name)
    cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;OBJECTS")
    add_executable(test_emulator_${name}_${flavour} $<TARGET_OBJECTS:convoy_emulator_${flavour}> ${program_OBJECTS}
                                                    ${program_SOURCES})
    target_compile_options(test_emulator_${name}_${flavour} PRIVATE ${arg_RUNTIME})
    target_compile_definitions(test_emulator_${name}_${flavour} PRIVATE CONVOY_TEST_DIR="${PROJECT_SOURCE_DIR}/tests")
    target_link_options(test_emulator_${name}_${flavour} PRIVATE ${arg_LINK})
    target_link_libraries(test_emulator_${name}_${flavour} PRIVATE convoy_catch_main convoy_options convoy_dependencies)
    add_test(NAME emulator_${name}_${flavour} COMMAND test_emulator_${name}_${flavour})
    set_tests_properties(emulator_${name}_${flavour} PROPERTIES TIMEOUT 300 ENVIRONMENT
                         "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive;ASAN_OPTIONS=detect_leaks=0")
    if(NOT flavour STREQUAL plain)
      set_tests_properties(emulator_${name}_${flavour} PROPERTIES LABELS slow)
    endif()
  endfunction()
  program(self SOURCES ${emulator_tests}/test_planted_bugs.cpp ${emulator_tests}/test_stream_bugs.cpp
                       ${emulator_tests}/test_cuda_types.cpp
               OBJECTS $<TARGET_OBJECTS:convoy_emulated_bugs_${flavour}>)
  if(NOT arg_SELF_ONLY)
    file(GLOB sources CONFIGURE_DEPENDS ${emulator_tests}/test_*.cpp)
    list(FILTER sources EXCLUDE REGEX "test_(planted_bugs|stream_bugs|cuda_types)\\.cpp$")
    program(twins SOURCES ${sources}
                  OBJECTS ${emulator_cpu_objects} $<TARGET_OBJECTS:${emulated_kernels}>)
  endif()
endfunction()

convoy_emulator_flavour(plain)
convoy_emulator_flavour(check
  KERNELS -fsanitize=thread,alignment,bounds,signed-integer-overflow,shift -Wno-tsan
  CHECKER ${emulator_checker})
if(CONVOY_EMULATOR_ASAN)
  set(asan_extent)
else()
  set(asan_extent SELF_ONLY)
endif()
convoy_emulator_flavour(asan ${asan_extent}
  RUNTIME -fsanitize=address
  KERNELS -fsanitize=address,alignment,bounds -fno-sanitize-recover=alignment,bounds
  LINK -fsanitize=address,undefined -static-libasan)
convoy_emulator_flavour(ucontext SELF_ONLY RUNTIME -DCONVOY_EMULATOR_UCONTEXT)
