# Sourced by the other scripts: the repository's root, messages, and how many jobs this machine can take.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The comment at the top of the calling script is its help.
print_help() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

# Cores that this process may use, but no more than memory allows: a compiler takes up to 1.5 GB.
build_jobs() {
  local cores memory
  cores=$(nproc 2>/dev/null || echo 1)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || true)
  if [ -n "$memory" ] && [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  echo "$cores"
}
