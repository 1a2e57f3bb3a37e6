#include "comm/agreement.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/error.h"
#include "engine/rng.h"

namespace convoy {

namespace {

struct Summary {
  uint64_t hash = 0, bytes = 0;
  std::array<char, 64> host{};

  bool same_text(const Summary& other) const { return hash == other.hash && bytes == other.bytes; }
};

/// The rank whose text most ranks have; the first of them.
int reference_rank(const std::vector<Summary>& ranks) {
  auto support = [&](const Summary& one) {
    return std::count_if(ranks.begin(), ranks.end(), [&](const Summary& other) { return other.same_text(one); });
  };
  size_t best = 0;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (support(ranks[rank]) > support(ranks[best])) best = rank;
  }
  return static_cast<int>(best);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

/// A line with those that it is indented under: "SOLVER: LR: 0.02".
std::string with_parents(const std::vector<std::string>& lines, size_t index) {
  if (index >= lines.size()) return "nothing";
  size_t indent = lines[index].find_first_not_of(' ');
  if (indent == std::string::npos) return "''";
  std::string text = lines[index].substr(indent);
  for (size_t i = index; i-- > 0 && indent > 0;) {
    const size_t outer = lines[i].find_first_not_of(' ');
    if (outer == std::string::npos || outer >= indent) continue;
    text = lines[i].substr(outer) + ' ' + text;
    indent = outer;
  }
  constexpr size_t kLongest = 300;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return "'" + text + "'";
}

std::string text_of_rank(Communicator& communicator, int rank, uint64_t bytes, const std::string& own,
                         const std::string& name) {
  std::string text = communicator.rank() == rank ? own : std::string(bytes, '\0');
  if (bytes > 0) communicator.broadcast(text.data(), bytes, rank, name);
  return text;
}

}  // namespace

void check_same_on_all_ranks(Communicator& communicator, const std::string& what, const std::string& text) {
  const std::string name = "same " + what;
  Summary own{.hash = fnv1a(text), .bytes = text.size()};
  ::gethostname(own.host.data(), own.host.size() - 1);
  std::vector<Summary> ranks(static_cast<size_t>(communicator.size()));
  communicator.all_gather(&own, sizeof own, ranks.data(), name);

  const int reference = reference_rank(ranks);
  const Summary& wanted = ranks[static_cast<size_t>(reference)];
  std::vector<int> others;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (!ranks[static_cast<size_t>(rank)].same_text(wanted)) others.push_back(rank);
  }
  if (others.empty()) return;

  const int other = others.front();
  const Summary& found = ranks[static_cast<size_t>(other)];
  const std::vector<std::string> right = lines_of(text_of_rank(communicator, reference, wanted.bytes, text, name));
  const std::vector<std::string> wrong = lines_of(text_of_rank(communicator, other, found.bytes, text, name));
  size_t line = 0;
  while (line < std::min(right.size(), wrong.size()) && right[line] == wrong[line]) ++line;
  fail("rank {} on host {} has another {}: {} where rank {} has {}{}", other, found.host.data(), what,
       with_parents(wrong, line), reference, with_parents(right, line),
       others.size() == 1 ? ""
                          : fmt::format("; ranks that differ from rank {}: {}", reference, fmt::join(others, ", ")));
}

}  // namespace convoy
