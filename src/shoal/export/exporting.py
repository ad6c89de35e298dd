"""Writing an export: into a temporary folder, proved there, and only then in its place."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from shoal.errors import ConfigError, ShoalError
from shoal.export.c_export import make_c, make_fortran
from shoal.export.fmu_export import make_fmu
from shoal.export.hub_export import make_hub
from shoal.export.made import Made, Request, Subject
from shoal.export.numpy_export import make_numpy
from shoal.export.onnx_export import make_onnx
from shoal.export.plan import obs_fields
from shoal.export.proof import BOUND, largest_difference, questions
from shoal.runs.atomic_files import refuse_foreign
from shoal.version import __version__

PROOF = ".proof.json"
LONGEST_NAME = 40  # of Fortran's 63 letters, with room for `_num_outputs`


def _by_torch(format_name: str) -> Callable[[Request], Made]:
    """What makes a format of PyTorch's, which is imported only then."""

    def make(request: Request) -> Made:
        if find_spec("torch") is None:
            raise ConfigError(
                f"--format {format_name} needs PyTorch, which is not installed; type: pip install 'shoal-rl[torch]'"
            )
        from shoal.export.torch_module import make_torch_export, make_torchscript

        return (make_torchscript if format_name == "torchscript" else make_torch_export)(request)

    return make


@dataclass(frozen=True)
class Format:
    """One format: what makes it, and the ending of its file; none if it is a folder."""

    make: Callable[[Request], Made]
    ending: str


FORMATS = {
    "numpy": Format(make_numpy, ".py"),
    "c": Format(make_c, ""),
    "fortran": Format(make_fortran, ""),
    "onnx": Format(make_onnx, ".onnx"),
    "fmu": Format(make_fmu, ".fmu"),
    "hub": Format(make_hub, ""),
    "torchscript": Format(_by_torch("torchscript"), ".pt"),
    "torch_export": Format(_by_torch("torch_export"), ".pt2"),
}


KNOWN_ENDINGS = {form.ending for form in FORMATS.values()} - {""} | {
    *(".c", ".h", ".f90", ".f", ".so", ".o", ".md", ".txt", ".json", ".yaml", ".zip", ".gz", ".pth", ".pkl", ".npz"),
    ".safetensors",
}
"""Whoever types one of these means a file of that kind."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was proved."""

    files: list[Path]  # the proof last
    difference: float | None  # None: not proved
    microseconds: float | None
    asked_by: str
    unproved: str


def place_of(format_name: str, output: str | None, experiment: str) -> Path:
    """Where an export goes: what was asked for, or a place of the experiment's name here; misfits are refused."""
    ending = FORMATS[format_name].ending
    name = identifier(experiment)
    if output is None:
        return Path.cwd() / (name + ending if ending else f"{name}_{format_name}")
    place = Path(output).expanduser().absolute()
    if ending and place.is_dir():
        place = place / (name + ending)
    elif ending and place.suffix.lower() not in KNOWN_ENDINGS:  # a dot may be a part of the name, as in an env's
        place = place.with_name(place.name + ending)
    if ending and place.suffix != ending:
        raise ConfigError(f"-o {output}: --format {format_name} writes a file that ends with {ending}")
    if not ending and place.is_file():
        raise ConfigError(f"-o {output}: --format {format_name} writes a folder, and this is a file; give another name")
    if not ending and place.suffix.lower() in KNOWN_ENDINGS:
        raise ConfigError(
            f"-o {output}: --format {format_name} writes a folder of files; write -o {Path(output).with_suffix('')}"
        )
    if not place.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no folder {place.parent}; give a folder that exists")
    if not ending and place.is_dir() and any(place.iterdir()) and not list(place.glob(f"*{PROOF}")):
        raise ConfigError(f"-o {output}: this folder has other files in it; give a new one, or one of an older export")
    return place


def identifier(text: str) -> str:
    """A name that C, Fortran and Python take."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:LONGEST_NAME]
    return name if name and not name[0].isdigit() else f"policy_{name}".rstrip("_")


def export(
    subject: Subject, format_name: str, place: Path, fmi_version: str = "2.0", may_be_unproved: bool = False
) -> Exported:
    """Write a policy in a format; what cannot be proved here, or differs by more than rounding, is refused."""
    form = FORMATS[format_name]
    policy = subject.policy
    asked = questions(policy, obs_fields(policy.obs_spec))
    name = identifier(place.stem if form.ending else _without(place.name, format_name))
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as folder:
        request = Request(subject, asked, Path(folder), name, fmi_version)
        made = form.make(request)
        difference = None
        if made.answers is None and not may_be_unproved:
            raise ConfigError(
                f"--format {format_name}: {made.unproved}, so the export cannot be proved; install one, name "
                "it by CC or FC, export where there is one, or add --unproved"
            )
        if made.answers is not None:
            difference = largest_difference(policy, asked, made.answers)
            if difference > BOUND:
                what_next = "please report it"
                if subject.model.custom_model is not None:
                    what_next = "a model whose steps depend on the numbers that it sees takes --format hub"
                raise ShoalError(
                    f"--format {format_name}: the export differs from the policy by {difference:.3g}, and rounding "
                    f"explains {BOUND:g}; nothing was written: {what_next}"
                )
        microseconds = None if made.answers is None else made.answers.microseconds
        proof = Path(folder) / f"{place.stem if form.ending else name}.{format_name}{PROOF}"
        result = Exported([*made.files, proof], difference, microseconds, made.asked_by, made.unproved)
        proof.write_text(json.dumps(_proof(subject, format_name, made, result, len(asked)), indent=1) + "\n")
        return replace(result, files=_put(result.files, place, bool(form.ending)))


def _without(name: str, format_name: str) -> str:
    """The name of a folder without the format at its end, which is there by default."""
    return name.removesuffix(f"_{format_name}") or name


def _proof(subject: Subject, format_name: str, made: Made, result: Exported, count: int) -> dict[str, Any]:
    """What is written beside an export."""
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in made.files}
    return {
        "format": format_name,
        "policy": subject.title,
        "checkpoint": f"{subject.checkpoint.parent.name}/{subject.checkpoint.name}",
        "shoal": __version__,
        "proved": result.difference is not None,
        "not_proved_because": result.unproved or None,
        "observations": count if result.difference is not None else 0,
        "largest_difference": result.difference,
        "bound": BOUND,
        "microseconds_per_action": result.microseconds,
        "asked_by": result.asked_by or None,
        "machine": f"{platform.system()} {platform.machine()}",
        **made.notes,
        "sha256": hashes,
    }


def _put(files: list[Path], place: Path, is_file: bool) -> list[Path]:
    """Move finished files, the proof last, to their place; returns where they are."""
    folder = place.parent if is_file else place
    targets = [place if is_file and file.suffix == place.suffix else folder / file.name for file in files]
    exported = _exported_hashes(folder)

    def is_export(file: BinaryIO) -> bool:
        """Whether a file is as an export left it."""
        return hashlib.sha256(file.read()).hexdigest() in exported

    for target in targets[:-1]:
        refuse_foreign(target, "export as shoal wrote it", is_export)
    try:
        folder.mkdir(exist_ok=True)
        for file, target in zip(files, targets, strict=True):
            beside = target.with_name(f".{target.name}.part")
            shutil.copy(file, beside)
            beside.replace(target)
    except OSError as error:
        raise ShoalError(f"{place} cannot be written: {error.strerror or error}; give another place with -o") from error
    return targets


def _exported_hashes(folder: Path) -> set[str]:
    """The SHA-256 of each file that the proofs of a folder are about."""
    found: set[str] = set()
    for proof in folder.glob(f"*{PROOF}"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # of somebody else
            found.update(json.loads(proof.read_bytes())["sha256"].values())
    return found
