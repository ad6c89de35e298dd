#!/bin/bash --login
#COBALT --jobname ppo
#COBALT -n 3
#COBALT -t 20
#COBALT -A rlwater
#COBALT -q standard

# Written by `shoal submit`; `qsub job.sh` submits it too, even where shoal is not installed.

# One log for output and errors, to which a requeued job adds.
job_id=${SHOAL_FIRST_JOB:-$COBALT_JOBID}
submitted_from=$PWD
log=$PWD/ppo-$job_id.log
exec >>"$log" 2>&1

# The shoal and the python of the container are used; packages in ~/.local stay out of it.
export PYTHONNOUSERSITE=1
mkdir -p /home/ada/.shoal/jobs
export OMP_NUM_THREADS=1
export CASE='it'"'"'s wet'
runtime=$(command -v apptainer || command -v singularity) || { echo "There is neither apptainer nor singularity on PATH; load its module in the preamble." >&2; exit 1; }
container=("$runtime" exec --pwd "$PWD" --bind "$PWD" --bind /home/ada/.shoal/jobs --bind /scratch --bind "$DATA:/data" /images/shoal.sif)

# A container on every node: `shoal launch` in it starts Ray, the first runs the command, all end with it.
# Its process group is its own (set -m): signals of the scheduler reach it through this shell.
set +e -m
aprun -n 3 -N 1 -cc none \
"${container[@]}" \
  shoal launch --job-dir /home/ada/.shoal/jobs/ppo-20261115-213005-"$job_id" --min-nodes 2 --ports 30000-30999 --on-node-loss continue --num-ranks 3 \
    -- shoal train -f 'my case.yml' --num-workers 100 </dev/null &
launch=$!

# The walltime ends soon: save, and end with 85. Cancelled: save, and end.
trap 'told=yes; kill -USR1 "$launch" 2>/dev/null' USR1
trap 'told=yes; stopped=yes; trap "" TERM INT; kill -TERM "$launch" 2>/dev/null' TERM INT
# Cobalt does not warn this shell alone before the walltime ends, so it warns itself.
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

# 85: saved, resume me. Cobalt requeues a job for its operators only, so this one submits its script again, at most 20 times.
if [ "$code" -eq 85 ]; then
  if [ -z "$stopped" ] && [ "$(touch "$log.requeues-$job_id" && grep -c '^[0-9]' "$log.requeues-$job_id")" -lt 20 ]; then
    cd "$submitted_from" && qsub --env SHOAL_FIRST_JOB="$job_id" "$0" >>"$log.requeues-$job_id" && exit 0
  fi
  echo "The run is saved, but the job is not requeued; submit it again to continue." >&2
fi
exit "$code"
