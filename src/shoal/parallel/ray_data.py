"""Recorded steps as Ray Data reads them, and its preprocessors as a policy's observation filter."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np

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


def fit_filter(dataset: Any, workers: OfflineWorkers, scaler: str) -> None:
    """Fit one of Ray Data's scalers, and make it the policy's observation filter."""
    import ray.data.preprocessors

    policy = workers.policy
    assert policy.filter is not None
    where = f"config.input: {workers.steps.name}"
    numbers = dataset.map_batches(
        partial(_measurements, workers.columns, policy.encoder, where), batch_format="pyarrow", batch_size=None
    )
    names = [f"n{k}" for k in range(len(policy.filter.mean))]
    fitted = getattr(ray.data.preprocessors, scaler)(columns=names).fit(numbers)

    def found(statistic: str) -> Numbers:
        return np.array([fitted.stats_[f"{statistic}({name})"] for name in names], np.float64)

    if scaler == "StandardScaler":
        shift, scale = found("mean"), found("std")
    elif scaler == "MinMaxScaler":
        shift, scale = found("min"), found("max") - found("min")
    else:
        shift, scale = np.zeros(len(names)), found("abs_max")
    policy.filter.set_scale(workers.steps.num_rows, shift, scale)


def _measurements(columns: ExperienceColumns, encoder: Encoder, where: str, table: Any) -> Any:
    """The numbers that a filter sees, a column for each."""
    import pyarrow as pa

    seen = encoder.measurements(columns.observed(table, where)[0])
    return pa.table({f"n{k}": pa.array(seen[:, k].astype(np.float64)) for k in range(seen.shape[1])})
