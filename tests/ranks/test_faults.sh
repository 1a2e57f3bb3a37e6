#!/bin/bash
# Faults in the middle of a training on several ranks, by the real program: killed and stopped ranks, data that does not
# come, full disks, corrupt files, ranks that differ, signals. Each case has a time limit; what happened is named by
# every rank that can, no process and no segment in /dev/shm is left, and the run goes on from its last checkpoint.
# usage: test_faults.sh path/to/convoy path/to/late_files.so [path/to/mpirun]
set -u
program=$(realpath "$1")
late_files=$(realpath "$2")
mpirun=${3:-}
scripts=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap 'umount "$work"/small* 2> /dev/null; rm -rf "$work"' EXIT
cd "$work"
source "$scripts/functions.sh"

cat > recipe.yaml <<'YAML'
DATASET: {NAME: cityscape, ROOT: data, WORKERS: 2}
TRAIN: {GLOBAL_BATCH: 2, CROP_SIZE: [64, 96], BASE_SIZE: 64, CHECKPOINT_ITERS: 2}
SOLVER: {LR: 0.02, AUX: True}
MODEL: {MODEL_NAME: FastSCNN}
YAML
"$program" synth data --images 10 --size 64x128 --seed 5 > /dev/null || exit 1
cp -r data pristine
train=(train --config-file "$work/recipe.yaml" --threads 1 --log-iter 1 --comm-timeout 4)
launched=("$mpirun" --oversubscribe --bind-to none --tag-output)

# The data as at first: images in data/ are damaged while a run reads them.
restore_data() { rm -rf data && cp -r pristine data; }
command_of() { # command_of RANKS ARGUMENT...: sets `command`, by `way`
  local ranks=$1; shift
  if [ "$way" = own ]; then
    command=("$program" "${train[@]}" --ranks "$ranks" "$@")
  else
    command=("${launched[@]}" -np "$ranks" "$program" "${train[@]}" "$@")
  fi
}
# By mpirun with ranks that are not alike: rank_of PROGRAM FOLDER ARGUMENT... adds one to `command`.
rank_of() {
  local its_program=$1 folder=$2; shift 2
  if [ ${#command[@]} = 0 ]; then command=("${launched[@]}"); else command+=(:); fi
  command+=(-np 1 --wdir "$folder" "$its_program" "${train[@]}" --run-dir "$work/run" "$@")
}
# each_says WHAT PATTERN RANK...: a line of each of these ranks has it, on stdout or stderr.
each_says() {
  local what=$1 pattern=$2 rank prefix; shift 2
  for rank in "$@"; do
    if [ "$way" != own ]; then prefix="\[1,$rank\]<std...>:"; elif [ "$rank" = 0 ]; then prefix=""; else prefix="\[$rank\] "; fi
    cat out.log err.log | grep -qE -- "^$prefix(error: |[0-9: .-]+ [A-Z]+ ).*$pattern" || fail "$what: rank $rank does not say '$pattern'"
  done
}
# run WHAT CODE SECONDS: `command` ends so.
run() {
  timeout -k 5 "$3" "${command[@]}" > out.log 2> err.log < /dev/null
  local result=$?
  if ! [[ $result =~ ^($2)$ ]]; then fail "$1: exit code $result, wanted $2"; fi
  clean "$1"
  echo "ran: $1"
}
# begin COMMAND...: starts it in the background and waits for a checkpoint in run/. Sets `launcher`.
begin() {
  rm -rf run
  "$@" > out.log 2> err.log < /dev/null &
  launcher=$!
  for _ in $(seq 300); do
    if [ -n "$(last_step)" ]; then return; fi
    sleep 0.1
  done
  fail "$*: no checkpoint after 30 s"
}
begin_ranks() { # begin_ranks RANKS ARGUMENT...
  command_of "$@" --run-dir run --max-iters 100000 --skip-val
  begin "${command[@]}"
}
last_step() { ls run/checkpoints 2> /dev/null | grep -E '^step-[0-9]+$' | tail -1 | sed 's/step-0*//'; }
logged_step() { tail -1 run/metrics.jsonl | sed -E 's/.*"step":([0-9]+).*/\1/'; }
# resumes WHAT RANKS: the run goes on from its newest checkpoint, none of which is damaged, for two steps.
resumes() {
  local what=$1 ranks=$2 step
  restore_data
  step=$(last_step)
  [ -n "$step" ] || { fail "$what: no checkpoint"; return; }
  timeout -k 5 60 "$program" "${train[@]}" --ranks "$ranks" --run-dir run --skip-val --resume auto --max-iters $((step + 2)) > out.log 2> err.log < /dev/null \
    || fail "$what: the run does not go on from step $step"
  said "$what: resume" 1 "resumed from .* at step $step"
  if grep -q damaged out.log err.log; then fail "$what: a damaged checkpoint"; fi
}
# Of the training set, each image of which is read once an epoch.
some_image() { ls data/leftImg8bit/train/*/*.png | sed -n 3p; }
corrupt() { printf 'no longer what it was' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") / 2)) conv=notrunc 2> /dev/null; }

faulty_ranks() { # faulty_ranks RANKS RANK OTHER...: one of them is killed or stopped
  local ranks=$1 fault=$2 others=("${@:3}") what
  what="$way: kill -9 of rank $fault of $ranks"
  begin_ranks "$ranks"
  kill -9 "$(rank_process "$fault")"
  if [ "$way" = own ]; then
    finish "$what" 1 15
    each_says "$what" "rank $fault of $ranks .*is gone" "${others[@]}"
    said "$what" 1 "^rank $fault .process [0-9]+. was ended by signal 9"
  else # mpirun ends the others at once, and names it itself
    finish "$what" 137 15
    said "$what" 1 "rank $fault with PID [0-9]+ .*exited on signal 9"
  fi
  resumes "$what" "$ranks"

  what="$way: SIGSTOP of rank $fault of $ranks"
  begin_ranks "$ranks"
  kill -STOP "$(rank_process "$fault")"
  finish "$what" "$([ "$way" = own ] && echo 1 || echo '1|137')" 20
  each_says "$what" "(rank $fault of $ranks .*Its process is stopped|nothing was heard of rank $fault for)" "${others[@]}"
  resumes "$what" "$ranks"
}

data_faults() {
  local what image
  what="$way: an image that does not come"
  export LD_PRELOAD=$late_files
  begin_ranks 2
  unset LD_PRELOAD
  image=$(some_image)
  touch "$image.late"
  finish "$what" 1 20
  each_says "$what" "rank [01] of 2 .*waiting for the data of step .*$(basename "$image")" 0 1
  resumes "$what" 2

  what="$way: a corrupt image"
  begin_ranks 2
  corrupt "$image"
  finish "$what" 1 20
  each_says "$what" "rank [01] on .*$(basename "$image")" 0 1
  resumes "$what" 2

  what="$way: a corrupt image to be skipped"
  begin_ranks 2 --on-bad-sample skip
  corrupt "$image"
  local step=$(($(logged_step) + 12)) # all images are read again until then
  for _ in $(seq 200); do [ "$(logged_step)" -ge "$step" ] && break; sleep 0.1; done
  kill -TERM "$launcher"
  finish "$what" "$([ "$way" = own ] && echo 75 || echo '1|75|143')" 20
  [ "$(logged_step)" -ge "$step" ] || fail "$what: it did not go on"
  said "$what" 1 "skipped.*$(basename "$image")"
  resumes "$what" 2
}

full_disk() {
  local what="$way: a disk that fills up" limited=()
  rm -rf run
  command_of 2 --run-dir "$work/run" --max-iters 100000 --skip-val
  if [ "$(id -u)" = 0 ] && mkdir "small-$way" && mount -t tmpfs -o size=24m tmpfs "small-$way" 2> /dev/null; then
    mkdir "small-$way/run" && ln -s "small-$way/run" run
  else # a file that must not grow: metrics and log do, the checkpoints fit
    limited=(bash -c 'ulimit -f 16384; exec "$@"' limited)
    what="$what (by a limit of file size)"
    command=("${command[@]}" TRAIN.CHECKPOINT_ITERS 1 --log-iter 1)
  fi
  command=("${limited[@]}" "${command[@]}")
  run "$what" 1 40
  each_says "$what" "rank 0 on .*run/checkpoints: a checkpoint needs .* free" 0 1
  if [ -L run ]; then
    rm run && cp -r "small-$way/run" run
    umount "small-$way"
    resumes "$what" 2
  fi
}

ranks_that_differ() {
  local what
  mkdir -p other && rm -rf run other/data && cp -r pristine other/data
  what="another configuration on one rank"
  command=()
  rank_of "$program" "$work"; rank_of "$program" "$work"; rank_of "$program" "$work" SOLVER.LR 0.03
  run "$what" 1 20
  each_says "$what" "rank 2 .*another configuration: .*LR: 0.03.* where rank 0 has .*LR: 0.02" 0 1 2
  what="another program on one rank"
  cp "$program" other/convoy && echo >> other/convoy
  command=()
  rank_of "$program" "$work"; rank_of "$work/other/convoy" "$work"
  run "$what" 1 20
  each_says "$what" "another program" 0 1
  what="another data set on one rank"
  rm "$(ls other/data/leftImg8bit/train/*/*.png | tail -1)" "$(ls other/data/gtFine/train/*/*labelIds.png | tail -1)"
  command=()
  rank_of "$program" "$work"; rank_of "$program" "$work/other"
  run "$what" 1 20
  each_says "$what" "rank 1 .*another data set: .*train: 7 images" 0 1
  what="no data set on one rank"
  mkdir -p empty && command=()
  rank_of "$program" "$work"; rank_of "$program" "$work/empty"
  run "$what" 1 20
  each_says "$what" "rank 1 .*data.*" 0 1
  what="another number of ranks than mpirun's"
  command=("${launched[@]}" -np 3 "$program" "${train[@]}" --ranks 2)
  run "$what" 1 20
  each_says "$what" "--ranks 2, but the launcher has started 3" 0 1 2
  what="another command on one rank"
  command=()
  rank_of "$program" "$work"
  command+=(: -np 1 "$program" eval --run-dir "$work/run" --comm-timeout 4)
  run "$what" 1 20
  each_says "$what" "rank" 0 1
  what="a corrupt image on the disk of one rank"
  rm -rf other/data run && cp -r pristine other/data
  for image in other/data/leftImg8bit/train/*/*.png; do corrupt "$image"; done
  command=()
  rank_of "$program" "$work" --skip-val; rank_of "$program" "$work/other" --skip-val
  run "$what" 1 20
  each_says "$what" "rank 1 on .*the data set has 8 faults" 0 1
  [ ! -e run ] || [ -z "$(ls run/checkpoints 2> /dev/null)" ] || fail "$what: it began to train"
}

# stops WHAT CODE SIGNAL launcher|RANK: all ranks stop after the same step, whose checkpoint is complete. One of the ranks
# has no images. What the run says is read from its own log: mpirun that is told to end may drop the ranks' last lines.
stops() {
  local what="$way: $1" code=$2 signal=$3 target=$4
  begin_ranks 3
  if [ "$target" = launcher ]; then target=$launcher; else target=$(rank_process "$target"); fi
  kill "-$signal" "$target"
  finish "$what" "$code" 20
  cp run/log.txt out.log
  said "$what" 1 "SIG$signal at step $(last_step) of 100000; the state is saved"
  [ "$(logged_step)" = "$(last_step)" ] || fail "$what: step $(logged_step) is logged, step $(last_step) saved"
  resumes "$what" 3
}
signals() {
  if [ "$way" = own ]; then
    stops "SIGTERM to the launcher" 75 TERM launcher
    stops "SIGINT to the launcher" 75 INT launcher
    stops "SIGUSR1 to the launcher" 75 USR1 launcher
  else # on SIGTERM mpirun passes it on, waits (1 s if not told otherwise), sends SIGKILL and answers 1
    launched+=(--mca odls_base_sigkill_timeout 4)
    stops "SIGTERM to mpirun" "1|75|143" TERM launcher
    launched=("${launched[@]:0:${#launched[@]}-3}")
    stops "SIGUSR1 to mpirun" 75 USR1 launcher
  fi
  stops "SIGTERM to one rank" 75 TERM 1

  local what="$way: SIGTERM before the first step"
  rm -rf run
  command_of 2 --run-dir run --max-iters 100000 --skip-val
  "${command[@]}" > out.log 2> err.log < /dev/null &
  launcher=$!
  for _ in $(seq 300); do grep -q " ranks on " out.log && break; sleep 0.02; done
  kill -TERM "$(rank_process 1)"
  finish "$what" 75 20
  said "$what" 1 "SIGTERM at step"

  what="$way: kill -9 of the launcher"
  begin_ranks 3
  kill -9 "$launcher"
  finish "$what" 137 10
  resumes "$what" 3
}

losses() { sed -E 's/.*"loss":([^,]*),.*"step":([0-9]+).*/\2 \1/' "$1/metrics.jsonl"; }
refused() { # refused WHAT PATTERN ARGUMENT...: an error within 10 s
  command=("$program" "${train[@]}" "${@:3}")
  run "$1" 1 10
  said "$1" 1 "^error: .*$2"
}
whole_runs() {
  rm -rf run
  command_of 2 --run-dir run --max-iters 20 --skip-val SOLVER.LR 1e30
  run "$way: a loss that is no number" 1 30
  each_says "$way: a loss that is no number" "step [0-9]+: (the loss is|.* holds) .*Lower SOLVER.LR" 0 1
  [ -z "$(ls run/checkpoints)" ] || fail "$way: a loss that is no number: $(ls run/checkpoints)"

  rm -rf run
  command_of 4 --run-dir run --max-iters 4 # 2 images a step, 2 images to evaluate
  run "$way: more ranks than images" 0 60
  said "$way: more ranks than images" 1 "divided 1\+1\+0\+0"
  said "$way: more ranks than images" 1 "evaluation at step 4: .* 2 images"
}
launcher_alone() {
  local what number
  for number in 0 -1 1000000 two; do refused "--ranks $number" "--ranks" --run-dir run2 --ranks "$number"; done
  [ ! -e run2 ] || fail "refused numbers of ranks leave a run"

  what="two runs at a time"
  rm -rf first second
  local pids=()
  for run in first second; do
    command_of 2 --run-dir $run --max-iters 10 --skip-val
    "${command[@]}" > $run.log 2>&1 < /dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || fail "$what: exit code $?"; done
  clean "$what"
  diff <(losses first) <(losses second) || fail "$what: their losses differ"
  [ "$(losses first | wc -l)" = 10 ] || fail "$what: steps are missing"
  echo "ran: $what"

  what="a rank that is stopped and goes on"
  begin_ranks 2
  local paused step
  paused=$(rank_process 1)
  kill -STOP "$paused"
  sleep 1.5
  kill -CONT "$paused"
  step=$(($(logged_step) + 2))
  for _ in $(seq 100); do [ "$(logged_step)" -ge "$step" ] && break; sleep 0.1; done
  kill -TERM "$launcher"
  finish "$what" 75 20
  [ "$(logged_step)" -ge "$step" ] || fail "$what: it did not go on"

  what="two runs in one folder"
  begin_ranks 2
  timeout 20 "${command[@]}" --resume auto > out2.log 2> err2.log && fail "$what: exit code 0"
  grep -qE "^error: rank 0 on .*run: .*process $(rank_process 0)" err2.log || fail "$what: $(cat err2.log)"
  kill -TERM "$launcher"
  finish "$what" 75 20
  resumes "$what" 2
}

open_mpi=false
if command -v "$mpirun" > /dev/null && "$mpirun" --version | grep -qE "Open MPI|OpenRTE"; then open_mpi=true; fi
$open_mpi || echo "skipped: runs by mpirun, since there is none of Open MPI"
for way in own mpirun; do
  [ $way = own ] || $open_mpi || continue
  faulty_ranks 2 0 1
  faulty_ranks 3 2 0 1
  data_faults
  full_disk
  signals
  whole_runs
done
way=own
launcher_alone
if $open_mpi; then
  way=mpirun
  ranks_that_differ
  way=hosts # ranks that act as if they were on two hosts
  export CONVOY_PRETEND_HOSTS=2
  faulty_ranks 3 2 0 1
  stops "SIGUSR1 to mpirun" 75 USR1 launcher
fi

if [ $failures != 0 ]; then echo "$failures failed"; exit 1; fi
echo "all as expected"
