#!/bin/bash
#COBALT -A datascience
#COBALT -t 60
#COBALT -q debug-cache-quad
#COBALT -n 2

# Activate the environment that has shoal, for example:
# source /projects/datascience/$USER/venvs/rl/bin/activate

ranks=$((COBALT_JOBSIZE * 16))
aprun -n "$ranks" -N 16 shoal launch --num-ranks "$ranks" -- python train_ppo.py --ray-address {address}
