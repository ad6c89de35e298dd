"""A flow that must come to rest: a solver in C that is driven by files, as OpenFOAM is."""

from pathlib import Path

import numpy as np
from gymnasium import spaces

from shoal.envs.case_env import CaseEnv

CELLS, STEPS = 64, 25
X = np.arange(CELLS) * 2 * np.pi / CELLS


class Burgers(CaseEnv):
    """Push the flow with a force in the shape of a sine until it stands still."""

    template = Path(__file__).parent / "template"
    command = ("burgers",)
    timeout_s = 30
    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def prepare(self, options):
        """Begin with a random wave."""
        self.time = 0
        wave = self.np_random.uniform(-1, 1) * np.sin(X)
        np.savetxt(self.case / "state.txt", wave)
        return self._seen(wave)

    def inputs(self, action):
        """The force of control.txt.template."""
        return {"force": float(action[0])}

    def read_outputs(self):
        """The wave's two first modes; the less of it, the better."""
        self.time += 1
        wave = np.loadtxt(self.case / "state.txt")
        return self._seen(wave), -float(np.mean(wave**2)), False, self.time == STEPS

    def _seen(self, wave):
        return np.array([2 * np.mean(wave * np.sin(X)), 2 * np.mean(wave * np.cos(X))], np.float32)
