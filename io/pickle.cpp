#include "io/pickle.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "engine/error.h"
#include "io/pickle_ops.h"
#include "io/pickle_text.h"

namespace convoy {
namespace {

constexpr size_t kMaxIntegerBytes = 1024;

}  // namespace

using namespace pickle_ops;

class PickleMachine {
 public:
  PickleMachine(const PickleSource& source, const PickleFilter& filter) : source_(source), filter_(filter) {
    none_ = add(PickleKind::kNone);
    false_ = add(PickleKind::kBool);
    true_ = add(PickleKind::kBool);
    node(true_).integer = 1;
    empty_tuple_ = add(PickleKind::kTuple);
  }

  PickleDocument run() {
    while (step()) continue;
    if (stack_.size() != 1 || !marks_.empty()) bad("the pickle ends with {} values on its stack", stack_.size());
    document_.root_ = stack_[0];
    document_.bytes_ = position_;
    return std::move(document_);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: damaged, or not what its beginning says: byte {}: {}", source_.what, source_.offset + operation_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  PickleNode& node(PickleId id) { return document_.nodes_[id]; }

  PickleId add(PickleKind kind) {
    if (document_.nodes_.size() >= kMaxPickleNodes) bad("more than {} values", kMaxPickleNodes);
    document_.nodes_.emplace_back().kind = kind;
    return static_cast<PickleId>(document_.nodes_.size() - 1);
  }

  // Bytes of the pickle.
  std::string_view take(uint64_t count) {
    const uint64_t left = source_.bytes.size() - position_;
    if (count > left) bad("{} bytes are to follow, the file has {}: truncated", count, left);
    const std::string_view bytes = source_.bytes.substr(position_, count);
    position_ += count;
    return bytes;
  }
  uint64_t number(size_t width) {
    const std::string_view bytes = take(width);
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = source_.bytes.find('\n', position_);
    if (end == std::string_view::npos) bad("a line has no end: truncated");
    const std::string_view text = source_.bytes.substr(position_, end - position_);
    position_ = end + 1;
    return text;
  }
  template <class T>
  T parse(std::string_view text) {
    T value{};
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size()) bad("'{}' is no number", text.substr(0, 40));
    return value;
  }

  // The stack.
  void push(PickleId id) { stack_.push_back(id); }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleId pop() {
    if (stack_.size() <= floor()) bad("a value is to be taken from an empty stack");
    const PickleId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  PickleId top() const {
    if (stack_.size() <= floor()) bad("the stack is empty");
    return stack_.back();
  }
  /// The values above the last mark, which are taken off.
  std::vector<PickleId> pop_to_mark() {
    if (marks_.empty()) bad("there is no mark");
    const size_t from = marks_.back();
    marks_.pop_back();
    std::vector<PickleId> values(stack_.begin() + static_cast<ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    return values;
  }

  // Values.
  void push_integer(int64_t value) {
    const PickleId id = add(PickleKind::kInt);
    node(id).integer = value;
    push(id);
  }
  void push_real(double value) {
    const PickleId id = add(PickleKind::kFloat);
    node(id).real = value;
    push(id);
  }
  void push_text(PickleKind kind, std::string_view text) {
    const PickleId id = add(kind);
    node(id).text = text;
    push(id);
  }
  std::string_view keep(std::string text) { return document_.texts_.emplace_back(std::move(text)); }
  void push_items(PickleKind kind, std::vector<PickleId> items) {
    const PickleId id = add(kind);
    node(id).items = std::move(items);
    push(id);
  }
  void push_pairs(std::vector<PickleId> items) {
    if (items.size() % 2) bad("a key has no value");
    push_items(PickleKind::kDict, std::move(items));
  }
  void push_tuple(size_t count) {
    std::vector<PickleId> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_items(PickleKind::kTuple, std::move(items));
  }
  void push_long(std::string_view bytes) {
    if (bytes.size() > kMaxIntegerBytes) bad("a whole number of {} bytes", bytes.size());
    if (bytes.size() > 8) return push_text(PickleKind::kBigInt, bytes);
    uint64_t value = !bytes.empty() && (bytes.back() & 0x80) ? ~uint64_t{0} : 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    push_integer(static_cast<int64_t>(value));
  }
  void push_global(std::string_view module, std::string_view name) {
    constexpr size_t kMaxName = 256;
    if (module.size() > kMaxName || name.size() > kMaxName) bad("a class has a name of more than {} bytes", kMaxName);
    filter_(module, name);
    push_text(PickleKind::kGlobal, keep(fmt::format("{}.{}", module, name)));
  }
  void push_object(PickleId callable, PickleId args) {
    const PickleKind kind = node(callable).kind;
    if (kind != PickleKind::kGlobal) bad("a call of something that is no class or function");
    if (node(args).kind != PickleKind::kTuple) bad("the arguments of {} are no tuple", node(callable).text);
    const PickleId id = add(PickleKind::kObject);
    node(id).callable = callable;
    node(id).args = args;
    push(id);
  }

  void append(const std::vector<PickleId>& values, bool to_set) {
    PickleNode& list = node(top());
    const bool fits = to_set ? list.kind == PickleKind::kSet : list.kind == PickleKind::kList;
    if (!fits && (list.kind != PickleKind::kObject || (list.pairs && !list.items.empty())))
      bad("values are appended to something that is no list");
    list.items.insert(list.items.end(), values.begin(), values.end());
  }
  void set_items(const std::vector<PickleId>& values) {
    if (values.size() % 2) bad("a key has no value");
    PickleNode& dict = node(top());
    if (dict.kind == PickleKind::kObject && (dict.items.empty() || dict.pairs))
      dict.pairs = true;
    else if (dict.kind != PickleKind::kDict)
      bad("keys are set in something that is no dict");
    dict.items.insert(dict.items.end(), values.begin(), values.end());
  }
  void build() {
    const PickleId state = pop();
    PickleNode& object = node(top());
    if (object.kind != PickleKind::kObject && object.kind != PickleKind::kDict)
      bad("a state is given to something that has none");
    object.state = state;
  }

  // The memo. Honest pickles number their entries one by one, so an index beyond the bytes read is none of theirs.
  void put(uint64_t index) {
    if (index > position_) bad("memo entry {} at byte {} of the pickle", index, position_);
    if (index >= memo_.size()) memo_.resize(index + 1, kNoPickle);
    memo_[index] = top();
    ++memoized_;
  }
  void get(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kNoPickle) bad("memo entry {} does not exist", index);
    push(memo_[index]);
  }

  /// A text of protocol 0.
  void push_decoded(std::optional<std::string> (*decode)(std::string_view), std::string_view text) {
    auto decoded = decode(text);
    if (!decoded) bad("'{}' is no text with Python's escapes", text.substr(0, 40));
    push_text(PickleKind::kString, keep(std::move(*decoded)));
  }
  void push_decimal_long(std::string_view text) {
    if (text.ends_with('L')) text.remove_suffix(1);
    if (text.size() <= 18) return push_integer(parse<int64_t>(text));
    if (text.size() > kMaxIntegerBytes) bad("a whole number of {} digits", text.size());
    auto bytes = binary_of_decimal(text);
    if (!bytes) bad("'{}' is no number", text.substr(0, 40));
    push_long(keep(std::move(*bytes)));
  }

  /// One operation; false at the end of the pickle.
  bool step() {
    operation_ = position_;
    const auto op = static_cast<uint8_t>(take(1)[0]);
    return scalar(op) || container(op) || object(op) || control(op);
  }

  bool scalar(uint8_t op) {
    switch (op) {
      case kNone:
        push(none_);
        return true;
      case kNewTrue:
        push(true_);
        return true;
      case kNewFalse:
        push(false_);
        return true;
      case kInt: {
        const std::string_view text = line();
        if (text == "00" || text == "01")
          push(text == "01" ? true_ : false_);
        else
          push_integer(parse<int64_t>(text));
        return true;
      }
      case kBinInt:
        push_integer(static_cast<int32_t>(number(4)));
        return true;
      case kBinInt1:
        push_integer(static_cast<int64_t>(number(1)));
        return true;
      case kBinInt2:
        push_integer(static_cast<int64_t>(number(2)));
        return true;
      case kLong:
        push_decimal_long(line());
        return true;
      case kLong1:
        push_long(take(number(1)));
        return true;
      case kLong4:
        push_long(take(number(4)));
        return true;
      case kFloat:
        push_real(parse<double>(line()));
        return true;
      case kBinFloat:
        push_real(std::bit_cast<double>(__builtin_bswap64(number(8))));
        return true;
      case kString:
        push_decoded(unquoted_text, line());
        return true;
      case kUnicode:
        push_decoded(raw_unicode_text, line());
        return true;
      case kBinString:
      case kBinUnicode:
        push_text(PickleKind::kString, take(number(4)));
        return true;
      case kShortBinString:
      case kShortBinUnicode:
        push_text(PickleKind::kString, take(number(1)));
        return true;
      case kBinUnicode8:
        push_text(PickleKind::kString, take(number(8)));
        return true;
      case kBinBytes:
        push_text(PickleKind::kBytes, take(number(4)));
        return true;
      case kShortBinBytes:
        push_text(PickleKind::kBytes, take(number(1)));
        return true;
      case kBinBytes8:
      case kByteArray8:
        push_text(PickleKind::kBytes, take(number(8)));
        return true;
      default:
        return false;
    }
  }

  bool container(uint8_t op) {
    switch (op) {
      case kEmptyTuple:
        push(empty_tuple_);
        return true;
      case kTuple1:
      case kTuple2:
      case kTuple3:
        push_tuple(static_cast<size_t>(op - kTuple1 + 1));
        return true;
      case kTuple:
        push_items(PickleKind::kTuple, pop_to_mark());
        return true;
      case kEmptyList:
        push_items(PickleKind::kList, {});
        return true;
      case kList:
        push_items(PickleKind::kList, pop_to_mark());
        return true;
      case kEmptyDict:
        push_pairs({});
        return true;
      case kDict:
        push_pairs(pop_to_mark());
        return true;
      case kEmptySet:
        push_items(PickleKind::kSet, {});
        return true;
      case kFrozenSet:
        push_items(PickleKind::kSet, pop_to_mark());
        return true;
      case kAppend:
        append({pop()}, false);
        return true;
      case kAppends:
        append(pop_to_mark(), false);
        return true;
      case kAddItems:
        append(pop_to_mark(), true);
        return true;
      case kSetItem: {
        const PickleId value = pop(), key = pop();
        set_items({key, value});
        return true;
      }
      case kSetItems:
        set_items(pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  bool object(uint8_t op) {
    switch (op) {
      case kGlobal: {
        const std::string_view module = line();
        push_global(module, line());
        return true;
      }
      case kStackGlobal: {
        const PickleNode &name = node(pop()), &module = node(pop());
        if (name.kind != PickleKind::kString || module.kind != PickleKind::kString)
          bad("the name of a class is no text");
        push_global(module.text, name.text);
        return true;
      }
      case kReduce:
      case kNewObj: {
        const PickleId args = pop(), callable = pop();
        push_object(callable, args);
        return true;
      }
      case kNewObjEx: {
        const PickleId named = pop(), args = pop(), callable = pop();
        if (node(named).kind != PickleKind::kDict || !node(named).items.empty())
          bad("an object with named arguments, which is not read");
        push_object(callable, args);
        return true;
      }
      case kInst: {
        const std::string_view module = line();
        push_global(module, line());
        const PickleId callable = pop();
        push_items(PickleKind::kTuple, pop_to_mark());
        push_object(callable, pop());
        return true;
      }
      case kObj: {
        std::vector<PickleId> values = pop_to_mark();
        if (values.empty()) bad("an object without class");
        const PickleId callable = values.front();
        values.erase(values.begin());
        push_items(PickleKind::kTuple, std::move(values));
        push_object(callable, pop());
        return true;
      }
      case kBuild:
        build();
        return true;
      case kBinPersId: {
        const PickleId args = pop();
        const PickleId id = add(PickleKind::kPersistent);
        node(id).args = args;
        push(id);
        return true;
      }
      case kPersId:
        bad("a reference by text, which no weight file has");
      case kExt1:
      case kExt2:
      case kExt4:
        bad("a class by its number in Python's extension registry, which is not read");
      case kNextBuffer:
      case kReadonlyBuffer:
        bad("a buffer outside of the pickle, which is not there");
      default:
        return false;
    }
  }

  bool control(uint8_t op) {
    switch (op) {
      case kStop:
        return false;
      case kProto:
        if (const uint64_t protocol = number(1); protocol > 5) bad("pickle protocol {}; 0 to 5 are read", protocol);
        return true;
      case kFrame:
        number(8);  // how far to read ahead
        return true;
      case kMark:
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        if (!marks_.empty() && stack_.size() == marks_.back())
          marks_.pop_back();
        else
          pop();
        return true;
      case kPopMark:
        pop_to_mark();
        return true;
      case kDup:
        push(top());
        return true;
      case kGet:
        get(parse<uint64_t>(line()));
        return true;
      case kBinGet:
        get(number(1));
        return true;
      case kLongBinGet:
        get(number(4));
        return true;
      case kPut:
        put(parse<uint64_t>(line()));
        return true;
      case kBinPut:
        put(number(1));
        return true;
      case kLongBinPut:
        put(number(4));
        return true;
      case kMemoize:
        put(memoized_);
        return true;
      default:
        bad("the pickle has the unknown operation 0x{:02x}", op);
    }
  }

  const PickleSource& source_;
  const PickleFilter& filter_;
  PickleDocument document_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;  ///< heights of the stack
  std::vector<PickleId> memo_;
  uint64_t memoized_ = 0;
  size_t position_ = 0, operation_ = 0;
  PickleId none_ = 0, false_ = 0, true_ = 0, empty_tuple_ = 0;
};

PickleDocument read_pickle(const PickleSource& source, const PickleFilter& filter) {
  return PickleMachine(source, filter).run();
}

}  // namespace convoy
