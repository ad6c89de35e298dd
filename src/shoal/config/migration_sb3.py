"""What hyperparameter files of rl-baselines3-zoo and Stable-Baselines3 say, in our words."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from shoal.config.dialects import ACTIVATIONS, CHANGED, here
from shoal.config.migration_draft import Draft, Wishes, settle_env, settle_run
from shoal.config.trpo import DAMPING_PER_NUMBER, MAX_KL_PER_NUMBER
from shoal.errors import ConfigError

LINEAR = re.compile(r"lin_([-+.\deE]+)")
ATARI_WRAPPER = "AtariWrapper"
WRAPPERS = {
    "TimeLimit": "TimeLimit",
    "ResizeObservation": "ResizeObservation",
    "GrayScaleObservation": "GrayscaleObservation",
    "GrayscaleObservation": "GrayscaleObservation",
    "FlattenObservation": "FlattenObservation",
    "RescaleAction": "RescaleAction",
    "ClipAction": "ClipAction",
    "TimeAwareObservation": "TimeAwareObservation",
}
"""Gymnasium's wrappers, by the names of old Gym."""

PER_NUMBER = "sb3-contrib's KL divergence is a mean over the numbers of an action: multiply by how many there are"

IDLE = ("policy", "verbose", "device", "tensorboard_log", "normalize_advantage", "seed_", "monitor_wrapper", "callback")


def translate(draft: Draft, title: str, body: Mapping[str, Any], source: str, wishes: Wishes) -> None:
    """Fill the draft with what the settings of one environment say."""
    settings = dict(body)
    _choose_run(draft, settings, source, wishes)
    _choose_env(draft, title, settings, source, wishes)
    steps = settings.pop("n_timesteps", settings.pop("total_timesteps", None))
    if steps is not None:
        word = "n_timesteps" if "n_timesteps" in body else "total_timesteps"
        draft.put(word, steps, "stop.timesteps_total", _whole(steps))
    _Translation(draft, body, steps).fill(settings)


def _choose_run(draft: Draft, settings: dict[str, Any], source: str, wishes: Wishes) -> None:
    said = wishes.run or settings.pop("algo", None)
    stem = PurePath(source).stem.lower()
    if said is None and re.fullmatch(r"(ppo|ppo_lstm|a2c|dqn|qrdqn|sac|td3|ddpg|tqc|crossq|trpo|ars)", stem):
        said = stem.upper()
    if said is None:
        by_words = {
            "n_epochs": "PPO",
            "clip_range": "PPO",
            "exploration_fraction": "DQN",
            "target_update_interval": "DQN",
        }
        by_words |= {"tau": "SAC", "cg_max_steps": "TRPO", "n_steps": "PPO"}
        said = next((run for word, run in by_words.items() if word in settings), None)
    if said is None:
        raise ConfigError(f"{source}: it does not say which algorithm it is for; give it with --run, such as PPO")
    settle_run(draft, "algo", said, source)
    draft.moved_settings[-1].line = None  # it is the file's name, and no line of it
    if str(said).upper() in ("PPO_LSTM", "RECURRENTPPO"):
        draft.set("config.model.use_lstm", True)


def _choose_env(draft: Draft, title: str, settings: dict[str, Any], source: str, wishes: Wishes) -> None:
    said = settings.pop("env", settings.pop("env_id", None))
    if wishes.env is not None:
        draft.put("env", said or title, "env", wishes.env)
    elif said is not None:
        settle_env(draft, "env", said)
    elif title in ("atari", "default"):
        raise ConfigError(f"{source}: {title} is for many environments; choose one with --env, such as ALE/Pong-v5")
    elif re.search(r"-v\d+$", title):
        settle_env(draft, "env", title)
        draft.moved_settings[-1].line = draft.line_of("")


class _Translation:
    """The settings of one environment, which follow from each other."""

    def __init__(self, draft: Draft, body: Mapping[str, Any], timesteps: Any) -> None:
        self.draft, self.body = draft, body
        self.timesteps = _whole(timesteps) if timesteps is not None else None
        self.is_replay = draft.run in ("DQN", "SAC")

    def fill(self, settings: dict[str, Any]) -> None:
        """Put every setting."""
        convert: dict[str, Callable[[str, Any], None]] = {
            "learning_rate": lambda word, value: self.scheduled(word, value, "config.lr"),
            "clip_range": lambda word, value: self.scheduled(word, value, "config.clip_param"),
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "n_envs": lambda word, value: self.draft.put(word, value, "config.num_envs_per_worker"),
            "ent_coef": self.ent_coef,
            "clip_range_vf": self.clip_range_vf,
            "normalize": self.normalize,
            "normalize_kwargs": lambda word, value: self.draft.gone(word, value, "the filter has no other settings"),
            "policy": self.policy,
            "policy_kwargs": self.policy_kwargs,
            "frame_stack": self.frame_stack,
            "env_wrapper": self.env_wrapper,
            "train_freq": self.train_freq,
            "gradient_steps": self.gradient_steps,
            "exploration_fraction": self.exploration_fraction,
            "target_kl": self.target_kl,
            "cg_damping": self.cg_damping,
            "n_delta": lambda word, value: self.pairs(word, value, "config.num_rollouts"),
            "n_top": lambda word, value: self.pairs(word, value, "config.rollouts_used"),
            "env_kwargs": self.env_kwargs,
            "replay_buffer_kwargs": self.replay_buffer_kwargs,
        }
        for word, value in settings.items():
            if word in IDLE and word not in convert:
                self.draft.idle(word, value)
            elif word in convert:
                convert[word](word, value)
            else:
                self.plain(word, word, value)

    def plain(self, there: str, word: str, value: Any) -> None:
        """A setting by the table of words."""
        meant = f"config.{word}" if f"config.{word}" in self.draft.known else here(word, self.draft.known)
        if isinstance(value, str) and LINEAR.fullmatch(value) and meant is not None and " " not in meant:
            self.scheduled(there, value, meant)
        elif meant is not None and " " not in meant:
            if value is None and meant != "config.grad_clip":
                self.draft.idle(there, value)
            else:
                self.draft.put(there, value, meant)
        elif value is None or value is False:
            self.draft.idle(there, value)
        else:
            self.draft.gone(there, value, meant or "nothing here has this name; `shoal config show` lists all keys")

    def scheduled(self, there: str, value: Any, path: str) -> None:
        """A number, or lin_NUMBER, which falls to 0 at the end of training."""
        found = LINEAR.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            self.draft.put(there, value, path)
        elif f"{path}_schedule" not in self.draft.known or self.timesteps is None:
            why = "it has no schedule here" if self.timesteps else "a schedule needs the number of steps: n_timesteps"
            self.draft.put(there, value, path, float(found[1]), f"{why}; it keeps its first value")
        else:
            points = [[0, float(found[1])], [self.timesteps, 0.0]]
            self.draft.put(there, value, f"{path}_schedule", points)

    def n_steps(self, there: str, value: Any) -> None:
        """Steps of each environment in a batch."""
        envs = self.body.get("n_envs", 1)
        if isinstance(value, int | float) and isinstance(envs, int):
            if "n_envs" not in self.body:
                self.draft.set("config.num_envs_per_worker", 1)
            self.draft.put(there, value, "config.train_batch_size", _whole(value) * envs)
        else:
            self.draft.put(there, value, "config.train_batch_size")

    def batch_size(self, there: str, value: Any) -> None:
        """The size of a minibatch, which is all that DQN and SAC take."""
        self.draft.put(there, value, "config.train_batch_size" if self.is_replay else "config.sgd_minibatch_size")

    def ent_coef(self, there: str, value: Any) -> None:
        """The weight of entropy; for SAC the temperature."""
        if self.draft.run != "SAC":
            self.plain(there, "ent_coef", value)
        elif value == "auto":
            self.draft.idle(there, value)
        else:
            now = float(value.removeprefix("auto_")) if isinstance(value, str) and value.startswith("auto_") else value
            self.draft.put(there, value, "config.initial_alpha", now, "it is adjusted on the way, from this value on")

    def clip_range_vf(self, there: str, value: Any) -> None:
        """Which is another thing here."""
        if value is None:
            self.draft.idle(there, value)
        else:
            self.draft.gone(there, value, CHANGED["sb3"]["clip_range_vf"])

    def normalize(self, there: str, value: Any) -> None:
        """Observations, rewards or both."""
        said = _literal(value) if isinstance(value, str) else value
        if not isinstance(said, bool | dict):
            self.draft.gone(there, value, "it is neither true nor a dictionary")
            return
        both = said if isinstance(said, dict) else {"norm_obs": said, "norm_reward": said}
        is_obs, is_reward = both.get("norm_obs", True) is not False, both.get("norm_reward", True) is not False
        now = "MeanStdFilter" if is_obs else "NoFilter"
        self.draft.set("config.normalize_rewards", is_reward)
        rewards = f"and normalize_rewards: {str(is_reward).lower()}"
        self.draft.put(there, value, "config.observation_filter", now, rewards)

    def policy(self, there: str, value: Any) -> None:
        """The network follows from the observations, but for memory."""
        if isinstance(value, str) and "Lstm" in value:
            self.draft.put(there, value, "config.model.use_lstm", True)
        else:
            self.draft.idle(there, value)

    def policy_kwargs(self, there: str, value: Any) -> None:
        """Arguments of the policy, in Python's syntax."""
        said = _literal(value) if isinstance(value, str) else value
        if not isinstance(said, dict):
            self.draft.gone(there, value, "it is no dict(...) of plain values; set config.model by hand")
            return
        for key, item in said.items():
            place = f"{there}.{key}"
            if key == "net_arch":
                self.net_arch(place, item)
            elif key == "activation_fn":
                name = str(item).rpartition(".")[2].lower()
                self.draft.put(place, item, "config.model.fcnet_activation", ACTIVATIONS.get(name, name))
            elif key == "optimizer_kwargs" and isinstance(item, dict):
                for option, number in item.items():
                    path = f"config.optimizer.{option}"
                    known = path in self.draft.known
                    self.draft.put(f"{place}.{option}", number, path) if known else self.draft.gone(
                        f"{place}.{option}", number, "the optimiser has eps and betas"
                    )
            elif key == "n_critics":
                self.draft.put(place, item, "config.twin_q", item != 1)
            elif key == "enable_critic_lstm":
                self.draft.put(place, item, "config.model.vf_share_layers", not item)
            else:
                self.plain(place, key, item)

    def net_arch(self, there: str, value: Any) -> None:
        """Widths of layers: a list, {pi: ..., vf: ...}, or shared layers before those."""
        layers = value if isinstance(value, list) else [value]
        shared: list[Any] = [item for item in layers if isinstance(item, int)]
        apart: dict[str, Any] = next((item for item in layers if isinstance(item, dict)), {})
        widths = [*apart.values(), shared]
        if len(shared) + bool(apart) != len(layers) or not all(isinstance(each, list) for each in widths):
            self.draft.gone(there, value, "it is neither a list of widths nor dict(pi=..., vf=...)")
            return
        policy = [*shared, *apart.get("pi", [])]
        others = [*shared, *apart.get("qf", apart.get("vf", []))] if apart else policy
        self.draft.put(there, value, "config.model.fcnet_hiddens", policy)
        if apart and shared:
            self.draft.moved_settings[-1].why = "the layers that both shared are each one's own"
        if policy != others and self.draft.run == "SAC":
            self.draft.set("config.q_model_config.fcnet_hiddens", others)
            self.draft.moved_settings[-1].why = f"and q_model_config.fcnet_hiddens: {others}, of the critics"
        elif policy == others:
            self.draft.moved_settings[-1].why = ""

    def frame_stack(self, there: str, value: Any) -> None:
        """The last frames together, which Atari games have anyway."""
        if self.is_atari:
            self.draft.idle(there, value)
        else:
            self.wrap(there, value, {"FrameStackObservation": {"stack_size": value}})

    def env_wrapper(self, there: str, value: Any) -> None:
        """Gymnasium's wrappers stay; others would need their package."""
        for item in value if isinstance(value, list) else [value]:
            name, arguments = next(iter(item.items())) if isinstance(item, dict) and item else (item, {})
            last = str(name).rpartition(".")[2]
            if value is None or last == ATARI_WRAPPER:
                self.draft.idle(there, item)
            elif last in WRAPPERS and str(name).startswith(("gym", "gymnasium")):
                told = dict(arguments) if isinstance(arguments, dict) else {}
                if last == "ResizeObservation" and isinstance(told.get("shape"), int):
                    told["shape"] = [told["shape"]] * 2
                self.wrap(there, item, {WRAPPERS[last]: told} if told else WRAPPERS[last])
            else:
                written = f"{str(name).rpartition('.')[0]}:{last}"
                why = f"where its package is installed and it is a wrapper of Gymnasium, write wrappers: [{written}]"
                self.draft.gone(there, item, why)

    def wrap(self, there: str, value: Any, wrapper: Any) -> None:
        """Add a wrapper around those there are."""
        wrappers = [*(self.draft.get("config.wrappers") or []), wrapper]
        self.draft.put(there, value, "config.wrappers", wrappers, "wrappers go from inside to outside")

    @property
    def is_atari(self) -> bool:
        env = str(self.draft.get("env"))
        return ATARI_WRAPPER in str(self.body.get("env_wrapper")) or env.startswith("ALE/") or "NoFrameskip" in env

    def train_freq(self, there: str, value: Any) -> None:
        """Steps of each environment between updates."""
        if isinstance(value, int):
            self.draft.set("config.n_step", 1)
            self.draft.put(there, value, "config.rollout_fragment_length")
            if "gradient_steps" not in self.body:
                self.gradient_steps("", 1)
        else:
            self.draft.gone(there, value, "updates come after steps, and not after episodes")

    def gradient_steps(self, there: str, value: Any) -> None:
        """Updates for each time that steps are taken: as many transitions for each step."""
        freq = self.body.get("train_freq", 4 if self.draft.run == "DQN" else 1)
        envs, size = self.body.get("n_envs", 1), self.body.get("batch_size", 32 if self.draft.run == "DQN" else 256)
        if value == -1:
            freq = 1
        if not all(isinstance(number, int) for number in (freq, envs, size, value)) or not freq * envs:
            self.draft.gone(there, value, "it follows from batch_size, n_envs and train_freq, which are no numbers")
            return
        intensity = float(size) if value == -1 else value * size / (freq * envs)
        if there:
            self.draft.put(there, value, "config.training_intensity", intensity)
        else:
            self.draft.set("config.training_intensity", intensity)

    def exploration_fraction(self, there: str, value: Any) -> None:
        """The share of training in which epsilon falls."""
        path = "config.exploration_config.epsilon_timesteps"
        if self.timesteps is None or not isinstance(value, int | float):
            self.draft.gone(there, value, "it is a share of n_timesteps, which is missing; set epsilon_timesteps")
        else:
            self.draft.put(there, value, path, max(1, math.ceil(value * self.timesteps)))

    def target_kl(self, there: str, value: Any) -> None:
        """PPO's is the same; TRPO's is a mean over the numbers of an action, and max_kl their sum."""
        if self.draft.run == "TRPO":
            self.per_number(there, value, "config.max_kl", MAX_KL_PER_NUMBER)
        else:
            self.plain(there, "target_kl", value)

    def cg_damping(self, there: str, value: Any) -> None:
        """What is added to the Fisher matrix of that mean."""
        if self.draft.run == "TRPO":
            self.per_number(there, value, "config.cg_damping", DAMPING_PER_NUMBER)
        else:
            self.plain(there, "cg_damping", value)

    def per_number(self, there: str, value: Any, path: str, auto: float) -> None:
        """A number that is there for each number of an action, and here for all of them together."""
        if value is None:
            self.draft.idle(there, value)
        elif value == auto:
            self.draft.put(there, value, path, "auto", f"auto is {value:g} for each number of an action")
        else:
            self.draft.put(there, value, path, why=PER_NUMBER)

    def replay_buffer_kwargs(self, there: str, value: Any) -> None:
        """Arguments of the replay buffer, of which none has a counterpart."""
        said = _literal(value) if isinstance(value, str) else value
        for key, item in said.items() if isinstance(said, dict) else [("", value)]:
            self.draft.gone(f"{there}.{key}".rstrip("."), item, "replay here has a capacity, and priorities")

    def pairs(self, there: str, value: Any, path: str) -> None:
        """Directions, each of which is tried on both sides."""
        self.draft.put(there, value, path, value * 2 if isinstance(value, int) else value)

    def env_kwargs(self, there: str, value: Any) -> None:
        """Arguments of the environment."""
        said = _literal(value) if isinstance(value, str) else value
        if isinstance(said, dict):
            self.draft.put(there, value, "config.env_config", said)
        else:
            self.draft.gone(there, value, "it is no dict(...) of plain values; set config.env_config by hand")


def _literal(text: str) -> Any:
    """What Python text says in dict(...), lists, numbers, text and names such as nn.ReLU; None if it is more.

    The text is parsed and never run.
    """
    try:
        return _value(ast.parse(" ".join(text.split()), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {str(_named(word)): _value(word.value) for word in node.keywords}
    if isinstance(node, ast.Dict):
        return {_value(_present(key)): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    return ast.literal_eval(node)


def _named(word: ast.keyword) -> str:
    if word.arg is None:
        raise ValueError("**")
    return word.arg


def _present(key: ast.expr | None) -> ast.expr:
    if key is None:
        raise ValueError("**")
    return key


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
