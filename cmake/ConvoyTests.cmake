# tests/<tier>/*.cpp is one Catch2 program, test_<tier>; the Catch2 main is compiled once.
find_package(Catch2 2 REQUIRED)
add_library(convoy_catch_main OBJECT ${PROJECT_SOURCE_DIR}/tests/catch_main.cpp)
target_link_libraries(convoy_catch_main PUBLIC Catch2::Catch2)
file(GLOB tiers CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/tests/*)
foreach(tier_path ${tiers})
  file(GLOB sources CONFIGURE_DEPENDS ${tier_path}/*.cpp)
  get_filename_component(tier ${tier_path} NAME)
  if(IS_DIRECTORY ${tier_path} AND sources AND NOT tier MATCHES "^(emulator|export|ranks)$")
    add_executable(test_${tier} ${sources})
    target_link_libraries(test_${tier} PRIVATE convoy_catch_main convoy)
    if(tier MATCHES "^(apps|nets)$" AND TARGET convoy_trainer)
      target_link_libraries(test_${tier} PRIVATE convoy_trainer)
    endif()
    target_compile_definitions(test_${tier} PRIVATE CONVOY_TEST_DIR="${PROJECT_SOURCE_DIR}/tests")
    add_test(NAME ${tier} COMMAND test_${tier})
    set_tests_properties(${tier} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive")
  endif()
endforeach()
if(TARGET convoy_cli)
  add_test(NAME cli COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/test_cli.sh $<TARGET_FILE:convoy_cli>)
  set_tests_properties(cli PROPERTIES TIMEOUT 600 LABELS slow)
endif()

# Networks as Python files, without PyTorch and with it.
if(TARGET convoy_cli)
  add_test(NAME export COMMAND ${PROJECT_SOURCE_DIR}/tests/export/test_export.sh $<TARGET_FILE:convoy_cli>)
  add_executable(export_cases ${PROJECT_SOURCE_DIR}/tests/export/export_cases.cpp)
  target_link_libraries(export_cases PRIVATE convoy_trainer)
  set(CONVOY_TORCH_PYTHON python3 CACHE STRING "Python whose PyTorch exported networks are compared with, if it has one")
  add_test(NAME export_torch COMMAND ${CONVOY_TORCH_PYTHON} ${PROJECT_SOURCE_DIR}/bench/torch_peer/check_export.py
                                     --convoy $<TARGET_FILE:convoy_cli> --cases $<TARGET_FILE:export_cases> --quick)
  set_tests_properties(export export_torch PROPERTIES TIMEOUT 1200 LABELS slow)
  set_tests_properties(export_torch PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive")
endif()

# Real processes: our own launcher, mpirun, and mpirun where the ranks act as if they were on two hosts.
add_executable(rank_program ${PROJECT_SOURCE_DIR}/tests/ranks/rank_program.cpp)
target_link_libraries(rank_program PRIVATE convoy)
foreach(way own mpirun hosts)
  add_test(NAME ranks_${way} COMMAND ${PROJECT_SOURCE_DIR}/tests/ranks/test_ranks.sh $<TARGET_FILE:rank_program> ${way} ${MPIEXEC_EXECUTABLE})
  set_tests_properties(ranks_${way} PROPERTIES TIMEOUT 600 LABELS slow SKIP_RETURN_CODE 77
                                               ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive")
endforeach()
# Faults during a training by the real program.
if(TARGET convoy_cli)
  add_library(late_files MODULE ${PROJECT_SOURCE_DIR}/tests/ranks/late_files.cpp)
  target_link_libraries(late_files PRIVATE ${CMAKE_DL_LIBS})
  add_test(NAME ranks_faults COMMAND ${PROJECT_SOURCE_DIR}/tests/ranks/test_faults.sh $<TARGET_FILE:convoy_cli>
                                     $<TARGET_FILE:late_files> ${MPIEXEC_EXECUTABLE})
  set_tests_properties(ranks_faults PROPERTIES TIMEOUT 600 LABELS slow ENVIRONMENT "OMP_WAIT_POLICY=passive")
endif()

# Whole runs of the program: what the number of ranks changes, and what a killed run loses.
if(TARGET convoy_cli)
  add_executable(compare_runs ${PROJECT_SOURCE_DIR}/tests/ranks/compare_runs.cpp)
  target_link_libraries(compare_runs PRIVATE convoy)
  set(run_programs $<TARGET_FILE:convoy_cli> $<TARGET_FILE:compare_runs>)
  add_test(NAME ranks_exact
           COMMAND ${PROJECT_SOURCE_DIR}/tests/ranks/test_exact.sh ${run_programs} ${MPIEXEC_EXECUTABLE})
  add_test(NAME ranks_kill_resume COMMAND ${PROJECT_SOURCE_DIR}/tests/ranks/kill_and_resume.sh ${run_programs} 6 1)
  add_test(NAME ranks_emulated COMMAND ${PROJECT_SOURCE_DIR}/tests/ranks/test_emulated.sh ${run_programs})
  set_tests_properties(ranks_exact ranks_kill_resume ranks_emulated PROPERTIES TIMEOUT 600 LABELS slow)
endif()

add_test(NAME check_includes COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-includes)
add_test(NAME check_includes_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-includes --self-test)

# Other versions of clang-format break lines elsewhere.
find_program(CONVOY_CLANG_FORMAT NAMES clang-format-14 clang-format)
mark_as_advanced(CONVOY_CLANG_FORMAT)
if(CONVOY_CLANG_FORMAT)
  execute_process(COMMAND ${CONVOY_CLANG_FORMAT} --version OUTPUT_VARIABLE clang_format_version)
  if(clang_format_version MATCHES "version 14\\.")
    add_test(NAME format COMMAND ${PROJECT_SOURCE_DIR}/scripts/format --check)
  endif()
endif()

# The library as another project sees it: installed, found by find_package, linked, run.
if(NOT CONVOY_SANITIZE)
  set(install_prefix ${PROJECT_BINARY_DIR}/install_test/prefix)
  add_test(NAME install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${install_prefix})
  set_tests_properties(install PROPERTIES FIXTURES_SETUP installed)
  add_test(NAME install_consumer
           COMMAND ${CMAKE_CTEST_COMMAND}
                   --build-and-test ${PROJECT_SOURCE_DIR}/tests/install/consumer ${PROJECT_BINARY_DIR}/install_test/consumer
                   --build-generator ${CMAKE_GENERATOR}
                   --build-options -DCMAKE_PREFIX_PATH=${install_prefix} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
                                   -DCMAKE_EXE_LINKER_FLAGS=${CMAKE_EXE_LINKER_FLAGS}
                   --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure)
  set_tests_properties(install_consumer PROPERTIES FIXTURES_REQUIRED installed LABELS slow TIMEOUT 600)
endif()

# The engine once more by the portable kernels: other layouts, other plans.
if(TARGET test_engine)
  add_test(NAME engine_base COMMAND test_engine)
  set_tests_properties(engine_base PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=passive;CONVOY_ISA=base")
endif()

# Operators and networks through the CUDA kernels, run by the emulator.
if(TARGET test_engine)
  add_test(NAME engine_emulated COMMAND test_engine [device])
  set_tests_properties(engine_emulated PROPERTIES
                       ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive;CONVOY_TEST_DEVICE=emulated")
endif()
if(TARGET test_nets)
  add_test(NAME nets_emulated COMMAND test_nets [emulated])
  set_tests_properties(nets_emulated PROPERTIES TIMEOUT 900 LABELS slow
                       ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive")
endif()
