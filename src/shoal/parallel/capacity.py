"""Whether there is room for what a configuration takes, before Ray or an environment is started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.config.changing import unchecked
from shoal.config.evolution import EvolutionConfig
from shoal.config.layout import cpus_per_worker, fits, layout_of, total, workers_in
from shoal.config.off_policy import OffPolicyConfig
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError
from shoal.machine.cores import cores
from shoal.machine.memory import available_memory, bytes_text
from shoal.parallel.ray_address import starts_own_ray

progress = logging.getLogger("shoal.progress")

MOST_PER_CORE = 16  # CPUs that workers of a private Ray may ask for, for each core of the machine
PROCESS_BYTES = 60 << 20  # that a worker takes before it has an environment, at the least
BYTES_PER_PARAMETER = 4
STEP_BYTES = 24  # of a step in a batch beside its observation: action, reward, flags, probability, value, at the least
TRANSITION_BYTES = 12  # of a row of replay beside its observations, whose images share frames: action, reward, discount
ENV_BYTES = 4096  # of an environment in a process that has others: itself and its streams of random numbers
LEARNING_COPIES = 4  # of the parameters where they are learned: themselves, their gradient, Adam's two averages


def check_cluster(config: AlgorithmConfig, have: Mapping[str, float], who_has: str) -> None:
    """Refuse what would wait for a core or a GPU of a Ray that is there already, forever."""
    count = config.worker_count
    parts = [f"{count} worker{'s' * (count != 1)} of {cpus_per_worker(config):g} CPUs{_ranks(config)}"]
    if config.num_learners > 1:
        parts.append(f"{config.num_learners} learners of {config.num_cpus_per_learner:g}")
    if config.evaluation_num_workers:
        parts.append(f"{config.evaluation_num_workers} for evaluation")
    layout, cpus = layout_of(config), have.get("CPU", 0.0)
    if layout.cpus > cpus:
        fit = workers_in(config, cpus) if count else 0
        advice = f"use num_workers: {fit}, or auto" if fit else "give it more, or wait for others to end"
        raise ConfigError(
            f"config.{_counted(config)}: {' and '.join(parts)} need {layout.cpus:g}, {who_has} {cpus:g}; {advice}"
        )
    if layout.gpus > have.get("GPU", 0.0):
        raise ConfigError(f"config.num_gpus: {layout.gpus:g} are asked for, {who_has} {have.get('GPU', 0.0):g}")


def check_nodes(config: AlgorithmConfig, nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse workers that fit the cluster as a whole, but not its hosts: a process and its ranks are on one of them."""
    layout, most = layout_of(config), max((node.get("CPU", 0.0) for node in nodes), default=0.0)
    needed = cpus_per_worker(config)
    if layout.workers and needed > most:
        if config.env_ranks > most:
            advice = f"use env_ranks: {most:g} at most, or larger hosts"
        elif config.env_ranks:
            advice = f"use num_envs_per_worker: {int(most // config.env_ranks)} at most, and more workers"
        else:
            advice = f"use num_cpus_per_worker: {most:g} at most"
        key = "env_ranks" if config.env_ranks else "num_cpus_per_worker"
        raise ConfigError(
            f"config.{key}: a worker needs {needed:g} CPUs{_ranks(config)} of one host, and the largest offers "
            f"{most:g}; {advice}"
        )
    if config.env_ranks and not fits(layout.started, nodes):
        sizes = ", ".join(f"{node.get('CPU', 0.0):g}" for node in nodes)
        raise ConfigError(
            f"config.num_workers: {len(layout.started)} processes of {needed:g} CPUs{_ranks(config)} do not fit on "
            f"hosts that offer {sizes}; use num_workers: {workers_on(config, nodes)}, or auto"
        )


def workers_on(config: AlgorithmConfig, nodes: Sequence[Mapping[str, float]]) -> int:
    """As `workers_in`, for hosts of which each has whole workers only."""
    count = workers_in(config, sum(node.get("CPU", 0.0) for node in nodes))
    while count and config.env_ranks and not fits(layout_of(unchecked(config, num_workers=count)).started, nodes):
        count -= 1
    return count


def check_ranks_here(config: AlgorithmConfig) -> None:
    """Refuse more ranks than this machine can bear, where environments are in processes of this one; tell of many."""
    ranks, here = config.num_envs * config.env_ranks, cores()
    if ranks > MOST_PER_CORE * here:
        who = f"{config.num_envs} environments of {config.env_ranks} ranks need"
        if config.num_envs == 1:
            who = f"an environment of {config.env_ranks} ranks needs"
        raise ConfigError(
            f"config.env_ranks: {who} {ranks} slots, and "
            f"this machine has {here} cores (the limit is {MOST_PER_CORE} ranks for each); use fewer of them"
        )
    if ranks > here:
        progress.info("%d ranks share the %d cores of this machine, and are not bound to them", ranks, here)


def check_size(config: AlgorithmConfig) -> None:
    """Refuse what cannot fit, as far as the configuration alone tells: before a folder or an environment is made."""
    is_private = starts_own_ray()
    check_room(config, is_private)
    if is_private and _processes(config):
        check_machine(config)


def check_machine(config: AlgorithmConfig) -> None:
    """Refuse more processes than this machine can bear, where they are to run on a Ray of our own.

    Workers may share cores, since many simulators wait more than they compute, but not without end.
    """
    here = cores()
    layout, most = layout_of(config), MOST_PER_CORE * here
    count = len(layout.started)
    fit = workers_in(config, most)
    if config.env_ranks:
        check_nodes(config, [{"CPU": float(most)}])
    if layout.cpus > most:
        advice = f"use num_workers: {max(fit, 1)}, or auto"
        if config.worker_count:
            others = total(layout.evaluators + layout.learners, "CPU")
            share = int(1000 * max(most - others, 0) / config.worker_count) / 1000
            advice += f"; or num_cpus_per_worker: {share:g} if they wait more than they compute"
        raise ConfigError(
            f"config.{_counted(config)}: {count:,} processes that ask for {layout.cpus:g} CPUs are too many "
            f"for {here} cores (the limit is {MOST_PER_CORE} CPUs for each); {advice}"
        )


@dataclass(frozen=True)
class Share:
    """One part of the memory that a configuration takes, at the least."""

    key: str  # that makes it large
    name: str
    what: str
    bytes: int
    advice: Callable[[int], str]  # with so many bytes for it
    including: str = ""


def check_room(config: AlgorithmConfig, is_private: bool, obs_bytes: int = 0) -> None:
    """Refuse what this machine's memory cannot hold all together, with observations of so many bytes.

    `is_private`: the processes beside this one run here too.
    """
    count = _processes(config) if is_private else 0
    least_env = ENV_BYTES + obs_bytes
    shares = [_network(config, count), *_experience(config, STEP_BYTES + obs_bytes)]
    envs = config.num_envs if is_private else config.envs_per_worker
    shares.append(_counted_share("num_envs_per_worker", "environments", "environments", envs, least_env))
    if count:
        what = f"{count:,} processes take at least {bytes_text(count * PROCESS_BYTES)}"
        advice = lambda room: f"use {_counted(config)}: {_fewer_processes(config, room)}"  # noqa: E731
        shares.append(Share(_counted(config), "processes", what, count * PROCESS_BYTES, advice))
    _refuse_too_much(shares)


def check_network(config: AlgorithmConfig) -> None:
    """Refuse a network that this machine's memory cannot hold."""
    _refuse_too_much([_network(config, 0)])


def _refuse_too_much(shares: Sequence[Share]) -> None:
    free, needed = available_memory(), sum(share.bytes for share in shares)
    if needed <= free:
        return
    most = max(shares, key=lambda share: share.bytes)
    others = needed - most.bytes
    parts = " + ".join(f"{share.name} {bytes_text(share.bytes)}" for share in shares)
    total_text = f" ({parts} = {bytes_text(needed)})" if len(shares) > 1 else ""
    raise ConfigError(
        f"config.{most.key}: {most.what} of memory{most.including}, and {bytes_text(free)} are free{total_text}; "
        f"{most.advice(free if others >= free or most.bytes > free else free - others)}"
    )


def _network(config: AlgorithmConfig, others: int) -> Share:
    """The network with what learns it, and the copies of so many other processes."""
    parameters, model = least_parameters(config), config.model
    learners = config.num_learners if others and config.num_learners > 1 else 0
    copies = LEARNING_COPIES * (1 + learners) + others - learners
    key = max(WIDTHS, key=lambda key: _weights(_widths(config, key)))
    if _cell_weights(config) > _weights(_widths(config, key)):
        key = "lstm_cell_size"
    elif _attention_weights(config) > _weights(_widths(config, key)):
        key = max(ATTENTION, key=lambda key: int(getattr(model, key)))
    needed = parameters * BYTES_PER_PARAMETER * copies
    what = f"a network of {parameters:,} parameters takes {bytes_text(needed)}"
    including = (
        " with its gradient, its optimiser and the workers' copies" if others else " with gradient and optimiser"
    )
    return Share(f"model.{key}", "network", what, needed, lambda _: "use narrower layers", including)


def _experience(config: AlgorithmConfig, step_bytes: int) -> list[Share]:
    """What is learned from: a batch, and replay where there is one, which counts its observations itself."""
    if isinstance(config, EvolutionConfig):  # which has batches of episodes
        return []
    shares = [_counted_share("train_batch_size", "batch", "steps", config.train_batch_size, step_bytes)]
    if isinstance(config, OffPolicyConfig):
        rows = config.replay_buffer_config.capacity
        shares.append(_counted_share("replay_buffer_config.capacity", "replay", "transitions", rows, TRANSITION_BYTES))
    return shares


def _counted_share(key: str, name: str, things: str, count: int, each: int) -> Share:
    what = f"{count:,} {things} of at least {each:,} bytes take {bytes_text(count * each)}"
    return Share(key, name, what, count * each, lambda room: f"use {max(1, room // (2 * each)):,} or fewer")


def _processes(config: AlgorithmConfig) -> int:
    """The processes beside the driver; as of `layout_of`, which would make a bundle for each."""
    learners = config.num_learners if config.num_learners > 1 else 0
    return config.worker_count + config.evaluation_num_workers + learners


def _fewer_processes(config: AlgorithmConfig, room: int) -> int:
    fit = workers_in(config, MOST_PER_CORE * cores())
    return max(1, min(fit, room // PROCESS_BYTES - 1))


WIDTHS = ("fcnet_hiddens", "post_fcnet_hiddens", "sequence_hiddens")
ATTENTION = (
    "attention_num_transformer_units",
    "attention_dim",
    "attention_num_heads",
    "attention_head_dim",
    "attention_position_wise_mlp_dim",
    "attention_memory_inference",
)


def least_parameters(config: AlgorithmConfig) -> int:
    """What the network has at the least, whatever it sees and does: one number comes in, and one goes out."""
    model = config.model
    if model.custom_model is not None:
        return 0
    counts = sum(_weights(_widths(config, key)) for key in WIDTHS)
    counts += _cell_weights(config) + _attention_weights(config)
    is_one = model.vf_share_layers or config.acts_by_value
    return counts if is_one else 2 * counts


def _cell_weights(config: AlgorithmConfig) -> int:
    """The parameters by which a memory's cells see each other."""
    model = config.model
    if not (model.use_lstm or model.use_gru):
        return 0
    return int((4 if model.use_lstm else 3) * model.lstm_cell_size**2)


def _attention_weights(config: AlgorithmConfig) -> int:
    """The parameters inside of an attention's units: query, key, value and output, and the layers after them."""
    model = config.model
    if not model.use_attention:
        return 0
    inner = 4 * model.attention_dim * model.attention_num_heads * model.attention_head_dim
    after = 2 * model.attention_dim * model.attention_position_wise_mlp_dim
    distances = model.attention_num_heads * model.attention_memory_inference
    return int(model.attention_num_transformer_units * (inner + after + distances))


def _widths(config: AlgorithmConfig, key: str) -> Sequence[int]:
    """The layers of a key; those for a Sequence count where they are asked for, since few environments have one."""
    if key == "sequence_hiddens" and key not in config.model.model_fields_set:
        return ()
    return getattr(config.model, key) or ()


def _weights(widths: Sequence[int]) -> int:
    """Between layers of these widths, with their biases, from one number and to one."""
    return sum(a * b for a, b in pairwise((1, *widths, 1))) + sum(widths) if widths else 0


def _ranks(config: AlgorithmConfig) -> str:
    """What a worker's CPUs are for, where they are its environments' ranks."""
    count, ranks = config.envs_per_worker, config.env_ranks
    return f" ({count} environment{'s' * (count != 1)} of {ranks} rank{'s' * (ranks != 1)})" if ranks else ""


def _counted(config: AlgorithmConfig) -> str:
    """The key that makes the processes many."""
    is_evaluation = config.evaluation_num_workers > config.worker_count
    return "evaluation_num_workers" if is_evaluation else "num_workers"
