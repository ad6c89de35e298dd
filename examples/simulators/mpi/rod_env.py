"""A solver with MPI as a Gymnasium environment: shoal train rod_env.py:Rod --set env_ranks=2"""

from pathlib import Path
from subprocess import PIPE, TimeoutExpired

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.envs import run_mpi

SOLVER = Path(__file__).with_name("rod")


class Rod(gymnasium.Env):
    """Keep the mean temperature of a rod at 0.5 by heating one of its ends."""

    observation_space = spaces.Box(-5, 5, (2,), np.float32)
    action_space = spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, config):
        # One rank on each of the slots of this environment, config.slots.
        self.solver = run_mpi([SOLVER], config, stdin=PIPE, stdout=PIPE, text=True)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.temperatures(f"reset {self.np_random.random()}"), {}

    def step(self, action):
        self.time += 1
        observation = self.temperatures(f"step {float(action[0])}")
        return observation, -abs(float(observation[0]) - 0.5), False, self.time == 50, {}

    def temperatures(self, command):
        return np.array(self.ask(command).split(), np.float32)

    def ask(self, command):
        """The solver's answer to a line."""
        self.solver.stdin.write(command + "\n")
        self.solver.stdin.flush()
        answer = self.solver.stdout.readline()
        if not answer:
            raise RuntimeError(f"the solver ended with code {self.solver.wait()}")
        return answer

    def close(self):
        self.solver.stdin.close()  # the end of its commands is the solver's end
        try:
            self.solver.wait(5)
        except TimeoutExpired:
            self.solver.terminate()
