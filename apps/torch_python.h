// The parts of an exported file that are the same for all networks.
#pragma once

namespace convoy {

extern const char* const kTorchImports;  ///< behind the file's docstring
extern const char* const kTorchProgram;  ///< behind the class Net: the file as a program

}  // namespace convoy
