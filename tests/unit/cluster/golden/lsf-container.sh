#!/bin/bash --login
#BSUB -J ppo
#BSUB -n 108
#BSUB -R "span[ptile=36]"
#BSUB -gpu "num=1"
#BSUB -R "rusage[mem=64GB]"
#BSUB -W 20
#BSUB -P rlwater
#BSUB -q standard
#BSUB -o ppo-%J.log
#BSUB -r
#BSUB -Q 99
#BSUB -alloc_flags smt4

# Written by `shoal submit`; `bsub < job.sh` submits it too, even where shoal is not installed.

# LSF keeps the output until the job has ended, so this shell writes the log itself.
job_id=$LSB_JOBID
log=$PWD/ppo-$job_id.log
exec >>"$log" 2>&1

# The shoal and the python of the container are used; packages in ~/.local stay out of it.
export PYTHONNOUSERSITE=1
mkdir -p /home/ada/.shoal/jobs
export OMP_NUM_THREADS=1
export CASE='it'"'"'s wet'
runtime=$(command -v apptainer || command -v singularity) || { echo "There is neither apptainer nor singularity on PATH; load its module in the preamble." >&2; exit 1; }
container=("$runtime" exec --nv --pwd "$PWD" --bind "$PWD" --bind /home/ada/.shoal/jobs --bind /scratch --bind "$DATA:/data" /images/shoal.sif)

# One container on every node, by the words of this site's mpiexec: Open MPI's, or those of Hydra and PALS.
every_node() {
  case "$(mpiexec --version 2>&1)" in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) exec mpiexec -n 3 --map-by ppr:1:node --bind-to none -x PYTHONNOUSERSITE -x OMP_NUM_THREADS -x CASE "$@" ;;
    *) exec mpiexec -n 3 --ppn 1 "$@" ;;
  esac
}

# A container on every node: `shoal launch` in it starts Ray, the first runs the command, all end with it.
# Its process group is its own (set -m): signals of the scheduler reach it through this shell.
set +e -m
every_node \
"${container[@]}" \
  shoal launch --job-dir /home/ada/.shoal/jobs/ppo-20261115-213005-"$job_id" --min-nodes 2 --ports 30000-30999 --on-node-loss continue --num-ranks 3 \
    -- shoal train -f 'my case.yml' --num-workers 100 </dev/null &
launch=$!

# The walltime ends soon: save, and end with 85. Cancelled: save, and end.
trap 'told=yes; kill -USR1 "$launch" 2>/dev/null' USR1 USR2
trap 'told=yes; stopped=yes; trap "" TERM INT; kill -TERM "$launch" 2>/dev/null' TERM INT
# LSF does not warn this shell alone before the walltime ends, so it warns itself.
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

# 85: saved, resume me. LSF requeues a job that ends with 99 (-Q), at most 20 times.
if [ "$code" -eq 85 ]; then
  if [ -z "$stopped" ] && [ "$(touch "$log.requeues-$job_id" && grep -c '^[0-9]' "$log.requeues-$job_id")" -lt 20 ]; then
    echo "$job_id" >>"$log.requeues-$job_id" && exit 99
  fi
  echo "The run is saved, but the job is not requeued; submit it again to continue." >&2
fi
[ "$code" -ne 99 ] || code=1 # else LSF would requeue the job
exit "$code"
