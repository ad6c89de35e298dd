"""Which output a configuration means, and sampled episodes as a Minari dataset.

Minari's datasets cannot be written file by file so that a killed run leaves a good one. So episodes become Parquet
files first, in a hidden folder where Minari keeps its datasets, and these become the dataset when the run ends; a run
that is resumed makes its dataset anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.data.batch import Batch
from shoal.data.state import State
from shoal.envs.experience_files import MINARI, RecordedSteps
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.runs.experience_output import ExperienceOutput


class MinariOutput(ExperienceOutput):
    """Makes a Minari dataset of the episodes when it is closed."""

    def __init__(self, dataset: str, policy: Policy, env_name: str, algorithm: str) -> None:
        from shoal.envs.minari_data import has_dataset, parts_folder

        super().__init__(parts_folder(dataset), policy, env_name)
        self.dataset, self.algorithm = dataset, algorithm
        self._is_taken = has_dataset(dataset)

    def check_new(self) -> None:
        """See `ExperienceOutput`; a dataset that some other run has made is never touched."""
        if self._is_taken:
            raise ConfigError(f"config.output: there is a Minari dataset {self.dataset} already; name another version")

    def add(self, batch: Batch, env_indices: Sequence[int]) -> None:
        """See `ExperienceOutput`."""
        self.check_new()
        super().add(batch, env_indices)

    def set_state(self, state: State | None) -> None:
        """See `ExperienceOutput`; a dataset that this run has made before is made anew."""
        super().set_state(state)
        self._is_taken = self._is_taken and state is None

    def close(self) -> None:
        """See `ExperienceOutput`."""
        from shoal.envs.minari_data import make_dataset

        super().close()
        if files := self.files():
            steps = RecordedSteps(self.dataset, tuple(map(str, files)))
            table, starts = steps.table(), steps.starts
            make_dataset(self.dataset, self.columns, table, starts, self.env_name, self.algorithm)


def start_output(place: str, policy: Policy, env_name: str, algorithm: str) -> ExperienceOutput:
    """The output that a configuration's `output` means: a folder, or `minari:DATASET`."""
    if not place.startswith(MINARI):
        return ExperienceOutput(Path(place).expanduser().absolute(), policy, env_name)
    return MinariOutput(place.removeprefix(MINARI), policy, env_name, algorithm)
