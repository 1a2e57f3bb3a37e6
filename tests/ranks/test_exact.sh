#!/bin/bash
# The number of ranks changes nothing: whole runs of the program on 1 to 4 ranks, real processes, with sync-BN,
# dropout, augmentation and auxiliary heads, uneven shards (7 images on 2, 3, 4 ranks) and empty ones (2 on 4).
#   - the first step: loss and gradients of one rank, by the tolerances of rounding
#   - --exact-ranks: every loss, score and tensor of a run the same bit for bit, also where a rank is killed and the run
#     goes on on fewer ranks
#   - evaluation of a checkpoint: the same counts
# usage: test_exact.sh path/to/convoy path/to/compare_runs [path/to/mpirun]
# EXACT_FULL=1 does with BiSeNet all that is done with Fast-SCNN; otherwise it takes fewer steps and ranks, for time.
set -u
convoy=$(realpath "$1")
compare=$(realpath "$2")
mpirun=${3:-}
configs=$(realpath "$(dirname "$0")/../../configs")
full=${EXACT_FULL:-}
work=$(realpath "$(mktemp -d)")
trap '[ $BASHPID != $$ ] || rm -rf "$work"' EXIT # not in a child that a signal ends before it is the program
cd "$work"
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid the other one, with a warning per rank
open_mpi=()
if command -v "$mpirun" > /dev/null; then
  if "$mpirun" --version | grep -qE "Open MPI|OpenRTE"; then open_mpi=(--oversubscribe --bind-to none); fi
else
  echo "without mpirun: there is none for the MPI of this build"
  mpirun=
fi
failures=0
fail() { failures=$((failures + 1)); echo "FAILED: $*"; }

# train NETWORK RUN RANKS OPTION... [KEY VALUE]...: sets `code`. RANKS "mpi2" is 2 ranks of mpirun.
train() {
  local recipe=synth_demo ranks=$3 start=("$convoy" train --ranks "$3")
  if [ "$1" = BiSeNet ]; then recipe=cityscapes_bisenet; fi
  if [ "$ranks" = mpi2 ]; then start=("$mpirun" "${open_mpi[@]}" -np 2 "$convoy" train); fi
  local run=$2; shift 3
  timeout -k 5 ${full:+2}300 "${start[@]}" --config-file "$configs/$recipe.yaml" --run-dir "$run" --log-iter 1 "$@" \
    DATASET.ROOT scenes DATASET.WORKERS 1 DATASET.MODE val SOLVER.AUX True TRAIN.CROP_SIZE "(64, 64)" \
    TRAIN.BASE_SIZE 64 TEST.BATCH_SIZE 2 AUG.BLUR_PROB 0.5 AUG.BLUR_RADIUS 2 AUG.COLOR_JITTER 0.3 \
    > "$run.log" 2>&1 < /dev/null
  code=$?
}
trains() { # the same, to its end
  train "$@"
  if [ $code != 0 ]; then fail "$2: exit code $code"; tail -20 "$2.log"; fi
}
compare() { # compare WHAT MODE REFERENCE... RUN
  local what=$1; shift
  echo -n "$what: "
  "$compare" "$@" 2>&1 || { fail "$what"; return 1; }
}
# first_step NETWORK BATCH RANKS: against one rank, whose references are made when they are needed.
first_step() {
  local kind what="$1, batch $2 on $3 ranks" references=()
  local options=(--skip-val TRAIN.MAX_ITERS 1 TRAIN.CHECKPOINT_ITERS 1 SOLVER.WEIGHT_DECAY 0 TRAIN.GLOBAL_BATCH $2)
  trains $1 first-$2-$3 $3 "${options[@]}"
  for kind in "" --direct-conv --exact-ranks; do
    references+=("one$kind-$2")
    if [ ! -e "one$kind-$2" ]; then trains $1 "one$kind-$2" 1 $kind "${options[@]}"; fi
    if "$compare" first-step "${references[@]}" first-$2-$3 &> /dev/null; then break; fi
  done
  compare "$what" first-step "${references[@]}" first-$2-$3
}
rank_process() { # rank_process RUN RANK: its pid
  local pid
  for pid in $(pgrep -f -- "--run-dir $1 "); do
    if [ "$(readlink "/proc/$pid/cwd")" != "$work" ]; then continue; fi
    if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "CONVOY_RANK=$2"; then echo "$pid"; fi
  done
}
# killed NETWORK RUN RANKS RANK STEP OPTION...: trains until STEP is logged, when RANK is killed.
killed() {
  local run=$2 rank=$4 step=$5 pid
  train "$1" "$2" "$3" "${@:6}" &
  for _ in $(seq 2000); do
    if grep -qs "\"step\":$step}" "$run/metrics.jsonl"; then break; fi
    sleep 0.05
  done
  pid=$(rank_process "$run" "$rank")
  if [ -z "$pid" ]; then fail "$run: rank $rank is not there at step $step"; tail -5 "$run.log"; else kill -9 "$pid"; fi
  wait $!
  grep -q "rank $rank .*signal 9" "$run.log" || { fail "$run: the killed rank is not named"; tail -5 "$run.log"; }
}

"$convoy" synth scenes --images 24 --size 64x128 --seed 3 > /dev/null || fail "synth"

for network in FastSCNN BiSeNet; do
  complete=$([ $network = FastSCNN ] && echo 1 || echo "$full")
  for ranks in 3 ${mpirun:+mpi2} ${complete:+2 4}; do first_step $network 7 $ranks; done
  first_step $network 2 4
  rm -rf one* first-*

  steps=$([ "$complete" ] && echo 50 || echo 4)
  exact=(--exact-ranks --val-epoch 4 TRAIN.MAX_ITERS $steps TRAIN.CHECKPOINT_ITERS 10 TRAIN.GLOBAL_BATCH 7)
  trains $network exact-1 1 "${exact[@]}"
  for ranks in 3 ${complete:+2 4} ${full:+${mpirun:+mpi2}}; do
    trains $network exact-$ranks $ranks "${exact[@]}"
    compare "$network, exact, $steps steps on $ranks ranks" equal exact-1 exact-$ranks
  done
  if [ "$complete" ]; then
    # Killed on three ranks, then on two; one rank finishes.
    killed $network resumed 3 1 20 "${exact[@]}"
    killed $network resumed 2 0 35 --resume auto "${exact[@]}"
    trains $network resumed 1 --resume auto "${exact[@]}"
    compare "$network, exact, killed and resumed on 3, 2, 1 ranks" equal exact-1 resumed
    for ranks in 1 2 3 4; do
      "$convoy" eval --ranks $ranks --run-dir exact-1 --json > scores-$ranks.json 2> eval.log || { fail "eval"; cat eval.log; }
      cmp scores-1.json scores-$ranks.json || fail "eval on $ranks ranks gives other scores"
    done
    # Two ranks have no images.
    for ranks in 1 4; do
      trains $network empty-$ranks $ranks --exact-ranks --skip-val TRAIN.MAX_ITERS 5 TRAIN.GLOBAL_BATCH 2
    done
    compare "$network, exact, batch 2 on 4 ranks" equal empty-1 empty-4
  fi
  rm -rf exact-* resumed* empty-*
done

if [ $failures != 0 ]; then echo "$failures failed"; exit 1; fi
echo "all as expected"
