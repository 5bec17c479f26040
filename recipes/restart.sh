#!/usr/bin/env bash
# Runs a job, and starts it again when it fails; training resumes from its latest checkpoint:
#
#   recipes/restart.sh mpirun --bind-to none -np 8 python run_pretraining.py --horovod ...
#
# Ctrl-C and the signals TERM, HUP and USR1 make the ranks save a checkpoint and end the job; mpirun
# by itself kills them a second after Ctrl-C. A second signal ends mpirun at once. A mistake in the
# command (status 2) is final.
#
# Environment variables:
#   MAX_RESTARTS=3     how often in a row; a job that ran for an hour counts from the beginning
#   RESTART_DELAY=5    seconds between a failure and the next start

set -uo pipefail

stops=0
stop() {
  stops=$((stops + 1))
  local signal=USR1  # the only one that mpirun passes on to the ranks and then waits for them
  ((stops == 1)) || signal=TERM
  kill "-$signal" "$run" 2>/dev/null || true
}
trap stop INT TERM HUP USR1

restart=0
while :; do
  began=$SECONDS
  # In a session of its own, since a terminal sends Ctrl-C to all processes of this one.
  setsid "$@" </dev/null &
  run=$!
  wait "$run" && status=0 || status=$?
  while kill -0 "$run" 2>/dev/null; do  # a signal interrupted wait
    wait "$run" && status=0 || status=$?
  done
  if ((stops)); then
    wait "$run" && status=0 || status=$?
    exit "$status"
  fi
  ((SECONDS - began < 3600)) || restart=0
  case $status in 0 | 2 | 130 | 138 | 143) exit "$status" ;; esac
  if ((restart >= ${MAX_RESTARTS:-3})); then
    echo "restart.sh: ended with status $status; not started again after $restart restarts" >&2
    exit "$status"
  fi
  restart=$((restart + 1))
  echo "restart.sh: ended with status $status; restart $restart of ${MAX_RESTARTS:-3}" >&2
  sleep "${RESTART_DELAY:-5}" &
  wait $! || exit "$status"
done
