"""What a format is given, and what it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.config.model import ModelConfig
from shoal.export.plan import Plan, not_in_a_plan, plan_of, refusal
from shoal.export.proof import Answers, Questions
from shoal.models.policy import Policy


@dataclass(frozen=True)
class Subject:
    """The policy that is exported, and what is known of it."""

    policy: Policy
    model: ModelConfig
    algorithm: str
    env: str
    spaces: tuple[Any, Any]  # of observations and actions, as JSON has them
    experiment: Mapping[str, Any]
    summary: Mapping[str, Any]  # of the iteration that it is from
    checkpoint: Path
    video: Path | None = None

    @property
    def title(self) -> str:
        """How files call it, in words that no comment or string is ended by."""
        text = f"{self.algorithm} {self.env}"
        return "".join(c if c.isalnum() or c in " -_.:/" else "_" for c in text).replace("*/", "_")

    def plan(self, format_name: str) -> Plan:
        """Its plan; what has none is refused with the formats to take."""
        what = not_in_a_plan(self.policy, self.model)
        if what is not None:
            instead = "hub" if self.model.custom_action_dist is not None else "torchscript or onnx"
            raise refusal(format_name, what, instead)
        return plan_of(self.policy, self.model)


@dataclass(frozen=True)
class Request:
    """One export: write files that are called by a name into an empty folder, and let them answer."""

    subject: Subject
    asked: Questions
    folder: Path
    name: str
    fmi_version: str = "2.0"  # of `--format fmu`


@dataclass(frozen=True)
class Made:
    """Files that were written, and what they answered."""

    files: list[Path]
    answers: Answers | None  # None: nobody could be asked
    asked_by: str  # a compiler or a runtime
    unproved: str = ""  # why nobody was asked, and what to do about it
    notes: Mapping[str, Any] = field(default_factory=dict)  # for the proof's file
