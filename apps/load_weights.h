// Weights of a file into a network: which tensor of the file is which of the network, said in a table.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/param_store.h"
#include "io/weights_file.h"

namespace convoy {

/// A tensor that a network has, by the name under which a file is to have it.
struct WantedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string stored = name;  ///< whose storage it is: a shared parameter is wanted under several names
  bool counted = true;        ///< whether its absence matters
};

/// How the names in a file and those of a network go together.
struct WeightMatch {
  struct Pair {
    size_t file_tensor = 0;  ///< index in WeightsFile::tensors()
    size_t wanted = 0;       ///< index in the wanted ones
  };
  std::string container;                ///< "state_dict/": where in the file the weights are; "": outermost
  std::string taken_off, put_before;    ///< prefixes that lead from the file's names to the network's
  std::vector<Pair> matched;            ///< equal name and shape
  std::vector<Pair> other_shape;        ///< equal name only
  std::vector<size_t> missing;          ///< wanted, and not in the file
  std::vector<std::string> unexpected;  ///< in the file (in its container), and not wanted
};

/// Finds the container and the prefixes (module., model., backbone., encoder., ...) by which most tensors of the file
/// find their place: the same name and shape.
WeightMatch match_weights(const WeightsFile& file, const std::vector<WantedTensor>& wanted);

/// How many of the counted wanted tensors the file has in the right shape; a shared parameter counts once.
struct MatchCount {
  size_t found = 0, all = 0;
};
MatchCount count_matched(const WeightMatch& match, const std::vector<WantedTensor>& wanted);

/// The match in words, a line for each rule and each tensor that found no partner (at most `lines` of each sort).
std::string match_table(const WeightMatch& match, const WeightsFile& file, const std::vector<WantedTensor>& wanted,
                        size_t lines = 10);

/// Which tensors are loaded, and how many of them the file must have. Counters of steps (num_batches_tracked) are not
/// counted: old files lack them, and they change nothing.
struct LoadOptions {
  std::string within;        ///< only parameters and buffers whose names begin so ("encoder.")
  std::string spare;         ///< names that begin so are not counted ("encoder.fc."); "": all are
  double least_share = 0.5;  ///< of the counted tensors that the file must have; fewer are an error
  bool whole = false;        ///< every tensor is needed, except those of auxiliary heads (and counters)
  /// What to do when the weights do not fit, for the message; asked only then.
  std::function<std::string(const WeightMatch&)> advice;
};

/// The tensors that load_weights wants of a file.
std::vector<WantedTensor> wanted_tensors(const ParamStore& store, const LoadOptions& options);

/// Copies weights and running statistics of the file into the store, converted to the store's types. What the file
/// does not have keeps its value. Returns the match table. Throws Error where too few tensors match, where a tensor
/// holds complex numbers, and where the file has two values for one shared parameter.
std::string load_weights(const WeightsFile& file, ParamStore& store, const LoadOptions& options);

}  // namespace convoy
