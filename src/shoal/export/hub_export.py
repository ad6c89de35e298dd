"""`--format hub`: a folder as model hubs want it. Nothing is uploaded."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from shoal.export.made import Made, Request, Subject
from shoal.export.numpy_export import asked_numpy, write_numpy
from shoal.export.plan import action_fields, not_in_a_plan
from shoal.export.proof import Answers, largest_difference
from shoal.models.policy import Policy
from shoal.version import __version__

WEIGHTS, CONFIG, CARD, VIDEO = "policy.safetensors", "config.json", "README.md", "replay.mp4"
PRIVATE = ("search_path", "results_dir", "restore", "mark")
"""Keys of an experiment that are about this machine."""


def make_hub(request: Request) -> Made:
    """A card, the configuration, the weights, and a file that runs them where a plan can tell it."""
    subject = request.subject
    policy = subject.policy
    weights, config, card = (request.folder / name for name in (WEIGHTS, CONFIG, CARD))
    arrays = {name: np.ascontiguousarray(value) for name, value in policy.get_weights().items()}
    if policy.filter is not None:
        state = policy.filter.get_state()
        arrays["filter.mean"], arrays["filter.m2"] = state.arrays["mean"], state.arrays["m2"]
        arrays["filter.count"] = np.array([state.values["count"]])
        arrays["filter.clip"] = np.array([policy.filter.clip], np.float64)
    save_file(arrays, weights, metadata={"format": "np", "shoal": __version__})
    config.write_text(json.dumps(_config(subject), indent=1, default=str) + "\n")
    files, answers = [card, config, weights], _asked(request, weights)
    runs_alone = not_in_a_plan(policy, subject.model) is None
    if runs_alone:
        plan = subject.plan("hub")
        alone = write_numpy(request, plan, "policy.py")
        by_file = asked_numpy(request, plan, alone)
        if largest_difference(policy, request.asked, by_file) > largest_difference(policy, request.asked, answers):
            answers = by_file
        files.append(alone)
    if subject.video is not None:
        shutil.copy(subject.video, request.folder / VIDEO)
        files.append(request.folder / VIDEO)
    card.write_text(_card(subject, runs_alone, subject.video is not None))
    return Made(files, answers, f"NumPy {np.__version__}")


def _config(subject: Subject) -> dict[str, Any]:
    experiment = {key: value for key, value in subject.experiment.items() if key not in PRIVATE}
    return {
        "library_name": "shoal",
        "shoal_version": __version__,
        "algorithm": subject.algorithm,
        "env": subject.env,
        "observation_space": subject.spaces[0],
        "action_space": subject.spaces[1],
        "experiment": experiment,
    }


def _asked(request: Request, weights: Path) -> Answers:
    """What the policy answers with nothing but the numbers of the file."""
    policy, asked = request.subject.policy, request.asked
    before = policy.get_state(with_others=False)
    policy.network.params[:] = 0
    _fill(policy, load_file(weights))
    begin = time.process_time()
    fields = action_fields(policy.action_spec)
    if policy.recurrence is not None:
        actions, outputs = _one_by_one(policy, request)
    else:
        outputs = policy.network.act(policy.encoder(asked.parts)).copy()
        decoded = policy.action_spec.decoded(policy.distribution.mode(outputs))
        actions = np.concatenate([part.reshape(len(asked), -1).astype(np.float64) for part in decoded], axis=1)
    assert actions.shape[1] == sum(field.size for field in fields)
    seconds = time.process_time() - begin
    policy.set_state(before)
    return Answers(actions, outputs, 1e6 * seconds / len(asked))


def _fill(policy: Policy, arrays: Mapping[str, Any]) -> None:
    policy.set_weights({name: array for name, array in arrays.items() if not name.startswith("filter.")})
    if policy.filter is not None:
        state = policy.filter.get_state()
        policy.filter.mean[:] = 0
        state.values.update(count=float(arrays["filter.count"][0]), clip=float(arrays["filter.clip"][0]))
        state.arrays.update(mean=arrays["filter.mean"], m2=arrays["filter.m2"])
        policy.filter.set_state(state)


def _one_by_one(policy: Policy, request: Request) -> tuple[Any, Any]:
    """Actions and outputs of a policy with memory."""
    asked, rows, outputs = request.asked, [], []
    action: Any = None
    assert policy.recurrence is not None
    previous, state = policy.recurrence.previous, policy.get_initial_state()
    for row in range(len(asked)):
        if asked.begins[row]:
            action, state = None, policy.get_initial_state()
        action, state, details = policy.compute_single_action(
            policy.obs_spec.get(asked.parts, row),
            state,
            prev_action=action if previous.with_action else None,
            prev_reward=float(asked.rewards[row]) if previous.with_reward else None,
            explore=False,
        )
        flat = []
        for field in action_fields(policy.action_spec):
            value = action
            for key in field.path:
                value = value[key]
            flat.append(np.asarray(value, np.float64).reshape(-1))
        rows.append(np.concatenate(flat))
        outputs.append(details["action_dist_inputs"].copy())
    return np.stack(rows), np.stack(outputs)


def _card(subject: Subject, runs_alone: bool, has_video: bool) -> str:
    """README.md with the metadata that hubs read."""
    result = _result(subject.summary)
    spread = _finite(subject.summary, "evaluation/episode_reward_std")
    env, algorithm = json.dumps(subject.env), json.dumps(subject.algorithm)
    head = [
        "---",
        "library_name: shoal",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {tag}" for tag in ("reinforcement-learning", "deep-reinforcement-learning", "shoal", algorithm, env)),
    ]
    if result is not None:
        told = f"{result:.2f}" if spread is None else f"{result:.2f} +/- {spread:.2f}"  # as hubs order them
        head += [
            "model-index:",
            f"- name: {algorithm}",
            "  results:",
            "  - task: {type: reinforcement-learning, name: reinforcement-learning}",
            f"    dataset: {{name: {env}, type: {env}}}",
            f"    metrics: [{{type: mean_reward, value: {json.dumps(told)}, name: mean_reward}}]",
        ]
    text = [
        *head,
        "---",
        "",
        f"# {subject.algorithm} on {subject.env}",
        "",
        f"A policy that was trained by shoal {__version__}.",
        "",
        "| what | |",
        "|---|---|",
        f"| observations | `{_one_line(subject.policy.obs_spec.space)}` |",
        f"| actions | `{_one_line(subject.policy.action_spec.space)}` |",
        f"| parameters | {len(subject.policy.network.params):,} |",
    ]
    memory = _memory(subject)
    if memory:
        text.append(f"| memory | {memory} |")
    for key, words in RESULTS.items():
        value = _finite(subject.summary, key)
        if value is not None:
            text.append(f"| {words} | {value:,.10g} |")
    if has_video:
        text += ["", f"A recorded episode is in [{VIDEO}]({VIDEO})."]
    text += ["", "## Use", ""]
    if runs_alone:
        text += ["`policy.py` needs NumPy alone:", "", "```python", *_lines_of_use(subject.policy), "```", ""]
    if memory:
        text += ["The policy has a memory of the episode: it begins empty with each, and every step moves it on.", ""]
    text += [
        f"`{WEIGHTS}` has every parameter by its name, and mean, deviations and limit of the observation filter",
        f"where there is one; `{CONFIG}` has the spaces and the whole configuration of the training.",
        "",
    ]
    return "\n".join(text)


def _memory(subject: Subject) -> str:
    """What a policy remembers of an episode, in words; empty without memory."""
    policy, model = subject.policy, subject.model
    if policy.recurrence is None:
        return ""
    kinds = {"LSTM": model.use_lstm, "GRU": model.use_gru, "attention": model.use_attention}
    kind = next((name for name, is_used in kinds.items() if is_used), "of a custom model")
    previous = policy.recurrence.previous
    seen = [name for name, is_seen in (("action", previous.with_action), ("reward", previous.with_reward)) if is_seen]
    return f"{kind}; sees the last {' and '.join(seen)}" if seen else kind


def _lines_of_use(policy: Policy) -> list[str]:
    """A program that asks `policy.py`."""
    lines = ["from policy import Policy", "", "policy = Policy()"]
    if policy.recurrence is None:
        return [*lines, "action = policy.act(obs)"]
    lines += ["policy.reset()  # where an episode begins", "action = policy.act(obs)"]
    if policy.recurrence.previous.with_reward:
        return [*lines, "action = policy.act(next_obs, reward)  # each further step, with the reward of the last"]
    return [*lines, "action = policy.act(next_obs)  # each further step"]


RESULTS = {
    "evaluation/episode_reward_mean": "mean return in evaluation",
    "evaluation/episode_reward_std": "standard deviation of these returns",
    "evaluation/episode_reward_ci_low": "lower end of the 95 % interval of that mean",
    "evaluation/episode_reward_ci_high": "upper end of the 95 % interval of that mean",
    "evaluation/episodes_this_iter": "episodes of the evaluation",
    "episode_reward_mean": "mean return of the last episodes in training",
    "training_iteration": "training iterations",
    "timesteps_total": "environment steps",
}


def _result(summary: Mapping[str, Any]) -> float | None:
    """The mean return, of the checkpoint's own evaluation if it had one, otherwise of training."""
    measured = _finite(summary, "evaluation/episode_reward_mean")
    return _finite(summary, "episode_reward_mean") if measured is None else measured


def _finite(summary: Mapping[str, Any], key: str) -> float | None:
    value = summary.get(key)
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


def _one_line(space: Any) -> str:
    text = " ".join(str(space).split()).replace("|", "\\|").replace("`", "'")
    return text if len(text) <= 300 else text[:297] + "..."
