#!/bin/bash
# Every registered network as a Python file: written by the real binary, and valid Python. Needs no PyTorch.
# usage: test_export.sh path/to/convoy
set -u
convoy=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0
fail() { failures=$((failures + 1)); echo "FAILED: $*"; }

networks=$($convoy plan --list-networks) || fail "plan --list-networks"
[ -n "$networks" ] || fail "there are no networks"
for network in $networks; do
  if ! timeout 300 "$convoy" plan --export-torch "$network" --size 128x256; then fail "$network: export"; continue; fi
  python3 -m py_compile "$network.py" || fail "$network.py is not Python"
  timeout 300 "$convoy" plan --export-torch again.py --size 128x256 MODEL.MODEL_NAME "$network" DATASET.NAME cityscape ||
    fail "$network: export to a file"
  cmp "$network.py" again.py || fail "$network: two exports differ"
done

refused() { # refused WORD COMMAND...: exit code 1, stderr has the word
  local word=$1; shift
  timeout 60 "$@" > /dev/null 2> err.log
  local code=$?
  { [ $code = 1 ] && grep -qF -- "$word" err.log; } || { fail "$*: exit code $code, wanted 1 and '$word'"; cat err.log; }
}
refused "FastSCNN" "$convoy" plan --export-torch FastSCN
refused "(80, 128)" "$convoy" plan --export-torch FastSCNN --size 80x128
refused "no-such-folder" "$convoy" plan --export-torch no-such-folder/net.py MODEL.MODEL_NAME FastSCNN
[ $failures = 0 ]
