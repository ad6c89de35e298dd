"""`shoal diagnose`: why a run does not learn."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import runs
from shoal.cli.findings import tell, verdict_counts
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.data.findings import Finding
from shoal.data.number_text import counted
from shoal.errors import CheckpointError, EnvError, NotTrusted, ShoalError

if TYPE_CHECKING:
    from shoal.data.played import Played
    from shoal.runs.checkpoints import Checkpoint

WIDTH = 18
PLAY_REMEDY = "`shoal check` tries the environment; --no-play only reads the run"


@click.command(cls=Command)
@click.argument("path", metavar="RUN|CHECKPOINT|NAME", shell_complete=runs)
@click.option("--no-play", is_flag=True, help="Only read the run's folder; play no episode.")
@click.option("--episodes", type=click.IntRange(1), default=40, show_default=True, help="Episodes to play.")
@click.option(
    "--max-steps", type=click.IntRange(1), default=20_000, show_default=True, help="Steps after which play ends."
)
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds after which play ends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, for programs.")
@where_option()
@trust_option
def diagnose(
    path: str,
    no_play: bool,
    episodes: int,
    max_steps: int,
    budget: float,
    as_json: bool,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Find out why a run does not learn: what is suspicious, the numbers that show it, and what to --set.

    It reads the results, the configuration, the incidents and the newest checkpoint, and then plays some episodes with
    the policy, with chance as in training. The run may still be training. The exit code is 1 if there is a problem.
    """
    from shoal.cli.run_names import found_run
    from shoal.reports.diagnosis import diagnosis, progress_text
    from shoal.reports.run_facts import facts_of
    from shoal.runs.folders import find_run

    place = found_run(path, results_dir, is_trained=False, tells=not as_json)
    folder = find_run(place)
    facts = facts_of(folder)
    own: list[Finding] = []
    checkpoint = _checkpoint(place, own)
    weights = {} if checkpoint is None else _weights(checkpoint, own, trust)
    played = None
    if checkpoint is not None and not no_play:
        played = _played(checkpoint, own, episodes, max_steps, budget, trust)
    facts = replace(facts, weights=weights)
    found = diagnosis(facts, played, own)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        click.echo(f"{facts.algorithm} {facts.env}  {short_path(folder)}\n{progress_text(facts)}")
        for finding in found:
            tell(finding, WIDTH)
        click.echo(_conclusion(found))
    if any(finding.verdict == "problem" for finding in found):
        raise SystemExit(1)


def _checkpoint(place: Path, own: list[Finding]) -> Checkpoint | None:
    from shoal.runs.loaded_policy import find_checkpoint

    try:
        return find_checkpoint(place)
    except CheckpointError as error:
        own.append(Finding("checkpoint", "note", f"{error} So neither weights nor play can be looked at"))
        return None


def _weights(checkpoint: Checkpoint, own: list[Finding], trust: bool) -> dict[str, Any]:
    """The parameters by name; a network of the user's own may not be there any more."""
    from shoal.runs.loaded_policy import policy_of

    try:
        return dict(policy_of(checkpoint, trust=trust).get_weights())
    except ShoalError as error:
        own.append(Finding("checkpoint", "note", f"its weights cannot be read: {error}"))
        return {}


def _played(
    checkpoint: Checkpoint, own: list[Finding], episodes: int, max_steps: int, budget_s: float, trust: bool
) -> Played | None:
    from shoal.runs.probing import probe

    try:
        return probe(checkpoint, episodes, max_steps, budget_s, trust)
    except NotTrusted:
        raise
    except ShoalError as error:
        sentence = str(error).splitlines()[0]
        text = f"the policy could not be played: {sentence}"
        own.append(Finding("play", "problem" if isinstance(error, EnvError) else "note", text, PLAY_REMEDY))
        return None


def _conclusion(found: list[Finding]) -> str:
    counts = verdict_counts(finding.verdict for finding in found)
    if counts["problem"]:
        return f"{counted(counts['problem'], 'problem')}: begin with the first."
    if counts["warning"]:
        return f"{counted(counts['warning'], 'warning')}: begin with the first, and change one thing at a time."
    return "Nothing suspicious."
