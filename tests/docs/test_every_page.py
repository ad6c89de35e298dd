"""Every page is looked at: its commands are ones that shoal takes, and one list says which test runs them.

A page, a line or a program that is new fails here until the list has it, with the test that runs it or the reason why
none does. `test_page_commands.py` types the lines of pages that have no test of their own.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from importlib.metadata import metadata
from pathlib import Path
from textwrap import dedent

import click
import pytest
import tomllib
from pages import ROOT, Page, pages, words_of

from shoal.cli.main import COMMANDS, main
from shoal.config.algorithms import ALGORITHMS
from shoal.config.experiment import Experiment

# How many of what a page has are run by a test: lines that are typed, of `shoal` and of `other` programs, and fenced
# blocks by their language. `*` stands for all that there are, where the test takes whatever is on the page.
# An `answer` is an indented line that is no command. What WITHOUT_TEST explains is not counted.
TESTS = """
README.md                      4 shoal 1 python test_readme.py
docs/agents.md                 * shoal test_page_commands.py; 1 python 2 yaml test_agents_page.py
docs/algorithms.md             3 shoal 2 python 1 toml test_algorithms_page.py
docs/appo.md                   * shoal test_page_commands.py
docs/board.md                  * shoal test_page_commands.py; 2 answer
docs/calling_in.md             1 shoal 3 other 1 yaml test_calling_in_page.py
docs/cases.md                  1 shoal 1 other 2 python test_cases_page.py
docs/checkpoints.md            1 python test_site.py
docs/cluster.md                * shoal test_page_commands.py; 1 yaml test_moving_pages.py
docs/commands.md               * shoal 2 other test_page_commands.py
docs/containers.md             * shoal test_page_commands.py; 1 yaml test_moving_pages.py
docs/curriculum.md             3 python 1 yaml test_curriculum.py
docs/diagnose.md               * shoal test_page_commands.py
docs/doctor.md                 * shoal test_page_commands.py
docs/doors/dm_control.md       2 shoal 1 python test_doors_pages.py
docs/doors/minari.md           2 shoal test_doors_pages.py
docs/doors/old_gym.md          4 shoal 2 python test_doors_pages.py
docs/doors/unity.md            2 answer
docs/doors/pettingzoo.md       3 shoal test_doors_pages.py
docs/environments.md           * shoal test_page_commands.py; 2 python 1 yaml test_pages.py
docs/evaluation.md             * shoal test_page_commands.py; 1 yaml 1 python test_evaluation_page.py; 3 answer
docs/evolution.md              * shoal test_page_commands.py
docs/export.md                 * shoal test_page_commands.py; 2 other 2 python 1 c 1 fortran test_export_page.py
docs/file_formats.md           1 python test_howto_pages.py
docs/fmu.md                    2 shoal 1 other 1 yaml test_fmu_page.py
docs/gtp.md                    1 python test_go.py
docs/importing.md              * shoal test_page_commands.py
docs/index.md                  * shoal test_page_commands.py; * {toctree} test_site.py
docs/kernel.md                 * shoal test_page_commands.py; 2 answer
docs/lines.md                  3 shoal 1 other 1 yaml 1 c test_lines_page.py
docs/loggers.md                * shoal test_page_commands.py; 1 yaml 1 python 1 toml test_loggers_page.py
docs/models.md                 3 python 1 yaml test_pages.py
docs/moving/from_rllib1.md     * shoal test_page_commands.py; * yaml test_moving_pages.py
docs/moving/from_rllib2.md     * shoal test_page_commands.py; * yaml 1 json test_moving_pages.py
docs/moving/from_sb3.md        * shoal test_page_commands.py; * yaml test_moving_pages.py
docs/mpi.md                    1 shoal 1 yaml 1 python test_mpi_page.py
docs/offline.md                * shoal test_offline_page.py
docs/overview.md               * shoal 1 yaml 1 python test_readme.py
docs/plugins.md                3 shoal 1 toml test_plugin_example.py
docs/presets.md                * shoal test_page_commands.py; 1 yaml 1 python test_presets_page.py
docs/profile.md                * shoal test_page_commands.py; 1 answer
docs/ray_train.md              * shoal test_offline_page.py
docs/receipts.md               * shoal test_page_commands.py
docs/reliability.md            3 other test_reliability_page.py
docs/report.md                 * shoal 2 python test_report_page.py; 1 answer
docs/resume.md                 6 shoal test_howto_pages.py; 1 bash test_every_page.py
docs/rllib.md                  1 yaml test_rllib_page.py
docs/sac.md                    * shoal test_page_commands.py
docs/same_result.md            1 python test_site.py
docs/schedulers/cobalt.md      1 shoal 1 bash test_moving_pages.py
docs/schedulers/grid_engine.md 1 shoal 1 bash test_moving_pages.py
docs/schedulers/lsf.md         1 shoal 1 bash test_moving_pages.py
docs/schedulers/pbs.md         1 shoal 1 bash test_moving_pages.py
docs/schedulers/slurm.md       1 shoal 1 bash test_moving_pages.py
docs/security.md               1 python test_security_page.py; 2 answer
docs/seeds/eagle.md            1 python 1 yaml test_seeds.py
docs/seeds/learning-ray.md     2 shoal 1 python test_learning_ray_page.py
docs/serve.md                  * shoal test_page_commands.py; 2 other 1 python 1 c test_serve_page.py
docs/simulators.md             6 shoal 1 yaml test_simulators_page.py
docs/spaces.md                 3 python test_pages.py
docs/speed.md                  3 shoal test_howto_pages.py
docs/start/first_run.md        * shoal 1 yaml test_site.py
docs/start/laptop_to_cluster.md 2 shoal test_site.py; 1 shoal test_page_commands.py
docs/start/own_simulator.md    * shoal 1 python test_site.py
docs/start/reading_results.md  1 python test_site.py
docs/sweep_answer.md           * shoal 1 python test_page_commands.py
docs/tuning.md                 * shoal test_page_commands.py; 1 yaml 1 python test_tuning.py
docs/vector_envs.md            2 python test_doors_pages.py
docs/watching.md               * shoal test_watching_page.py
examples/eagle/README.md       2 shoal test_seed_examples.py
examples/learning-ray/README.md 3 shoal 2 other test_seed_examples.py
examples/plugin/README.md      2 shoal 1 other test_plugin_example.py
examples/theta/README.md       1 shoal 1 other test_seed_examples.py
examples/trpo/README.md        4 shoal test_trpo_examples.py
"""

# A page (or all of them), how lines begin or the language of blocks, and why no test runs these as they stand.
WITHOUT_TEST = """
* | make | targets of the Makefile, by which the tests themselves are run; that they are there is tested below
* | pip install | fetches packages from a network; that the extras are there is tested below
CONTRIBUTING.md | .venv/bin/pre-commit | changes what git does in this checkout
benchmarks/README.md | .venv/bin/python | measures for minutes; `tests/unit/benchmarks` runs small ones
docs/architecture.md | shoal train x.yml | the first line of a drawing of calls
docs/containers.md | apptainer | needs Apptainer; `tests/unit/test_packaging.py` builds the image where it is
docs/containers.md | podman | needs podman and a network; `test_moving_pages.py` compares the file with Apptainer's
docs/doctor.md | shoal doctor --hosts | needs hosts to log in to; `tests/cluster/test_launch.py` has some and does
docs/doors/unity.md | shoal train game.py | needs a build of Unity's; `make test-old-gym` has a game of ours
docs/doors/unity.md | ```python | needs the same packages: `make test-old-gym`
docs/loggers.md | shoal train CartPole-v1 --set 'loggers=[wandb]' | `make test-loggers` trains with the real wandb
docs/plugins.md | cd | the test installs a copy of that folder
docs/presets.md | shoal tune -f swimmer_ppo.yml | a sweep of the reader's, which trains for hours
docs/presets.md | python benchmarks/presets.py | trains ten runs of 100,000 steps with what that sweep found
docs/reliability.md | python benchmarks/ | measures for an hour; `test_reliability_page.py` does it in small
docs/rllib.md | shoal | needs RLlib's own environment, where `tests/rllib` does the like; test_rllib_page.py reads these
docs/security.md | shoal evaluate from_a | is refused, as the page shows and `tests/faults/test_strangers.py` tests
docs/serve.md | shoal serve RUN --ray-serve | needs Ray Serve's own environment: `make test-ray-serve`
docs/start/first_run.md | python3 -m venv | makes an environment, as `make setup` does
docs/start/first_run.md | . .venv | enters it
docs/start/first_run.md | .venv/bin/pip | fetches packages from a network
docs/start/install.md | pipx | fetches packages from a network
docs/start/install.md | conda | fetches packages from a network
docs/start/install.md | rattler-build | conda's tools are not here; `tests/unit/test_packaging.py` reads the recipe
docs/start/laptop_to_cluster.md | srun | needs a job of Slurm's; `tests/cluster` has one and does
"""

ANYWHERE = "*"
IS_TYPED = ("", "text")
"""Blocks of no language are typed, or show what is answered."""
SYNONYMS = {"--name-env"}
"""What the command line takes for another option."""
PAGES = pages()
KEYS = {key for algorithm in ALGORITHMS.values() for key in algorithm.model_fields} | set(Experiment.model_fields)


def listed(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """By page: the kind, how many, and the test that runs them."""
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for row in text.strip().splitlines():
        name, rest = row.split(maxsplit=1)
        for part in rest.split(";"):
            words = part.split()
            test = words.pop() if len(words) % 2 else ""
            found[name] += [(kind, count, test) for count, kind in zip(words[::2], words[1::2], strict=True)]
    return dict(found)


ROWS = listed(TESTS)
REASONS = [tuple(re.split(r" +\| ", row, maxsplit=2)) for row in WITHOUT_TEST.strip().splitlines()]


def reasons(name: str) -> tuple[str, ...]:
    """How the lines of a page begin that nothing runs, and the languages of such blocks."""
    return tuple(begins for page, begins, _ in REASONS if page in (ANYWHERE, name))


def counted(page: Page) -> Counter[str]:
    """How many of each kind a page has, less those that have a reason."""
    out = reasons(page.name)
    lines = [line for line in page.typed() if not line.startswith(out)]
    kinds = Counter("shoal" if line.startswith("shoal ") else "other" for line in lines)
    kinds += Counter(
        language for language in page.languages() if language not in IS_TYPED and f"```{language}" not in out
    )
    return kinds + Counter(answer=len(page.shown()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_list_says_who_runs_all_that_a_page_has(page: Page) -> None:
    found, told = counted(page), Counter[str]()
    for kind, count, test in ROWS.get(page.name, []):
        told[kind] += found[kind] if count == "*" else int(count)
        assert kind in found, f"there is no {kind} on the page any more"
        assert (test == "") == (kind == "answer")
    assert found == told, "let a test run what is new, and say in TESTS which, or in WITHOUT_TEST why none does"


def test_the_list_has_nothing_that_is_not_there() -> None:
    there = {page.name: page for page in PAGES}
    assert set(ROWS) <= set(there)
    for name, begins, _ in REASONS:
        of = PAGES if name == ANYWHERE else [there[name]]
        assert any(
            begins[3:] in page.languages() or any(line.startswith(begins) for line in page.typed()) for page in of
        )
    for name, rows in ROWS.items():
        for test in {test for _, _, test in rows if test}:
            text = (ROOT / "tests" / "docs" / test).read_text()
            place = Path(name)
            signs = [f'"{name}": Walk('] if test == "test_page_commands.py" else [place.stem, f'"{place.parent.name}"']
            assert any(sign in text for sign in signs), f"{test} does not read {name}"
    named = {path for _, _, why in REASONS for path in re.findall(r"`(tests/[\w/.]+)`", why)}
    assert named
    assert all((ROOT / path).exists() for path in named)


def commands_in(line: str) -> list[list[str]]:
    """The words of each `shoal` command of a line: of its own, after `--` or a launcher, or inside `$(...)`."""
    if inner := re.findall(r"\$\((shoal [^)]*)\)", line):
        return [words_of(text)[1:] for text in inner]
    words = words_of(line)
    starts = [at for at, word in enumerate(words) if word == "shoal" and (at == 0 or words[at - 1] in ("--", "srun"))]
    return [words[start + 1 :] for start in starts]


def takes(words: list[str]) -> None:
    """Parse a command as the command line does, without running it."""
    context = main.make_context("shoal", [*words])
    command = main.get_command(context, words[0])
    assert command is not None, words[0]
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        command, words = command.commands[words[1]], words[1:]
    command.make_context(words[0], [*words[1:]], parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_that_are_typed_are_ones_that_shoal_takes(page: Page) -> None:
    for line in page.typed():
        if " -> " in line:  # a drawing of calls
            continue
        for words in commands_in(line):
            try:
                takes(words)
            except click.UsageError as error:
                pytest.fail(f"{line}: {error.format_message()}")
        assert keys_of(line) <= KEYS, line


def keys_of(line: str) -> set[str]:
    """The keys that a line sets, without their sections."""
    return set(re.findall(r"--set '?(?:config\.)?(\w+)[.=]", line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_in_sentences_have_options_that_there_are(page: Page) -> None:
    for line in page.inline():
        for part in re.split(r" -- (?=shoal )", line):
            name, *words = part.split()[1:]
            if name.isupper() or name == "...":
                continue
            assert re.split(r"[\[|]", name)[0] in COMMANDS, line
            assert options_of(words) <= known_options(name) | SYNONYMS, line
            assert keys_of(part) <= KEYS | {"KEY", "a"}, line


def options_of(words: list[str]) -> set[str]:
    ends = words.index("--") if "--" in words else len(words)
    return {word.partition("=")[0] for word in words[:ends] if re.match(r"--\w", word)}


def known_options(name: str) -> set[str]:
    """Every option of a command and of its subcommands."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    every = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    return {
        option for one in every for parameter in one.params for option in (*parameter.opts, *parameter.secondary_opts)
    }


def test_targets_of_make_and_extras_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(metadata("shoal-rl").get_all("Provides-Extra") or ())
    for page in PAGES:
        for line in page.typed():
            if line.startswith("make "):
                assert line.split()[1] in targets, f"{page.name}: {line}"
            if re.match(r"\S*pipx? install ", line):
                named = re.findall(r"(?:shoal-rl|\.)\[([\w,-]+)\]", line)
                assert {extra for names in named for extra in names.split(",")} <= extras, f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_of_their_language(page: Page) -> None:
    for script in page.blocks("bash"):
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    for program in page.blocks("python"):
        compile(dedent(program), page.name, "exec")
    for table in page.blocks("toml"):
        assert tomllib.loads(table)
