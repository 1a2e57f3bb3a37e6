#!/bin/bash
# A run that is killed again and again loses nothing: killed at random moments (while it starts, trains, evaluates, saves
# a checkpoint, writes the report), by kill -9 of a rank or of the launcher or by SIGTERM to either, and resumed each
# time on the same number of ranks, it ends with the tensors, losses and scores of a run that nobody disturbed, bit for
# bit, with every step in the metrics once.
# usage: kill_and_resume.sh path/to/convoy path/to/compare_runs ROUNDS SEED [path/to/mpirun]
# With mpirun, that starts the two ranks. Prints each kill; the same SEED chooses the same kills again.
set -u
convoy=$(realpath "$1")
compare=$(realpath "$2")
rounds=$3
RANDOM=$4
mpirun=${5:-}
configs=$(realpath "$(dirname "$0")/../../configs")
work=$(realpath "$(mktemp -d)")
trap '[ $BASHPID != $$ ] || rm -rf "$work"' EXIT # not in a child that a signal ends before it is the program
cd "$work"
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid the other one, with a warning per rank
export TMPDIR=$work                                  # what a killed mpirun leaves behind goes with the test
start=("$convoy" train --ranks 2)
if [ "$mpirun" ]; then
  start=("$mpirun" -np 2 "$convoy" train)
  if "$mpirun" --version | grep -qE "Open MPI|OpenRTE"; then start=("$mpirun" --oversubscribe --bind-to none -np 2 "$convoy" train); fi
fi
steps=$((3 * rounds + 6)) # an epoch has three
failures=0
fail() { failures=$((failures + 1)); echo "FAILED: $*"; tail -n 15 "$work/run.log"; }

train() { # train RUN: this process becomes the launcher
  exec "${start[@]}" --config-file "$configs/synth_demo.yaml" --run-dir "$1" --resume auto --log-iter 1 --val-epoch 1 \
    DATASET.ROOT scenes DATASET.WORKERS 1 TRAIN.GLOBAL_BATCH 5 TRAIN.MAX_ITERS $steps TRAIN.CHECKPOINT_ITERS 2 \
    TRAIN.CROP_SIZE "(64, 96)" TRAIN.BASE_SIZE 64 AUG.BLUR_PROB 0.5 AUG.BLUR_RADIUS 2 AUG.COLOR_JITTER 0.3
}
ours() { # pids of the ranks, rank 0 first
  local pid rank
  for rank in 0 1; do
    for pid in $(pgrep -f -- "train .*--run-dir killed "); do
      if [ "$(readlink "/proc/$pid/cwd" 2> /dev/null)" != "$work" ]; then continue; fi
      if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qxE "(CONVOY|OMPI_COMM_WORLD|PMI)_RANK=$rank"; then echo "$pid"; fi
    done
  done
}
alive() { kill -0 "$launcher" 2> /dev/null; }
metrics_lines() { [ ! -e killed/metrics.jsonl ] && echo 0 || wc -l < killed/metrics.jsonl; }
saving() { compgen -G 'killed/checkpoints/*.tmp' > /dev/null; }
# Waits for the chosen phase, as long as the run is there.
wait_for() {
  local before last
  before=$(metrics_lines)
  case $1 in
    start) ;;
    training) while alive && [ "$(metrics_lines)" -le "$before" ]; do sleep 0.01; done ;;
    evaluation) # the last step of an epoch has been written, its scores have not
      while alive; do
        last=$(tail -n 1 killed/metrics.jsonl 2> /dev/null)
        if [ "$(metrics_lines)" -gt "$before" ] && [[ $last != *eval* && $last =~ \"step\":([0-9]+)\} ]] &&
          [ $((BASH_REMATCH[1] % 3)) = 0 ]; then break; fi
        sleep 0.005
      done ;;
    checkpoint) while alive && ! saving; do sleep 0.005; done ;;
    report) while alive && ! tail -n 1 killed/metrics.jsonl 2> /dev/null | grep -q "\"eval\":true.*\"step\":$steps}"; do sleep 0.01; done ;;
  esac
}
standing() { # where the run is
  local last
  last=$(tail -n 1 killed/metrics.jsonl 2> /dev/null | sed -E 's/.*("step":[0-9]+)}.*/\1/')
  echo "${last:-no step}$(saving && echo ', a checkpoint half written')"
}

"$convoy" synth scenes --images 24 --size 64x128 --seed 3 > run.log 2>&1 || fail "synth"
(train whole) > run.log 2>&1 < /dev/null || fail "the undisturbed run"

signals=(KILL KILL TERM) phases=(start training training evaluation checkpoint)
for round in $(seq "$rounds"); do
  # All that is random is drawn first, whatever the run does.
  phase=${phases[RANDOM % ${#phases[@]}]} target=$((RANDOM % 3)) signal=${signals[RANDOM % ${#signals[@]}]}
  if [ "$round" -gt $((rounds - 2)) ]; then phase=report; fi
  case $phase in start) most=600 ;; report) most=20 ;; *) most=60 ;; esac
  delay=$((RANDOM % most))
  (train killed) > run.log 2>&1 < /dev/null &
  launcher=$!
  wait_for $phase
  sleep "$(printf '0.%03d' $delay)"
  pids=($(ours)) now=$(standing) victim=launcher pid=$launcher
  if [ $target -lt ${#pids[@]} ] && [ $target -lt 2 ]; then victim="rank $target" pid=${pids[target]}; fi
  kill -$signal "$pid" 2> /dev/null || now="$now, but the run had ended"
  for _ in $(seq 300); do
    if ! alive && [ -z "$(ours)" ]; then break; fi
    sleep 0.1
  done
  if alive || [ -n "$(ours)" ]; then fail "round $round: still there after 30 s"; kill -9 $launcher $(ours); fi
  wait $launcher 2> /dev/null
  code=$?
  echo "round $round: $signal to the $victim, $phase + $delay ms, $now: exit code $code"
  # mpirun has codes of its own; SIGTERM ends a launcher that has not come to launching.
  allowed="0|1|75|137|143"
  if [ -z "$mpirun" ] && [ $signal = TERM ]; then
    allowed=$([ "$phase $victim" = "start launcher" ] && echo "0|75|143" || echo "0|75")
  fi
  [[ $code =~ ^($allowed)$ ]] || fail "round $round: exit code $code"
done

(train killed) > run.log 2>&1 < /dev/null || fail "the last resumption"
"$compare" equal whole killed || fail "the killed run is not the undisturbed one"
[ -s killed/report.html ] || fail "no report"
if [ $failures != 0 ]; then echo "$failures failed (seed $4)"; exit 1; fi
echo "all as expected"
