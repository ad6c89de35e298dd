#!/bin/bash --login

#SBATCH --job-name=cartpole-heterogeneous
#SBATCH --time=00:10:00
#SBATCH --nodes=1
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=36
#SBATCH --gres=gpu:1
##SBATCH --account=<account>
#SBATCH hetjob
#SBATCH --nodes=2
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=36

# Activate the environment that has shoal with PyTorch, for example:
# module purge
# conda activate /scratch/$USER/conda-envs/env_gpu

# One srun cannot reach both groups of nodes, so their hosts are named; agents start over ssh.
hosts="$SLURM_JOB_NODELIST_HET_GROUP_0,$SLURM_JOB_NODELIST_HET_GROUP_1"
total_cpus=$((SLURM_CPUS_PER_TASK_HET_GROUP_0 + SLURM_JOB_NUM_NODES_HET_GROUP_1 * SLURM_CPUS_PER_TASK_HET_GROUP_1))
shoal launch --hosts "$hosts" -- python -u simple_trainer.py --num-cpus "$total_cpus" --num-gpus 1 "$@"
