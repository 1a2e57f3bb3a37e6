// What the CUDA kernels should take on GPUs, by their bytes and FLOPs alone: bench/ROOFLINE.md.
#pragma once
#include <string>

namespace convoy {

/// The document: every device kernel of the built-in set at one size, and the update of parameters. Nothing is run.
std::string roofline_document();

}  // namespace convoy
