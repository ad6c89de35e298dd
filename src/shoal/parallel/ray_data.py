"""Recorded steps as Ray Data reads them, and its preprocessors as a policy's observation filter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal.config.offline import PreprocessorConfig
from shoal.data.filters import Numbers
from shoal.envs.experience_columns import ExperienceColumns
from shoal.models.encoder import Encoder
from shoal.parallel.offline_workers import OfflineWorkers


def read_dataset(workers: OfflineWorkers) -> Any:
    """The recorded steps in their order, as Ray Data has them."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    steps = workers.steps
    if steps.made is not None:
        return ray.data.from_arrow(steps.made).materialize()
    names = steps.columns(workers.names)
    return ray.data.read_parquet(list(steps.files)).select_columns(names).materialize()


def fit_filter(dataset: Any, workers: OfflineWorkers, scaler: PreprocessorConfig) -> None:
    """Fit one of Ray Data's scalers, and make it the policy's observation filter."""
    import ray.data.preprocessors

    policy = workers.policy
    assert policy.filter is not None
    where = f"config.input: {workers.steps.name}"
    numbers = dataset.map_batches(
        partial(_measurements, workers.columns, policy.encoder, where), batch_format="pyarrow", batch_size=None
    )
    names = [f"n{k}" for k in range(len(policy.filter.mean))]
    if scaler.name == "RobustScaler":
        policy.filter.set_scale(workers.steps.num_rows, *_median_and_range(numbers, names, scaler.quantile_range))
        return
    fitted = getattr(ray.data.preprocessors, scaler.name)(columns=names).fit(numbers)

    def found(statistic: str) -> Numbers:
        return np.array([fitted.stats_[f"{statistic}({name})"] for name in names], np.float64)

    if scaler.name == "StandardScaler":
        shift, scale = found("mean"), found("std")
    elif scaler.name == "MinMaxScaler":
        shift, scale = found("min"), found("max") - found("min")
    else:
        shift, scale = np.zeros(len(names)), found("abs_max")
    policy.filter.set_scale(workers.steps.num_rows, shift, scale)


def _median_and_range(
    numbers: Any, names: Sequence[str], quantile_range: tuple[float, float]
) -> tuple[Numbers, Numbers]:
    """RobustScaler's statistics, but exact ones: its own are those of a sketch, for which it needs one more package."""
    from ray.data.aggregate import Quantile

    wanted = {"low": quantile_range[0], "median": 0.5, "high": quantile_range[1]}
    every = [Quantile(name, q, alias_name=f"{what}({name})") for name in names for what, q in wanted.items()]
    found = numbers.aggregate(*every)
    low, median, high = (np.array([found[f"{what}({name})"] for name in names], np.float64) for what in wanted)
    return median, high - low


def _measurements(columns: ExperienceColumns, encoder: Encoder, where: str, table: Any) -> Any:
    """The numbers that a filter sees, a column for each."""
    import pyarrow as pa

    seen = encoder.measurements(columns.observed(table, where)[0])
    return pa.table({f"n{k}": pa.array(seen[:, k].astype(np.float64)) for k in range(seen.shape[1])})
