#!/bin/bash
# Ranks as real processes: every collective, and every way in which a run can go wrong. Each case has a time limit,
# leaves no process and no segment in /dev/shm, gives the right exit code and names what happened.
# usage: test_ranks.sh path/to/rank_program own|mpirun|hosts [path/to/mpirun]
#   own     started by our own launcher
#   mpirun  by mpirun, all on this host
#   hosts   by mpirun, the ranks acting as if they were on two hosts
# Exit code 77: mpirun is missing.
set -u
program=$(realpath "$1")
way=$2
mpirun=${3:-}
scripts=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap '[ $BASHPID != $$ ] || rm -rf "$work"' EXIT # not in a child that a signal ends before it is the program
cd "$work"
source "$scripts/functions.sh"
if [ "$way" != own ] && ! command -v "$mpirun" > /dev/null; then
  echo "skipped: there is no mpirun for the MPI of this build"
  exit 77
fi
open_mpi=()
if [ "$way" != own ] && "$mpirun" --version | grep -qE "Open MPI|OpenRTE"; then open_mpi=(--oversubscribe --bind-to none); fi
if [ "$way" = hosts ]; then export CONVOY_PRETEND_HOSTS=2; fi

start() { # start RANKS MODE [RANK]: the command line that begins a run
  local ranks=$1; shift
  if [ "$way" = own ]; then
    command=("$program" --ranks "$ranks" "$@")
  else
    command=("$mpirun" "${open_mpi[@]}" -np "$ranks" "$program" "$@")
  fi
}
run() { # run WHAT CODE SECONDS RANKS MODE [RANK]
  local what=$1 code=$2 limit=$3 result; shift 3
  start "$@"
  timeout -k 5 "$limit" "${command[@]}" > out.log 2> err.log < /dev/null
  result=$?
  if ! [[ $result =~ ^($code)$ ]]; then fail "$what: exit code $result, wanted $code"; fi
  clean "$what"
  echo "ran: $what"
}
# Starts a run in the background and waits until its ranks are at work. Sets `launcher`.
begin() {
  start "$@"
  : > out.log # what an earlier run said is no sign of this one
  "${command[@]}" > out.log 2> err.log < /dev/null &
  launcher=$!
  for _ in $(seq 300); do
    grep -q "rank_program: running" out.log && return
    sleep 0.1
  done
  fail "${command[*]} did not start"
}

# What the launcher answers when a rank has ended with an error, and when one was killed. MPICH's kills the other ranks at
# once, and mixes their codes.
error=1 killed=1 ended=1
if [ "$way" != own ]; then
  killed=137 ended=3
  if [ ${#open_mpi[@]} = 0 ]; then error='1|9' killed=9 ended='3|9|11'; fi
fi

for ranks in 1 2 3 4; do
  run "collectives of $ranks ranks" 0 120 $ranks collectives
  said "collectives of $ranks ranks" "$ranks" "rank [0-9] of $ranks: all right"
done
run "table" 0 30 3 table
said "table" 3 "^[0-2] .* cpu +[0-9,-]+ +[0-9,-]+ +[0-9]"
if [ "$way" = hosts ]; then said "transport" 1 "note: 3 ranks on 2 hosts: MPI"; else said "transport" 1 "note: 3 ranks on one host: shared memory"; fi

run "another configuration" "$error" 30 3 configuration 1
said "another configuration" 3 "rank 1 on host .* another configuration: 'SOLVER: LR: 0.02' where rank 0 has 'SOLVER: LR: 0.01'"
run "another collective" "$error" 30 3 another-name 2
said "another collective" 3 "error: .*'loss'.*barrier of another program"
run "another size" "$error" 30 3 another-size 1
said "another size" 3 "error: .*20 bytes.*28 bytes"
run "an error on one rank" "$error" 30 3 throw 1
said "an error on one rank" 3 "error: .*scene_17.png is no image"
run "a rank that leaves early" "$error" 30 3 leave 1
said "a rank that leaves early" 2 "error: .*rank 1"
run "a late rank" "$error" 40 3 late 1
said "a late rank" 3 "error: .*rank 1.*waiting for data"
said "a late rank" 1 "scene_17.png"
# The stopped rank is killed by the others, and which exit code mpirun takes depends on which ends first.
run "a stopped rank" "$error|$killed" 50 3 stop 1
said "a stopped rank" 2 "error: .*rank 1"

# mpirun ends all ranks as soon as one dies by a signal or ends with an error, and names it itself.
run "a killed rank" "$killed" 30 3 kill 1
run "a rank that ends at once" "$ended" 30 3 exit 1
if [ "$way" = own ]; then
  said "a rank that ends at once" 1 "rank 1 .process [0-9]+. ended with exit code 3"
  run "a killed rank, named" 1 30 3 kill 1
  said "a killed rank" 1 "^rank 1 .process [0-9]+. was ended by signal 9"
  said "a killed rank" 2 "error: .*rank 1"
  run "a rank that never joins" 1 30 3 never-joins 1
  said "a rank that never joins" 2 "error: .*rank 1 .*ended with exit code 4 before it joined"
  run "lines" 0 30 3 lines
  for rank in 0 1 2; do
    prefix=$([ $rank = 0 ] || echo "\[$rank\] ")
    for i in 0 77 199; do said "lines" 1 "^${prefix}line $i of rank $rank\$"; done
    said "lines" 1 "^${prefix}no newline at the end of rank $rank\$"
    grep -qE "^${prefix}warning of rank $rank\$" err.log || fail "lines: a warning of rank $rank"
  done
  [ "$(tr -cd x < out.log | wc -c)" = $((3 * (3 << 20))) ] || fail "lines: long ones are not complete"
  run "no ranks" 1 10 0 table
  said "no ranks" 1 "must be at least 1, not 0"
  (ulimit -n 40; timeout 20 "$program" --ranks 30 table > out.log 2> err.log) && fail "30 ranks with 40 open files"
  said "too few open files" 1 "30 ranks need 92 open files, and the limit is 40"
  clean "too few open files"

  for signal in TERM INT USR1; do
    begin 3 steps
    kill -$signal $launcher
    finish "SIG$signal to the launcher" 75 20
    said "SIG$signal to the launcher" 3 "rank [0-2]: stopped after 1 signals"
  done
  begin 3 steps
  kill -9 $launcher
  finish "kill -9 of the launcher" 137 10
  # As a terminal does it: Ctrl-C goes to the whole process group in the foreground.
  set -m
  begin 2 steps
  set +m
  kill -INT -$launcher
  finish "Ctrl-C" 75 20
  said "Ctrl-C" 2 "rank [01]: stopped after 1 signals"
else
  begin 3 steps
  kill -9 $launcher
  finish "kill -9 of mpirun" 137 20
  export OMPI_MCA_odls_base_sigkill_timeout=4 # Open MPI's own second is short for a loaded machine
  begin 3 steps
  rm -f stopped.log
  kill -TERM $launcher
  finish "SIGTERM to mpirun" "1|75|143" 20 # Open MPI answers 1 whatever the ranks do
  cp stopped.log out.log
  said "SIGTERM to mpirun" 3 "rank [0-2]: stopped after [01] signals"
  begin 3 steps
  kill -USR1 $launcher
  finish "SIGUSR1 to mpirun" 75 20
  said "SIGUSR1 to mpirun" 3 "rank [0-2]: stopped after 1 signals"
  run "a communicator of the user's" 0 60 3 users-communicator
  said "a communicator of the user's" 2 "rank [01] of 2: all right"
  said "a communicator of the user's" 1 "rank 0 of 1: all right"
fi
begin 3 steps
kill -TERM "$(rank_process 1)"
finish "SIGTERM to one rank" 75 20
said "SIGTERM to one rank" 3 "rank [0-2]: stopped after [01] signals"
begin 3 steps
kill -9 "$(rank_process 2)"
finish "kill -9 of one rank" "$killed" 20

if [ "$way" = mpirun ] && [ ${#open_mpi[@]} != 0 ] && [ "$(nproc)" -gt 1 ]; then
  open_mpi=()
  run "one core of Open MPI's choice" 0 30 1 table
  said "one core of Open MPI's choice" 1 "^0 .* $(grep Cpus_allowed_list /proc/self/status | cut -f2) +0\$"
  open_mpi=(--bind-to core)
  run "one core of the user's choice" 0 30 1 table
  said "one core of the user's choice" 1 "^0 .* [0-9]+ +0\$"
fi

if [ $failures != 0 ]; then echo "$failures failed"; exit 1; fi
echo "all as expected"
