// The parts of an exported file that are the same for all networks.
#pragma once
#include <string>

namespace convoy {

extern const char* const kTorchImports;  ///< behind the file's docstring
/// Definitions of the functions that `lines` call and PyTorch does not have: operators that are several of its own.
std::string torch_functions(const std::string& lines);
/// Whether one of these functions has the name; a variable must not.
bool is_torch_function(const std::string& name);
extern const char* const kTorchProgram;  ///< behind the class Net: the file as a program

}  // namespace convoy
