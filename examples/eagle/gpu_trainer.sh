#!/bin/bash --login

#SBATCH --job-name=cartpole-gpu
#SBATCH --time=00:10:00
#SBATCH --nodes=1
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=36
#SBATCH --gres=gpu:1
##SBATCH --account=<account>

# Activate the environment that has shoal with PyTorch, for example:
# module purge
# conda activate /scratch/$USER/conda-envs/env_gpu

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" shoal launch -- \
  python -u simple_trainer.py --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus 1 "$@"
