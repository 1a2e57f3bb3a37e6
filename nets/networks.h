// Constructors of the networks, one per file; nets/registry.cpp lists them.
#pragma once
#include "nets/network.h"

namespace convoy {

std::unique_ptr<Network> make_bisenet(const NetworkOptions& options, const Scope& scope);
std::unique_ptr<Network> make_deeplabv3_plus(const NetworkOptions& options, const Scope& scope);
std::unique_ptr<Network> make_fast_scnn(const NetworkOptions& options, const Scope& scope);

}  // namespace convoy
