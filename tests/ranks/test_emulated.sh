#!/bin/bash
# Whole trainings on device `emulated`: the CUDA kernels, run on the CPU. Two ranks with sync-BN give the same bits as one
# under --exact-ranks, uneven and empty shards included; without it they agree in the first step; a run goes on from its
# checkpoint, on the CPU too.
# usage: test_emulated.sh path/to/convoy path/to/compare_runs
set -u
convoy=$(realpath "$1")
compare=$(realpath "$2")
configs=$(realpath "$(dirname "$0")/../../configs")
work=$(realpath "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_WAIT_POLICY=passive
failures=0
fail() { failures=$((failures + 1)); echo "FAILED: $*"; }

trains() { # trains RUN RANKS OPTION... [KEY VALUE]...
  local run=$1 ranks=$2; shift 2
  timeout -k 5 300 "$convoy" train --device emulated --ranks "$ranks" --config-file "$configs/synth_demo.yaml" \
    --run-dir "$run" --log-iter 1 --skip-val "$@" DATASET.ROOT scenes DATASET.WORKERS 1 DATASET.MODE val SOLVER.AUX True \
    TRAIN.CROP_SIZE "(64, 64)" TRAIN.BASE_SIZE 64 > "$run.log" 2>&1 < /dev/null || { fail "$run"; tail -20 "$run.log"; }
}
compares() { # compares WHAT MODE REFERENCE... RUN
  local what=$1; shift
  echo -n "$what: "
  "$compare" "$@" 2>&1 || fail "$what"
}

"$convoy" synth scenes --images 8 --size 64x128 --seed 3 > /dev/null || fail "synth"
exact=(--exact-ranks TRAIN.MAX_ITERS 3 TRAIN.CHECKPOINT_ITERS 1 TRAIN.GLOBAL_BATCH 3)
trains exact-1 1 "${exact[@]}"
trains exact-2 2 "${exact[@]}"
compares "exact, 3 steps of 3 images on 2 ranks" equal exact-1 exact-2
trains empty-1 1 --exact-ranks TRAIN.MAX_ITERS 1 TRAIN.GLOBAL_BATCH 2
trains empty-3 3 --exact-ranks TRAIN.MAX_ITERS 1 TRAIN.GLOBAL_BATCH 2
compares "exact, 2 images on 3 ranks" equal empty-1 empty-3

first=(TRAIN.MAX_ITERS 1 TRAIN.CHECKPOINT_ITERS 1 SOLVER.WEIGHT_DECAY 0 TRAIN.GLOBAL_BATCH 3)
trains first-1 1 "${first[@]}"
trains first-2 2 "${first[@]}"
compares "first step of 3 images on 2 ranks" first-step first-1 exact-1 first-2

trains first-2 2 --resume auto TRAIN.MAX_ITERS 2 TRAIN.GLOBAL_BATCH 3
grep -q "resumed from .* at step 1" first-2.log || { fail "resume"; tail -20 first-2.log; }

if [ $failures != 0 ]; then echo "$failures failed"; exit 1; fi
echo "all as expected"
