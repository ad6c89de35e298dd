"""Writes the parts of pages that follow from the code, between `<!-- NAME ARGUMENT -->` and `<!-- end -->`.

    python docs/generated_parts.py

The pages are read as they are in the repository, so these parts are kept in them; a test compares them with the code.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from shoal.cli.exit_codes import MEANINGS
from shoal.cli.migrate import _report
from shoal.cli.submit import submit
from shoal.cluster.batch_scripts import batch_script
from shoal.cluster.job_files import Source, job_from
from shoal.cluster.schedulers import BUILT_IN
from shoal.config.algorithms import ALGORITHMS
from shoal.config.dialects import ALGORITHMS_THERE, CHANGED, MOVED, WORDS
from shoal.config.migration import migrate
from shoal.config.migration_draft import reason
from shoal.config.settings import key_paths
from shoal.config.vocabulary import FOREIGN, FOREIGN_RESULTS

DOCS = Path(__file__).parent
OTHERS = ("containers.md", "exit_codes.md")
PAGES = sorted(
    [*(DOCS / "moving").glob("*.md"), *(DOCS / "schedulers").glob("*.md"), *(DOCS / name for name in OTHERS)]
)
PART = re.compile(r"(<!-- (\w+) ?([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
OLD = re.compile(r"^`([\w.-]+)`:\n\n```(?:yaml|json)\n(.*?)^```", re.MULTILINE | re.DOTALL)
JOBS = Path("/home/ada/.shoal/jobs")


def filled(page: str) -> str:
    """The page with its parts written anew."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]](part[3], page).rstrip()}\n{part[4]}", page)


def words(dialect: str, page: str) -> str:  # noqa: ARG001
    """The table of a library's words, and what they are here."""
    keys = {path for kind in ALGORITHMS.values() for path in key_paths(kind)}
    same = [word for word in CHANGED[dialect] if word not in WORDS[dialect]]
    rows = []
    for word in [*WORDS[dialect], *same]:
        meant = MOVED.get(word) or FOREIGN.get(word) or (f"config.{word}" if f"config.{word}" in keys else "")
        note = CHANGED[dialect].get(word, "")
        if " " in meant:
            meant, note = "gone" if "leave it out" in meant else "", note or reason(meant)
        rows.append(f"| `{word}` | {f'`{meant}`' if meant and meant != 'gone' else meant} | {_cell(note)} |")
    return "\n".join(["| there | here | what changes |", "|---|---|---|", *rows])


def results(_: str, page: str) -> str:  # noqa: ARG001
    """The names of results in stop criteria."""
    rows = [f"| `{there}` | `{here}` |" for there, here in FOREIGN_RESULTS.items()]
    return "\n".join(["| there | here |", "|---|---|", *rows])


def algorithms(_: str, page: str) -> str:  # noqa: ARG001
    """Algorithms that are not ours, and what comes closest."""
    rows = [f"| {there} | `{run}` | {_cell(why)} |" for there, (run, why) in ALGORITHMS_THERE.items()]
    return "\n".join(["| there | here | |", "|---|---|---|", *rows])


def migrated(_: str, page: str) -> str:
    """What `shoal migrate` makes of the page's old file."""
    name, text = old_file(page)
    return f"```yaml\n{migrate(text, name).text()}```"


def report(_: str, page: str) -> str:
    """What `shoal migrate` says about the page's old file."""
    name, text = old_file(page)
    lines = _report(migrate(text, name), Path("new.yml"), keep_defaults=False)
    return "\n".join(["```text", *lines, "```"])


def script(_: str, page: str) -> str:
    """The script that the page's `shoal submit --dry-run` prints, for ada."""
    typed = shlex.split(re.findall(r"^ {4}(shoal submit .*--dry-run .*)$", page, re.MULTILINE)[0])
    params = submit.make_context("submit", typed[typed.index("submit") + 1 :]).params
    flags = {key: value for key, value in params.items() if value and key not in ("dry_run", "file", "script")}
    job = job_from([Source({**flags, "command": list(params["command"])})])
    folder = JOBS / f"{job.name}-20261117-213005"
    text = batch_script(job, BUILT_IN[job.scheduler], Path("/home/ada/rl/bin"), folder)
    return f"```bash\n{text}```"


def exit_codes(_: str, page: str) -> str:  # noqa: ARG001
    """Every code that a command ends with."""
    rows = [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def old_file(page: str) -> tuple[str, str]:
    """The name and the text of the old file on a page."""
    found = OLD.search(page)
    assert found is not None
    return found[1], found[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("{", "`{").replace("}", "}`") if "{" in text else text.replace("|", "\\|")


PARTS: dict[str, Callable[[str, str], str]] = {
    part.__name__: part for part in (words, results, algorithms, migrated, report, script, exit_codes)
}

if __name__ == "__main__":
    for path in PAGES:
        before = path.read_text()
        after = filled(before)
        if after != before:
            path.write_text(after)
            print(f"{path}: written anew", file=sys.stderr)
