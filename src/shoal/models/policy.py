"""A policy: observations in, actions out, with everything that takes: spaces, filter, network and distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.data.batch import Batch
from shoal.data.filters import MeanStdFilter, Numbers
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.envs.observations import ObsLeaf, ObsSpec
from shoal.envs.spaces import ActionSpec, path_name
from shoal.errors import CheckpointError
from shoal.models.distributions import Distribution
from shoal.models.encoder import Encoder
from shoal.models.exploration import ByValue, EpsilonGreedy, OrnsteinUhlenbeck
from shoal.models.kernel import KernelUse
from shoal.models.network import Array, Inputs, Network
from shoal.models.recurrence import Recurrence

MISSING_STATE = "this policy has memory: pass the state that its last call returned, at first get_initial_state()"


class PrintedSummary(str):
    """A text that was printed already, so that a prompt does not show it once more."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<summary of {len(self.splitlines())} lines>"


class Model:
    """The network as a user looks at it."""

    def __init__(self, network: Network) -> None:
        self.network = network

    @property
    def base_model(self) -> Model:
        """The model itself: what classic RLlib calls so."""
        return self

    def summary(self) -> PrintedSummary:
        """Print a table of layers, shapes and parameter counts, and give it as text."""
        text = PrintedSummary(self.network.summary())
        print(text)  # noqa: T201
        return text


class Policy:
    """One policy over given spaces."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        network: Network,
        distribution: Distribution,
        encoder: Encoder,
        seed: int = 0,
        recurrence: Recurrence | None = None,
    ) -> None:
        self.obs_spec, self.action_spec = obs_spec, action_spec
        self.network, self.distribution, self.encoder = network, distribution, encoder
        self.ou: OrnsteinUhlenbeck | None = None  # of a sampler's noise; single calls know nothing of each other
        self.recurrence = recurrence  # None: without memory
        self.kernel_use: KernelUse | None = None  # None: `kernel: numpy`
        self.learns_by_probability = True  # else nobody asks for the outputs and log-probabilities of what was sampled
        self.others: dict[str, Policy] = {}  # those of other agents in the same environments, by their names
        self.candidates: Array | None = None  # [N, P]: the parameters of each environment's policy, where they differ
        # Outputs and values in one pass, where values come with hardly more work; None where they do not.
        self.act_and_value: Callable[[Inputs], tuple[Array, Array]] | None = None
        self._rng = generator(seed, Stream.SINGLE_ACTIONS)
        self._spaces = _spaces_tree(obs_spec, action_spec)
        self._layers = [[name, list(view.shape)] for name, view in network.named_params().items()]

    @property
    def model(self) -> Model:
        """The network, with a `summary()`."""
        return Model(self.network)

    @property
    def is_stochastic(self) -> bool:
        """Whether actions have log-probabilities under the policy, which a learner may ask for."""
        return not isinstance(self.distribution, ByValue)

    @property
    def num_kept_outputs(self) -> int:
        """How many numbers of the network's outputs sampling keeps for each step: all of them, or none."""
        if self.is_stochastic and self.learns_by_probability:
            return self.distribution.num_inputs
        return 0

    @property
    def filter(self) -> MeanStdFilter | None:
        """The observation filter, if there is one."""
        return self.encoder.filter

    @property
    def window(self) -> int:
        """The most steps that are learned from in one piece: those of a sequence, or one."""
        if self.recurrence is None:
            return 1
        return self.recurrence.window

    def get_initial_state(self) -> list[Array]:
        """The state in which an episode begins; empty without memory."""
        if self.recurrence is None:
            return []
        return [part.copy() for part in self.recurrence.initial_state]

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        *,
        prev_action: Any = None,
        prev_reward: float | None = None,
        explore: bool = True,
    ) -> Any:
        """The action for one observation, both as the environment's spaces have them.

        A policy with memory takes the state that its last answer gave, or where an episode begins
        `get_initial_state()`, and answers with action, state and a dict of details.
        """
        if self.recurrence is None:
            self._refuse_memory(state, prev_action, prev_reward)
            return self._chosen(self.network.act(self._encoded([obs])), explore)[0]
        actions, states, details = self._with_state([obs], [state], [prev_action], [prev_reward], explore)
        return actions[0], states[0], details[0]

    def compute_actions(
        self,
        observations: Any,
        state: Any = None,
        *,
        prev_action: Any = None,
        prev_reward: Any = None,
        explore: bool = True,
    ) -> Any:
        """One action per observation, in one pass of the network; a ValueError says what does not fit.

        Of a list or a batch of observations `[B, ...]` comes a list of actions, of a dict a dict with the same keys. A
        policy with memory takes states, and what was before, in the same form, and gives actions, states and details.
        """
        if isinstance(observations, np.ndarray) and observations.shape == self.obs_spec.space.shape:
            raise ValueError("observations: this is a single one; type compute_single_action, or give a list of them")
        keys = None
        if isinstance(observations, Mapping):
            keys, observations = list(observations), observations.values()
        observations = list(observations)
        if self.recurrence is None:
            self._refuse_memory(state, prev_action, prev_reward)
            return _keyed(keys, self._without_state(observations, explore))
        count = len(observations)
        states = _one_each("state", state, count, keys)
        prev_actions = _one_each("prev_action", prev_action, count, keys)
        prev_rewards = _one_each("prev_reward", prev_reward, count, keys)
        answer = self._with_state(observations, states, prev_actions, prev_rewards, explore)
        return tuple(_keyed(keys, part) for part in answer)

    def noise(self, rng: np.random.Generator, steps: int, env_index: int | None = None) -> Array:
        """All randomness that `steps` actions of one environment need, `[steps, M]`."""
        if isinstance(self.distribution, ByValue):
            return self.distribution.noise(rng, steps, env_index)
        return self.distribution.noise(rng, steps)

    def has_weights_of(self, state: State) -> bool:
        """Whether its parameters, and those of the others, are those of a state."""
        own = np.array_equal(self.network.params, state.arrays["params"])
        return own and all(p.has_weights_of(state.part("others").part(name)) for name, p in self.others.items())

    def get_weights(self) -> dict[str, Array]:
        """A copy of every parameter by name."""
        return {name: view.copy() for name, view in self.network.named_params().items()}

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite parameters by name; unknown names and other shapes are refused before anything changes."""
        views = self.network.named_params()
        for name, value in weights.items():
            if name not in views:
                raise ValueError(f"no parameter is called {name!r}; there are {', '.join(views)}")
            if np.shape(value) != views[name].shape:
                raise ValueError(f"{name} has shape {views[name].shape}, not {np.shape(value)}")
        for name, value in weights.items():
            views[name][...] = value
        self.network.sync()

    def set_stddev(self, stddev: float) -> None:
        """Set the spread of continuous actions where it is not learned (`GaussianNoise`)."""
        self.network.named_params()["log_std"][...] = np.log(stddev)
        self.network.sync()

    def learn_filter(self, batch: Batch, total: Callable[[Numbers], Numbers] = lambda numbers: numbers) -> None:
        """Let the filter see a batch's raw observations; `total` adds up what several learners have of it."""
        if self.filter is not None and self.obs_spec.vector_size:
            raw = batch.obs[0][batch.valid]
            self.filter.update(self.encoder.measurements(raw), total)

    def own_state(self) -> State:
        """Its state without those of the others, which another policy of the same form may take over."""
        return self.get_state(with_others=False)

    def get_state(self, with_others: bool = True) -> State:
        """Parameters, filter, the share of random actions, and the stream behind `compute_single_action`."""
        parts: dict[str, Any] = {"rng": self._rng.bit_generator.state, "spaces": self._spaces, "layers": self._layers}
        if isinstance(self.distribution, EpsilonGreedy):
            parts["epsilon"] = self.distribution.epsilon
        if self.filter is not None:
            parts["filter"] = self.filter.get_state()
        if self.candidates is not None:
            parts["candidates"] = self.candidates
        if self.others and with_others:
            parts["others"] = State.of(**{name: policy.get_state() for name, policy in self.others.items()})
        return State.of(params=self.network.params.copy(), **parts)

    def check_state(self, state: State) -> None:
        """Refuse a state of other spaces, another network or another filter."""
        for mine, theirs, what in zip(self._spaces, state.values["spaces"], ("observations", "actions"), strict=True):
            if mine != theirs:
                raise CheckpointError(f"the checkpoint's environment has other {what}: {theirs}, this one has {mine}")
        params = state.arrays["params"]
        if params.shape != self.network.params.shape:
            raise CheckpointError(
                f"the checkpoint's network has {len(params)} parameters and this one {len(self.network.params)}: "
                "environment or model differ from those it was trained with"
            )
        # The same length may be other layers: NumPy and PyTorch lay the same network out in another order.
        layers = state.values.get("layers", self._layers)  # checkpoints of older versions do not tell
        if layers != self._layers:
            raise CheckpointError(
                f"the checkpoint's network has other layers: {_first_difference(layers, self._layers)}"
            )
        if (self.filter is not None) != ("filter" in state.values):
            raise CheckpointError("observation_filter differs from the one the checkpoint was trained with")
        if set(self.others) != set(state.values.get("others", {})):
            theirs = ", ".join(state.values.get("others", {})) or "none"
            raise CheckpointError(
                f"the checkpoint has other policies beside its first: {theirs}, and this has "
                f"{', '.join(self.others) or 'none'}"
            )
        for name, policy in self.others.items():
            policy.check_state(state.part("others").part(name))

    def set_state(self, state: State) -> None:
        """Take over parameters, filter and stream; what does not fit is refused before anything changes."""
        self.check_state(state)
        self.network.params[:] = state.arrays["params"]
        self.network.sync()
        self._rng.bit_generator.state = state.values["rng"]
        if isinstance(self.distribution, EpsilonGreedy) and "epsilon" in state.values:
            self.distribution.epsilon = float(state.values["epsilon"])
        if self.filter is not None:
            self.filter.set_state(state.part("filter"))
        self.candidates = state.arrays.get("candidates")
        for name, policy in self.others.items():
            policy.set_state(state.part("others").part(name))

    def _without_state(self, observations: list[Any], explore: bool) -> list[Any]:
        """An action for every observation."""
        if not observations:
            return []
        return self._chosen(self.network.act(self._encoded(observations)), explore)

    def _with_state(
        self,
        observations: list[Any],
        states: list[Any],
        prev_actions: list[Any],
        prev_rewards: list[Any],
        explore: bool,
    ) -> tuple[list[Any], list[list[Array]], list[dict[str, Array]]]:
        """Actions, the states after them, and details, one of each for every observation."""
        recurrence, count = self.recurrence, len(observations)
        assert recurrence is not None
        if any(state is None for state in states):
            raise ValueError(MISSING_STATE)
        if not count:
            return [], [], []
        before = recurrence.previous.from_env(prev_actions, prev_rewards)
        outputs, after = recurrence.step((*self._encoded(observations), before), recurrence.stacked(states))
        details = [{"action_dist_inputs": row} for row in outputs]
        states_after: list[list[Array]] = []
        for row in range(count):
            states_after.append([part[row].copy() for part in after])
        return self._chosen(outputs, explore), states_after, details

    def _refuse_memory(self, state: Any, prev_action: Any, prev_reward: Any) -> None:
        """What only a policy with memory could use; the empty state of one without is welcome."""
        if isinstance(state, list | tuple) and not state:
            state = None
        for name, value in (("state", state), ("prev_action", prev_action), ("prev_reward", prev_reward)):
            if value is not None:
                raise ValueError(f"{name}: this policy has no memory; leave it out")

    def _encoded(self, observations: list[Any]) -> Inputs:
        rows = self.obs_spec.allocate(len(observations))
        for index, obs in enumerate(observations):
            if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict) and not _is_tuple(self.obs_spec):
                raise ValueError(
                    "observation: this is what reset() returns; type obs, info = env.reset(), and give obs"
                )
            self.obs_spec.put(obs, rows, index)
        return self.encoder(rows)

    def _chosen(self, outputs: Array, explore: bool) -> list[Any]:
        if explore:
            actions = self.distribution.sample(outputs, self.noise(self._rng, len(outputs)))
        else:
            actions = self.distribution.mode(outputs)
        return list(self.action_spec.decode(actions))


def _is_tuple(obs_spec: ObsSpec) -> bool:
    return isinstance(obs_spec.space, spaces.Tuple | spaces.Sequence)


def _keyed(keys: list[Any] | None, answers: list[Any]) -> Any:
    """One answer for each observation, by the keys that those had."""
    if keys is None:
        return answers
    return dict(zip(keys, answers, strict=True))


def _one_each(name: str, given: Any, count: int, keys: list[Any] | None) -> list[Any]:
    """One entry for each observation, None where nothing is given; a ValueError refuses what is in another form."""
    if given is None:
        return [None] * count
    if keys is not None:
        if not isinstance(given, Mapping):
            raise ValueError(f"{name}: must be a dict with the keys of the observations (got {type(given).__name__})")
        return [given.get(key) for key in keys]
    wanted = f"{name}: must be a list of one for each of {count} observations"
    is_list = isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim > 0)
    if not is_list:
        raise ValueError(f"{wanted} (got {given!r})")
    if len(given) != count:
        raise ValueError(f"{wanted} (got {len(given)})")
    return list(given)


def _spaces_tree(obs_spec: ObsSpec, action_spec: ActionSpec) -> list[list[list[Any]]]:
    """The form of observations and actions as JSON has it: by this a checkpoint knows its environment."""
    observations = [_leaf_tree(leaf) for leaf in obs_spec.leaves]
    actions = [[path_name(leaf.path), leaf.kind, leaf.size, list(leaf.choices)] for leaf in action_spec.leaves]
    return [observations, actions]


def _first_difference(theirs: list[list[Any]], mine: list[list[Any]]) -> str:
    pairs = zip_longest(theirs, mine, fillvalue=["nothing", []])
    there, here = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        f"{there[0]} {there[1]} where this one has {here[0]} {here[1]}; "
        "make the trainer with the model and the framework (numpy or torch) that it was trained with"
    )


def _leaf_tree(leaf: ObsLeaf) -> list[Any]:
    choices = [] if leaf.choices is None else leaf.choices.tolist()
    tree = [path_name(leaf.path), type(leaf.space).__name__, list(leaf.shape), choices]
    if leaf.items is not None:
        tree.append([_leaf_tree(item) for item in leaf.items.spec.leaves])
    return tree
