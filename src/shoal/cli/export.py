"""`shoal export`: a trained policy as files that run without shoal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path, typed_path
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.export.exporting import Exported
    from shoal.export.made import Subject
    from shoal.runs.checkpoints import Checkpoint

FORMATS = ("numpy", "c", "fortran", "onnx", "fmu", "hub", "torchscript", "torch_export")


@click.command(cls=Command)
@click.argument("path", metavar="RUN|CHECKPOINT|NAME", shell_complete=runs)
@click.option("--format", "format_name", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("-o", "--output", metavar="PATH", help="The file or folder to write; default: the run's name, here.")
@click.option("--best", is_flag=True, help="Export the best checkpoint of a run, not the newest.")
@click.option("--policy-id", metavar="NAME", help="Which policy to export, if the run has several.")
@click.option("--fmi-version", type=click.Choice(["2.0", "3.0"]), help="With --format fmu: the standard; default: 2.0.")
@click.option("--unproved", is_flag=True, help="Write it although there is no compiler here to prove it with.")
@where_option()
@trust_option
def export(
    path: str,
    format_name: str,
    output: str | None,
    best: bool,
    policy_id: str | None,
    fmi_version: str | None,
    unproved: bool,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Write a trained policy as files that run without shoal: in a program, a solver, a web service or a plant.

    \b
    numpy         one Python file that needs NumPy alone
    c             a header and a source in C99, without dependencies and allocation
    fortran       a Fortran module over that source
    onnx          an ONNX model (extra onnx)
    fmu           a co-simulation FMU of FMI 2.0 or 3.0
    hub           a folder with card, weights and configuration, as model hubs want it
    torchscript   a PyTorch module that C++ and Fortran (FTorch) can load
    torch_export  a program of torch.export, for Python with PyTorch and its compilers

    The observation filter, masks, memory and the scale and bounds of actions are inside. Each export is asked for 1000
    actions, and refused unless they are the policy's own; NAME.FORMAT.proof.json beside it has the numbers.
    """
    from shoal.cli.run_names import found_run
    from shoal.export.exporting import export as write
    from shoal.export.exporting import place_of
    from shoal.runs.loaded_policy import find_checkpoint

    if fmi_version is not None and format_name != "fmu":
        raise ConfigError(f"--fmi-version: is of --format fmu; leave it out for --format {format_name}")
    checkpoint = find_checkpoint(found_run(path, results_dir), best)
    subject = _subject(checkpoint, policy_id, trust)
    place = place_of(format_name, output, str(checkpoint.experiment_tree.get("name", "policy")))
    click.echo(f"{subject.algorithm} {subject.env}  {short_path(checkpoint.path)}")
    exported = write(subject, format_name, place, fmi_version or "2.0", unproved)
    for file in exported.files:
        click.echo(f"  {short_path(file)}")
    _tell_proof(exported)
    if format_name == "hub" and subject.video is None:
        run = typed_path(checkpoint.path.parent)
        click.echo(f"Note: the run has no video for the card; shoal report {run} --video films one.")


def _tell_proof(exported: Exported) -> None:
    from shoal.export.proof import BOUND, NUM_OBSERVATIONS

    if exported.difference is None:
        click.echo(f"NOT PROVED: {exported.unproved}")
        return
    click.echo(
        f"proved: {NUM_OBSERVATIONS} observations, largest difference {exported.difference:.2g} "
        f"(at most {BOUND:g}), by {exported.asked_by}"
    )
    click.echo(f"latency: {exported.microseconds:.3g} microseconds for one action")


def _subject(checkpoint: Checkpoint, policy_id: str | None, trust: bool) -> Subject:
    """The policy of a checkpoint with what is known of it."""
    from shoal.export.made import Subject
    from shoal.runs.folders import env_text
    from shoal.runs.loaded_policy import policy_of
    from shoal.runs.resuming import experiment_of

    experiment, _ = experiment_of(checkpoint.experiment_tree, trust)
    config = experiment.config
    if config.policy:
        raise ConfigError(
            f"{experiment.run}: a policy of RLlib's is made a run of shoal's first; type: shoal import "
            f"{typed_path(checkpoint.path)} --env {env_text(config.env)}"
        )
    names = config.multiagent.names
    if policy_id is None and len(names) > 1:
        raise ConfigError(f"this run has several policies; add --policy-id {' or --policy-id '.join(names)}")
    policy = policy_of(checkpoint, trust=trust, policy_id=policy_id)
    trees = checkpoint.state.values.get("spaces") or (None, None)
    trees = checkpoint.state.values.get("other_spaces", {}).get(policy_id, trees)
    return Subject(
        policy,
        config.for_policy(policy_id or names[0]).model,
        experiment.run,
        env_text(config.env),
        (trees[0], trees[1]),
        checkpoint.experiment_tree,
        checkpoint.summary,
        checkpoint.path,
        _newest_video(checkpoint.path.parent),
    )


def _newest_video(run: Path) -> Path | None:
    """The newest video of a run: of an evaluation, or its replay."""
    from shoal.runs.playing import REPLAY_FILE

    videos = [*sorted((run / "videos").glob("iteration_*.mp4")), *run.glob(REPLAY_FILE)]
    return max(videos, key=lambda video: video.stat().st_mtime, default=None)
