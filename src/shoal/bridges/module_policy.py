"""A trained module of RLlib as our runs, evaluations and programs use a policy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.bridges.plain_spaces import PlainForm
from shoal.data.streams import Stream, generator
from shoal.errors import ConfigError
from shoal.models.exploration import ByValue
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy


class ModuleActions(ByValue):
    """The actions of an RLModule, in the form of an action distribution whose inputs are the observations."""

    def __init__(self, policy: ModulePolicy, num_inputs: int) -> None:
        super().__init__(num_inputs, 1)
        self._policy = policy

    def noise(self, rng: np.random.Generator, steps: int, env_index: int | None = None) -> Array:
        """The seed of each step's chance, `[steps, 1]`."""
        del env_index
        return rng.integers(0, 1 << 24, (steps, 1)).astype(np.float32)

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """See `ByValue`."""
        return self._policy.actions(inputs, int(noise.sum()))

    def mode(self, inputs: Array) -> NDArray[Any]:
        """See `ByValue`."""
        return self._policy.actions(inputs, None)


class SeenObservations:
    """Stands where a policy has its network: hands observations on as RLlib sees them."""

    def __init__(self, form: PlainForm, module: Any) -> None:
        self._form, self._module = form, module

    def act(self, parts: Inputs) -> Array:
        """The observations `[B, ...]`, for `ModuleActions`."""
        return self._form.seen(parts)

    def summary(self) -> str:
        """The parameters of RLlib's module, for `shoal model`."""
        found = [(name, tuple(value.shape), value.numel()) for name, value in self._module.named_parameters()]
        width = max(len(name) for name, _, _ in found)
        lines = [f"{name:<{width}}  {shape!s:<14} {count:>10,}" for name, shape, count in found]
        return "\n".join([*lines, f"{'all':<{width}}  {'':<14} {sum(count for _, _, count in found):>10,}"])


class ModulePolicy(Policy):
    """An RLModule of RLlib as our runs, evaluations and programs use a policy; without a module it only has a form."""

    def __init__(self, form: PlainForm, module: Any = None, timesteps: int = 0, seed: int = 0) -> None:
        self.obs_spec, self.action_spec = form.obs_spec, form.action_spec
        self.module, self._form, self._timesteps = module, form, timesteps
        self.network: Any = SeenObservations(form, module)
        self.encoder: Any = lambda parts: parts
        self.distribution: Any = ModuleActions(self, math.prod(form.observation_space.shape))
        self.ou = self.recurrence = self.candidates = self.act_and_value = None
        self._rng = generator(seed, Stream.SINGLE_ACTIONS)

    @property
    def filter(self) -> None:
        """RLlib's policies have none of ours."""
        return

    def get_weights(self) -> dict[str, Array]:
        """A copy of every parameter of the module, by RLlib's names."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.module.named_parameters()}

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Refused: RLlib's learner has the weights, and would not know."""
        raise ConfigError("set_weights: the weights of a run of RLlib's are set by restore(checkpoint)")

    def actions(self, seen: Array, seed: int | None) -> NDArray[Any]:
        """Rows of actions for observations as RLlib sees them: by chance, from a seed, or the best."""
        import torch

        module = self.module
        batch = {"obs": torch.from_numpy(np.ascontiguousarray(seen))}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if seed is None:
                outputs, kind = module.forward_inference(batch), module.get_inference_action_dist_cls
            else:
                torch.manual_seed(seed)
                needs_time = "t" in inspect.signature(module._forward_exploration).parameters
                more = {"t": self._timesteps} if needs_time else {}
                outputs, kind = module.forward_exploration(batch, **more), module.get_exploration_action_dist_cls
            if "actions" in outputs:
                actions = outputs["actions"]
            else:
                distribution = kind().from_logits(outputs["action_dist_inputs"])
                actions = (distribution.to_deterministic() if seed is None else distribution).sample()
        if isinstance(actions, tuple | list):
            return self._form.rows(tuple(part.numpy() for part in actions))
        return self._form.rows(actions.numpy())
