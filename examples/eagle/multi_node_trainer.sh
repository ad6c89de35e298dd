#!/bin/bash --login

#SBATCH --job-name=cartpole-multiple-nodes
#SBATCH --time=00:10:00
#SBATCH --nodes=3
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=36
##SBATCH --account=<account>

# Activate the environment that has shoal, for example:
# module purge
# conda activate /scratch/$USER/conda-envs/env_example

total_cpus=$((SLURM_JOB_NUM_NODES * SLURM_CPUS_PER_TASK))
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" shoal launch -- python -u simple_trainer.py --num-cpus "$total_cpus" "$@"
