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

# The shoal and the python of the container are used; packages in ~/.local stay out of it.
export PYTHONNOUSERSITE=1
mkdir -p /home/ada/.shoal/jobs
export OMP_NUM_THREADS=1
export CASE='it'"'"'s wet'
runtime=$(command -v apptainer || command -v singularity) || { echo "There is neither apptainer nor singularity on PATH; load its module in the preamble." >&2; exit 1; }
container=("$runtime" exec --nv --pwd "$PWD" --bind "$PWD" --bind /home/ada/.shoal/jobs --bind /scratch --bind "$DATA:/data" /images/shoal.sif)

# A container on every node: `shoal launch` in it starts Ray, the first runs the command, all end with it.
# Its process group is its own (set -m): signals of the scheduler reach it through this shell.
set +e -m
srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --overlap --mem=0 --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none \
"${container[@]}" \
  shoal launch --job-dir /home/ada/.shoal/jobs/ppo-20261115-213005-"$job_id" --min-nodes 2 --ports 30000-30999 --on-node-loss continue --num-ranks 3 \
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
