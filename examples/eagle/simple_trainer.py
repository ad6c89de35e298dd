import argparse
import sys

import shoal
from shoal import tune

parser = argparse.ArgumentParser()
parser.add_argument("--num-cpus", type=int, default=0, help="cores in all: the trial and its workers")
parser.add_argument("--num-gpus", type=float, default=0, help="GPUs for learning; a fraction of one is allowed")
parser.add_argument("--name-env", type=str, default="CartPole-v0")
parser.add_argument("--run", type=str, default="DQN", help="PPO, DQN or what else `shoal algorithms` lists")
parser.add_argument("--local-mode", action="store_true", help="everything in this process, without Ray")
parser.add_argument("--redis-password", help=argparse.SUPPRESS)
args = parser.parse_args()

if args.redis_password is not None:
    parser.error("--redis-password: leave it out; a token of its own protects every cluster, and nobody types it")
if args.local_mode and args.num_cpus > 1:
    parser.error("--local-mode: one process uses one core; leave --num-cpus out")

stop = {"training_iteration": 10000}
config = {
    "env": args.name_env,
    "num_workers": max(args.num_cpus - 1, 0),
    "num_gpus": args.num_gpus,
    "ignore_worker_failures": True,
}
try:
    if args.local_mode:
        for result in shoal.run({"run": args.run, "name": args.name_env, "stop": stop, "config": config}):
            print(shoal.pretty_print(result))
    else:
        tune.run(args.run, name=args.name_env, stop=stop, config=config, show=print)
except shoal.ShoalError as error:
    print(f"Error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
