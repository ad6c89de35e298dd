"""What README and the other documents say is so: code runs, commands end well, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from desks import Desk

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OVERVIEW = (ROOT / "docs" / "overview.md").read_text()
INSTALL = (ROOT / "docs" / "start" / "install.md").read_text()
MEASURED = (ROOT / "docs" / "measured.md").read_text()
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if path.parent.name != "reference"
)
MOST_STEPS = 3000
FURTHER_STEPS = 6000


def fenced(language: str, text: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def typed(program: str, text: str) -> list[str]:
    """What the indented lines of a document type, without their comments."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [re.split(r" +# ", line)[0].strip() for line in re.findall(rf"^ {{4}}({program} .*)$", prose, re.MULTILINE)]


(ENVIRONMENT,) = fenced("python", README)
(PROGRAM,) = fenced("python", OVERVIEW)
(YAML,) = fenced("yaml", OVERVIEW)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk.new(tmp_path)
    name = re.match(r"# (\S+)\n", ENVIRONMENT)
    assert name is not None
    (made.work / name[1]).write_text(ENVIRONMENT)
    (made.work / "my_module.py").write_text("from my_env import Thermostat as MyEnv\n")
    (made.work / "custom.yml").write_text(YAML)
    (made.work / "sweep.yml").write_text((ROOT / "examples" / "sweep.yml").read_text())
    return made


def shortened(command: str) -> str:
    """The command with fewer steps, where it would train for long."""
    words = shlex.split(command)
    if words[1] == "resume":
        return re.sub(r"timesteps_total=\d+", f"timesteps_total={FURTHER_STEPS}", command)
    if words[1] == "submit":
        return command.replace("shoal submit", "shoal submit --scheduler slurm --dry-run")
    if words[1] == "tune":
        return f"{command} --num-samples 2 --stop timesteps_total={FURTHER_STEPS}"
    if words[1] == "train" and "--dry-run" not in words:
        if "--stop" not in words:
            return f"{command} --stop timesteps_total={MOST_STEPS}"
        return re.sub(r"timesteps_total=\d+", f"timesteps_total={MOST_STEPS}", command)
    return command


@pytest.mark.slow
def test_every_shoal_command_ends_well(desk: Desk) -> None:
    """Those of README and of the overview, in their order, since some go on from what others leave."""
    commands = typed("shoal", README + OVERVIEW)
    assert {shlex.split(command)[1] for command in commands} == {
        "check",
        "train",
        "submit",
        "tune",
        "envs",
        "evaluate",
        "report",
        "model",
        "runs",
        "resume",
        "config",
    }
    run = ""
    for command in commands:
        short = re.sub(r"\bRUN\b", shlex.quote(run), shortened(command))
        printed = desk.run(["bash", "-c", short])
        if shlex.split(command)[1] == "submit":
            assert "#SBATCH --nodes=3\n" in printed
        elif "--dry-run" in command:
            assert printed.startswith("first:\n")
        elif shlex.split(command)[1] == "tune":
            assert "Finished: 2 trials have ended" in printed
        elif match := re.search(r"^  run +([^=\n]+)$", printed, re.MULTILINE):
            run = match[1]
            assert "Finished: timesteps_total " in printed
    assert [path.name[:15] for path in desk.runs("CartPole-v1")] == ["DQN_CartPole-v1", "PPO_CartPole-v1"]
    for name, count in (("my_env.Thermostat", 2), ("my_module.MyEnv", 1), ("cartpole", 1)):
        assert len(desk.runs(name)) == count
    left = desk.runs("cartpole")[0]
    for pattern in ("config.yaml", "progress.csv", "result.json", "events.out.tfevents.*", "log.txt", "checkpoint_*"):
        assert list(left.glob(pattern)), pattern


def test_the_file_of_experiments_is_what_it_says(desk: Desk) -> None:
    assert desk.run(["shoal", "config", "check", "custom.yml"]) == "custom.yml: 1 experiment, no problems\n"
    resolved = desk.run(["shoal", "train", "-f", "custom.yml", "--dry-run"])
    for line in ("cartpole:", "num_envs_per_worker: 16", "train_batch_size: 2048", "lr: 0.001"):
        assert line in resolved


def test_the_program_runs(desk: Desk) -> None:
    printed = desk.run([sys.executable, "-c", PROGRAM])
    assert "training_iteration: 10" in printed
    *_, mean, action = printed.splitlines()
    assert float(mean) > 0
    assert action in ("0", "1")


def test_the_loop_over_results_runs(desk: Desk) -> None:
    (loop,) = re.findall(r"`(for result in shoal\.run\(.*?\))`", OVERVIEW)
    short = loop.replace("50000", str(MOST_STEPS))
    assert short != loop
    printed = desk.run([sys.executable, "-c", f"import shoal\n{short}: print(result['timesteps_total'])"])
    assert int(printed.splitlines()[-1]) >= MOST_STEPS


def test_make_and_pip_lines_name_what_there_is() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [command.split()[1] for command in typed("make", README)]
    assert named
    assert set(named) <= targets
    table = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", table, re.MULTILINE)) - {"dev"}
    told = set(re.findall(r"\[(\w+)\]", " ".join(typed("pip", INSTALL))))
    assert set(re.findall(r"`pip install '\.\[(\w+)\]'`", README)) <= told
    assert told == extras


def test_readme_is_two_screens_and_its_figures_are_those_of_the_page() -> None:
    assert len(README.splitlines()) <= 75
    assert len(README.split()) <= 750
    rows = [row for row in README.splitlines() if ".json](" in row]
    assert len(rows) >= 4
    assert all(row.replace("](benchmarks/", "](../benchmarks/") in MEASURED.splitlines() for row in rows)


def test_figures_of_the_fastest_row_are_those_that_are_kept() -> None:
    rates = json.loads((ROOT / "benchmarks" / "results" / "throughput.json").read_text())["results"]["rates"]
    medians = {name: rate["overall"]["median"] for name, rate in rates.items()}
    ours, sb3, rllib = (
        max(value for name, value in medians.items() if name.startswith(who)) for who in ("shoal", "SB3", "RLlib")
    )
    row = f"| {ours:,.0f} | {sb3:,.0f} ({ours / sb3:.1f}x) | {rllib:,.0f} ({ours / rllib:.1f}x) |"
    assert row in README


def test_the_pictures_are_small() -> None:
    pictures = re.findall(r"docs/\w+\.(?:svg|png)", README)
    assert len(pictures) == 2
    assert all((ROOT / picture).stat().st_size < 150_000 for picture in pictures)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    pages = re.findall(r'"(\w+)": \w+_page\(\)', (ROOT / "docs" / "reference_pages.py").read_text())
    written = {ROOT / "docs" / "reference" / f"{name}.md" for name in pages}  # when the site is made
    places = [(path.parent / link).resolve() for link in links if "://" not in link]
    assert not [place for place in places if not place.exists() and place not in written]


def test_the_tree_of_rooms_is_the_tree_of_folders() -> None:
    (tree,) = (block for block in fenced("", (ROOT / "docs/architecture.md").read_text()) if "src/shoal/" in block)
    rooms = re.findall(r"^  (\w+)/ ", tree, re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "src" / "shoal").glob("*/__init__.py")}
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == folders
    contract = re.search(r'^layers = \["(.*)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert contract is not None
    assert [*rooms, "errors"] == contract[1].split('", "')


def test_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`(\w+/[\w*]+\.py)`", (ROOT / "docs/architecture.md").read_text())
    assert named
    assert not [name for name in named if not list((ROOT / "src" / "shoal").glob(name))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_of_the_code_that_a_document_names_exist(document: str) -> None:
    rooms = {path.name for path in (ROOT / "src" / "shoal").iterdir() if path.is_dir()}
    named = re.findall(r"`(?:src/shoal/)?((\w+)/\w+\.py)`", (ROOT / document).read_text())
    of_recipes = {"config/a2c.py", "algorithms/a2c.py"}  # what CONTRIBUTING has the reader write
    missing = [path for path, room in named if room in rooms and not (ROOT / "src" / "shoal" / path).is_file()]
    assert not set(missing) - of_recipes
