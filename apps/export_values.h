// What Convoy computes with a network, for comparison with the network as a Python file (apps/export_torch.h).
#pragma once
#include <filesystem>

#include "apps/export_torch.h"

namespace convoy {

/// Writes a .safetensors file: all parameters and buffers under their own names, so that the file is one of weights
/// too, and beside them check.image, check.target and, for PASS in eval, frozen and train (Mode, without dropout)
/// check.PASS.out0..., check.PASS.loss, check.PASS.grad.PARAMETER and, of train, check.train.state.BUFFER after the
/// pass. Weights are drawn as a training with `seed` draws them; what starts as a constant (norms, their statistics,
/// gates) is then moved by up to a tenth, so that nothing is left out. Throws Error where the size does not fit the
/// network.
void export_values(const std::filesystem::path& file, const TorchExport& what, int64_t batch, const LossFunction& loss,
                   const ContextOptions& options, uint64_t seed);

}  // namespace convoy
