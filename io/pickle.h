// Python's pickle format, protocols 0 to 5, read into a plain tree. Nothing is ever executed: a class or function is a
// name, a call of it is recorded as an object with its arguments, and names that the caller does not admit are errors.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

using PickleId = uint32_t;  ///< index of a node in its document
inline constexpr PickleId kNoPickle = UINT32_MAX;

enum class PickleKind : uint8_t {
  kNone,
  kBool,        ///< integer
  kInt,         ///< integer
  kBigInt,      ///< beyond 64 bits; text: little-endian two's complement
  kFloat,       ///< real
  kString,      ///< text (UTF-8, or the raw bytes that Python 2 wrote)
  kBytes,       ///< text
  kTuple,       ///< items
  kList,        ///< items
  kSet,         ///< items
  kDict,        ///< items: key, value, key, value, ... in order of insertion
  kGlobal,      ///< text: "module.name"
  kObject,      ///< a call that was not made: callable, args, state; items of what was appended or set afterwards
  kPersistent,  ///< what lies outside of the pickle; args says which
};

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  bool pairs = false;             ///< of an object: items are keys and values
  PickleId callable = kNoPickle;  ///< of an object: usually a kGlobal
  PickleId args = kNoPickle;      ///< of an object: a tuple; of a persistent: any
  PickleId state = kNoPickle;     ///< what BUILD gave an object or dict
  union {
    int64_t integer = 0;
    double real;
  };
  std::string_view text;  ///< borrowed from the pickle's bytes or from the document
  std::vector<PickleId> items;
};

/// A pickle's nodes. They may share parts and contain themselves, as Python's objects may.
class PickleDocument {
 public:
  const PickleNode& operator[](PickleId id) const { return nodes_[id]; }
  const PickleNode& root() const { return nodes_[root_]; }
  PickleId root_id() const { return root_; }
  size_t size() const { return nodes_.size(); }
  uint64_t bytes() const { return bytes_; }  ///< of the pickle, STOP included

 private:
  friend class PickleMachine;
  std::vector<PickleNode> nodes_;
  std::deque<std::string> texts_;  ///< what is not in the pickle's bytes word for word
  PickleId root_ = 0;
  uint64_t bytes_ = 0;
};

/// Throws Error for a class or function that is not admitted.
using PickleFilter = std::function<void(std::string_view module, std::string_view name)>;

struct PickleSource {
  std::string_view bytes;  ///< the pickle begins here; it may end before the bytes do. Must outlive the document
  std::string what;        ///< for messages: file, and part of it
  uint64_t offset = 0;     ///< of the bytes in the file, for messages
};

/// Reads one pickle. Throws Error naming file, offset and what is wrong for anything malformed, unknown or absurd.
/// Memory is bounded by about a hundred times the pickle's bytes, and by kMaxPickleNodes nodes.
PickleDocument read_pickle(const PickleSource& source, const PickleFilter& filter);

inline constexpr size_t kMaxPickleNodes = size_t{4} << 20;

}  // namespace convoy
