#!/bin/bash --login
#$ -S /bin/bash
#$ -N ppo
#$ -cwd
#$ -pe mpi 108
#$ -l h_rt=00:20:00
#$ -P rlwater
#$ -q standard
#$ -j y
#$ -o ppo-$JOB_ID.log
#$ -notify
#$ -r y
#$ -l gpu=1

# Written by `shoal submit`; `qsub job.sh` submits it too, even where shoal is not installed.

# Grid Engine does not always start a login shell; then this shell reads what a login shell reads.
shopt -q login_shell || for profile in /etc/profile "$HOME/.bash_profile"; do
  [ ! -r "$profile" ] || . "$profile"
done

job_id=$JOB_ID
log=$PWD/ppo-$job_id.log

# The preamble of the job's description. If a line of it fails, a message says so, and the job ends.
trap 'echo "The job ended in its preamble, with exit code $?." >&2; exit 1' EXIT
trap 'code=$? at=$LINENO
  [ ${#BASH_SOURCE[@]} -eq 1 ] || code=0 # the lines of a file that it sources may fail
  if [ "$code" -ne 0 ]; then
    trap - EXIT
    line=$(sed -n "${at}p" "$0")
    echo "Line $((at - preamble)) of the preamble failed with exit code $code: $line" >&2
    exit 1
  fi' ERR
preamble=$LINENO
module load python/3.11
source ~/venvs/rl/bin/activate
trap - ERR EXIT

# Where the preamble brings no shoal, the one that wrote this script is used.
PATH="$PATH":/opt/rl/bin
export PATH
export OMP_NUM_THREADS=1
export CASE='it'"'"'s wet'

# `shoal launch` starts Ray on all nodes, runs the command on the first, and ends with its exit code.
# Its process group is its own (set -m): signals of the scheduler reach it through this shell.
set +e -m
shoal launch --job-dir /home/ada/.shoal/jobs/ppo-20261115-213005-"$job_id" --min-nodes 2 --ports 30000-30999 --on-node-loss continue \
  -- shoal train -f 'my case.yml' --num-workers 100 </dev/null &
launch=$!

# The walltime ends soon: save, and end with 85. Cancelled: save, and end.
trap 'told=yes; kill -USR1 "$launch" 2>/dev/null' USR1
trap 'told=yes; stopped=yes; trap "" TERM INT USR2; kill -TERM "$launch" 2>/dev/null' TERM INT USR2
# Grid Engine does not warn this shell alone before the walltime ends, so it warns itself.
(sleep $((1080 - SECONDS)); kill -USR1 $$) </dev/null >/dev/null 2>&1 &
timer=$!
disown "$timer"
set +m
told=yes stopped=
while [ -n "$told" ]; do # a signal ends `wait` before the command has ended
  told=
  wait "$launch"
  code=$?
done
kill -- "-$timer" 2>/dev/null

# 85: saved, resume me. Grid Engine requeues a job that ends with 99, at most 20 times.
if [ "$code" -eq 85 ]; then
  if [ -z "$stopped" ] && [ "$(touch "$log.requeues-$job_id" && grep -c '^[0-9]' "$log.requeues-$job_id")" -lt 20 ]; then
    echo "$job_id" >>"$log.requeues-$job_id" && exit 99
  fi
  echo "The run is saved, but the job is not requeued; submit it again to continue." >&2
fi
[ "$code" -ne 99 ] || code=1 # else Grid Engine would requeue the job
exit "$code"
