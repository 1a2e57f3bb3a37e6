# Functions of the tests that start ranks as real processes; read by `source`.
# The script has set `program` (the absolute path of what runs as a rank) and is in a folder of its own, where a run
# writes to out.log and err.log.
failures=0
mark=$RANDOM$RANDOM$$ # tells our processes from those of other runs
export CONVOY_TEST_MARK=$mark OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none # containers forbid the other one, with a warning per rank
export OMPI_MCA_btl_vader_backing_directory=$PWD # what it leaves when it is killed itself

# Processes of this test other than the shell itself and its children that look.
processes() {
  local environment pid
  for environment in /proc/[0-9]*/environ; do
    pid=${environment#/proc/}; pid=${pid%/environ}
    [ "$(readlink "/proc/$pid/exe" 2> /dev/null)" = "$program" ] || continue
    if tr '\0' '\n' 2> /dev/null < "$environment" | grep -qx "CONVOY_TEST_MARK=$mark"; then echo "$pid"; fi
  done
}
rank_process() { # rank_process NUMBER: its pid
  local pid
  for _ in $(seq 50); do
    for pid in $(processes); do
      if tr '\0' '\n' 2> /dev/null < "/proc/$pid/environ" | grep -qxE "(CONVOY|OMPI_COMM_WORLD|PMI)_RANK=$1"; then
        echo "$pid"
        return
      fi
    done
    sleep 0.1
  done
}
segments() { ls /dev/shm 2> /dev/null | grep '^convoy-' | sort; }
segments > segments.before

fail() { failures=$((failures + 1)); echo "FAILED: $*"; head -c 3000 out.log err.log; }
clean() { # clean WHAT: nothing is left
  local what=$1 left
  for _ in $(seq 50); do
    left=$(processes)
    [ -n "$left" ] || break
    sleep 0.1
  done
  if [ -n "$left" ]; then fail "$what: processes left: $left"; kill -9 $left 2> /dev/null; fi
  # Segments of other runs come and go; those that appeared and stay are ours.
  left=$(segments | comm -13 segments.before - | while read -r name; do
    sleep 0.2
    if [ -e "/dev/shm/$name" ] && ! fuser -s "/dev/shm/$name" 2> /dev/null; then echo "$name"; fi
  done)
  if [ -n "$left" ]; then fail "$what: left in /dev/shm: $left"; (cd /dev/shm && rm -f $left); fi
}
said() { # said WHAT COUNT TEXT: that many lines of the run have the text, or more
  local count
  count=$(cat out.log err.log | grep -cE -- "$3")
  [ "$count" -ge "$2" ] || fail "$1: '$3' found in $count lines, wanted $2"
}
# finish WHAT CODE SECONDS: the run whose pid is in `launcher` ends so.
finish() {
  local what=$1 code=$2 limit=$3 result
  for _ in $(seq $((limit * 10))); do
    if ! kill -0 "$launcher" 2> /dev/null; then break; fi
    sleep 0.1
  done
  if kill -0 "$launcher" 2> /dev/null; then kill -9 "$launcher"; fail "$what: still running after $limit s"; fi
  wait "$launcher" 2> /dev/null
  result=$?
  if ! [[ $result =~ ^($code)$ ]]; then fail "$what: exit code $result, wanted $code"; fi
  clean "$what"
  echo "ran: $what"
}
