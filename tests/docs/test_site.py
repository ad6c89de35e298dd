"""The documentation: it is made without a warning, needs no network, and says what is so."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import Browser

from shoal.cli.exit_codes import MEANINGS
from shoal.cluster.exit_codes import HEAD_FAILED, NODE_LOST
from shoal.config.algorithms import ALGORITHMS, BUILT_IN
from shoal.errors import ShoalError
from shoal.machine.signals import exit_code

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SHOAL = str(Path(sys.executable).with_name("shoal"))
NAMED = re.compile(r"`([\w/]+\.py)`: `([\w.]+)`")
PAGES = [page.read_text() for page in DOCS.glob("*.md")]
EQUATIONS = ("ppo_trpo_dqn", "appo", "sac", "evolution", "offline")
PLACES = sorted({found for page in PAGES for found in NAMED.findall(page)})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "read")]
    done = subprocess.run([*words, str(DOCS), str(folder / "html")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_the_site_is_made_and_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        fetched = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"', page.read_text())
        fetched += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="(https?:[^"]*)"', page.read_text())
        assert not fetched, page
    assert "CartPole" in (site / "searchindex.js").read_text() or "cartpole" in (site / "searchindex.js").read_text()


@pytest.mark.slow
def test_the_reference_has_every_key_command_and_name(site: Path) -> None:
    import shoal
    from shoal.cli.main import COMMANDS
    from shoal.config.reference import config_rows

    settings = (site / "reference" / "settings.html").read_text()
    assert all(row.key in settings for run in ("PPO", "SAC") for row in config_rows(run))
    commands = (site / "reference" / "commands.html").read_text()
    assert all(f"shoal {name}" in commands for name in COMMANDS)
    python = (site / "reference" / "python.html").read_text()
    assert all(name in python for name in shoal.__all__ if name[0].isupper() and "_" not in name)
    of_parts = [f"shoal.tune.{name}" for name in ("run", "Analysis", "grid_search", "loguniform", "report")]
    assert all(f"{name}<" in python for name in [*of_parts, "shoal.envs.CaseEnv", "shoal.envs.mpi_command"])
    if find_spec("stable_baselines3") is not None:
        assert "shoal.sb3.RayVecEnv<" in python


SEARCH = "Array.from(document.querySelectorAll('#search-results li a')).map(link => link.getAttribute('href'))"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_search_works_without_a_network(site: Path) -> None:
    with Browser() as browser:
        browser.call("Network.enable")
        browser.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )
        for word, page in (("walltime", "resume.html"), ("sgd_minibatch_size", "reference/settings.html")):
            browser.open(site / "search.html", f"?q={word}")
            assert browser.until(f"{SEARCH}.length > 0 && /found/.test(document.body.textContent) ? {SEARCH} : null")
            found = browser.value(SEARCH)
            assert any(link.startswith(page) for link in found), (word, found)


@pytest.mark.parametrize(("file", "name"), PLACES, ids=lambda text: text)
def test_the_code_that_pages_point_at_is_there(file: str, name: str) -> None:
    nodes: list[ast.stmt] = ast.parse((ROOT / "src" / "shoal" / file).read_text()).body
    for part in name.split("."):
        (found,) = (node for node in nodes if getattr(node, "name", None) == part)
        nodes = getattr(found, "body", [])


@pytest.mark.parametrize("page", EQUATIONS)
def test_every_algorithm_has_equations_and_the_code_that_does_them(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    assert text.count("$") >= 4 or "| equation | where |" in text
    assert len(NAMED.findall(text)) >= 5


@pytest.mark.parametrize("run", BUILT_IN)
def test_every_algorithm_of_shoals_own_is_on_a_page_with_equations(run: str) -> None:
    named = {f"{file}: {name}" for page in EQUATIONS for file, name in NAMED.findall((DOCS / f"{page}.md").read_text())}
    module, _, learner = ALGORITHMS[run].learner.removeprefix("shoal.").partition(":")
    assert any(place.startswith(f"{module.replace('.', '/')}.py: {learner}.") for place in named)


@pytest.mark.slow
def test_places_in_the_code_are_links_to_their_lines(site: Path) -> None:
    linked = set()
    for page in [*EQUATIONS, "tour"]:
        for file, anchor in re.findall(
            r'href="(reference/code/[\w-]+\.html)#([\w-]+)"', (site / f"{page}.html").read_text()
        ):
            assert f'id="{anchor}"' in (site / file).read_text()
            linked.add((file, anchor))
    assert len(linked) >= 40
    shown = (site / "reference" / "code" / "data-returns-py.html").read_text()
    first = next(
        n
        for n, line in enumerate((ROOT / "src/shoal/data/returns.py").read_text().splitlines(), 1)
        if line.startswith("def gae(")
    )
    assert re.search(rf'<span class="linenos">\s*{first}</span>', shown), "lines have their own numbers"


def kinds_of(kind: type[ShoalError]) -> list[type[ShoalError]]:
    return [kind, *(deeper for other in kind.__subclasses__() for deeper in kinds_of(other))]


def test_the_table_of_exit_codes_has_every_code() -> None:
    used = {kind.exit_code for kind in kinds_of(ShoalError)} | {HEAD_FAILED, NODE_LOST, 0}
    used |= {exit_code(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
    for path in (ROOT / "src/shoal/cli").glob("*.py"):
        used |= {int(code) for code in re.findall(r"(?:exit|SystemExit)\((\d+)\)", path.read_text())}
    assert set(MEANINGS) == used


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["checkpoints.md", "start/reading_results.md"])
def test_the_programs_of_a_page_run(page: str, tmp_path: Path) -> None:
    run_programs(page, tmp_path)


@pytest.mark.slow
def test_the_program_with_workers_runs(tmp_path: Path) -> None:
    run_programs("same_result.md", tmp_path)


def run_programs(page: str, folder: Path) -> None:
    assert programs(page)
    for program in programs(page):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_commands_of_the_first_pages_end_well(tmp_path: Path) -> None:
    """A newcomer types them in this order."""
    environ = {**os.environ, "HOME": str(tmp_path)}
    for page in ("first_run", "own_simulator", "laptop_to_cluster"):
        text = (DOCS / "start" / f"{page}.md").read_text()
        for block in programs(f"start/{page}.md"):
            (tmp_path / "room.py").write_text(block)
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            (tmp_path / "first.yml").write_text(block)
        for line in re.findall(r"^ {4}(shoal .*)$", text, re.MULTILINE):
            words = [SHOAL, *shlex.split(line)[1:]]
            done = subprocess.run(
                words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
