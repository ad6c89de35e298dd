#!/bin/bash --login
#SBATCH --job-name=ppo
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=36
#SBATCH --gpus-per-node=1
#SBATCH --mem=64G
#SBATCH --time=00:20:00
#SBATCH --account=rlwater
#SBATCH --partition=standard
#SBATCH --output=ppo-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --constraint=haswell

# Written by `shoal submit`; `sbatch job.sh` submits it too, even where shoal is not installed.

job_id=$SLURM_JOB_ID

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
trap 'told=yes; stopped=yes; trap "" TERM INT; kill -TERM "$launch" 2>/dev/null' TERM INT
set +m
told=yes stopped=
while [ -n "$told" ]; do # a signal ends `wait` before the command has ended
  told=
  wait "$launch"
  code=$?
done

# 85: saved, resume me. Slurm puts the same job back into its queue, at most 20 times.
if [ "$code" -eq 85 ]; then
  if [ -z "$stopped" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID" && exit 0
  fi
  echo "The run is saved, but the job is not requeued; submit it again to continue." >&2
fi
exit "$code"
