#!/bin/bash
#PBS -A datascience
#PBS -l select=2:system=polaris
#PBS -l walltime=01:00:00
#PBS -l filesystems=home
#PBS -q debug

cd "$PBS_O_WORKDIR" || exit
# Activate the environment that has shoal, for example:
# source ~/venvs/rl/bin/activate

hosts=$(sort -u "$PBS_NODEFILE" | wc -l)
mpiexec -n "$hosts" --ppn 1 shoal launch -- python train_ppo.py --ray-address {address}
