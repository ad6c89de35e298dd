"""`shoal export`: what it prints, where it writes, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal import run
from shoal.cli.main import main

SMALL = ["--set", "train_batch_size=128", "--set", "num_envs_per_worker=4", "--set", "num_sgd_iter=1", "--quiet"]


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="shoal")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two checkpoints."""
    folder = tmp_path_factory.mktemp("results")
    more = ["--results-dir", str(folder), "--name", "pole", "--stop", "training_iteration=2", "--checkpoint-freq", "1"]
    result = shoal("train", "CartPole-v1", *SMALL, *more)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_exported_by_its_name(results: Path, here: Path) -> None:
    result = shoal("export", "pole", "--format", "numpy", "--results-dir", str(results))
    assert result.exit_code == 0, result.output
    assert "proved: 1000 observations, largest difference" in result.output
    assert "microseconds for one action" in result.output
    proof = json.loads((here / "pole.numpy.proof.json").read_text())
    assert proof["checkpoint"].endswith("checkpoint_000002")
    again = shoal("export", "pole", "--format", "numpy", "--results-dir", str(results), "-o", "other", "--best")
    assert again.exit_code == 0, again.output
    assert (here / "other.py").is_file()
    [run] = (results / "pole").glob("PPO_*")
    first = shoal("export", str(run / "checkpoint_000001"), "--format", "numpy", "-o", "first.py")
    assert first.exit_code == 0, first.output
    assert json.loads((here / "first.numpy.proof.json").read_text())["checkpoint"].endswith("checkpoint_000001")
    assert (here / "first.py").read_text() != (here / "pole.py").read_text()


@pytest.mark.parametrize("words", [[], ["-o", "pole.py"], ["-o", "."]])
def test_an_export_replaces_only_one_that_is_as_it_was_written(results: Path, here: Path, words: list[str]) -> None:
    words = ["export", "pole", "--format", "numpy", "--results-dir", str(results), *words]
    own = here / "pole.py"
    own.write_text("class Pole: ...\n")
    refused = shoal(*words)
    assert refused.exit_code == 2, refused.output
    assert f"{own}: is there already, and is no export as shoal wrote it; give another name, or remove it" in (
        " ".join(refused.output.split())
    )
    assert [file.name for file in here.iterdir()] == ["pole.py"]
    assert own.read_text() == "class Pole: ...\n"
    own.unlink()
    for _ in range(2):
        assert shoal(*words).exit_code == 0
    own.write_text(own.read_text() + "# and what I added\n")
    assert shoal(*words).exit_code == 2
    assert own.read_text().endswith("# and what I added\n")


def test_a_card_that_was_completed_by_hand_is_kept(results: Path, here: Path) -> None:
    words = ["export", "pole", "--format", "hub", "--results-dir", str(results)]
    assert shoal(*words).exit_code == 0
    card = here / "pole_hub/README.md"
    card.write_text("by hand\n")
    before = {file.name: file.read_bytes() for file in card.parent.iterdir()}
    refused = shoal(*words, "--best")
    assert refused.exit_code == 2, refused.output
    assert "README.md: is there already" in refused.output
    assert {file.name: file.read_bytes() for file in card.parent.iterdir()} == before


def test_without_a_compiler_nothing_is_written_unless_asked_for(
    results: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-cc")
    words = ["export", "pole", "--format", "c", "-o", "controller", "--results-dir", str(results)]
    refused = shoal(*words)
    assert refused.exit_code == 2, refused.output
    assert "--format c: CC is 'no-such-cc', and there is no such C compiler here" in refused.output
    assert not list(here.iterdir())
    written = shoal(*words, "--unproved")
    assert written.exit_code == 0, written.output
    assert written.output.splitlines()[-1] == ("NOT PROVED: CC is 'no-such-cc', and there is no such C compiler here")


def test_a_hub_folder_takes_the_runs_newest_video_or_says_that_there_is_none(results: Path, here: Path) -> None:
    words = ["export", "pole", "--format", "hub", "--results-dir", str(results)]
    result = shoal(*words)
    assert result.exit_code == 0, result.output
    [run] = (results / "pole").glob("PPO_*")
    assert f"no video for the card; shoal report {run} --video films one" in result.output
    for place, when in (("videos/iteration_000001.mp4", 1), ("replay.mp4", 2)):
        (run / place).parent.mkdir(exist_ok=True)
        (run / place).write_bytes(place.encode())
        os.utime(run / place, (when, when))
        result = shoal(*words)
        assert "no video" not in result.output
        assert (here / "pole_hub/replay.mp4").read_bytes() == place.encode()
    (run / "replay.mp4").unlink()
    (run / "videos/iteration_000001.mp4").unlink()


def test_each_policy_of_several_is_exported_by_its_name(tmp_path: Path, here: Path) -> None:
    pytest.importorskip("pettingzoo")
    from agent_envs import Match

    tree = {
        "name": "match",
        "run": "PPO",
        "env": Match,
        "results_dir": str(tmp_path / "results"),
        "stop": {"training_iteration": 1},
        "config": {
            "train_batch_size": 128,
            "num_sgd_iter": 1,
            "env_config": {"differs": True},
            "multiagent": {"policies": ["speaker", "listener"]},
        },
    }
    list(run(tree))
    refused = shoal("export", "match", "--format", "numpy", "--results-dir", tree["results_dir"])
    assert refused.exit_code == 2, refused.output
    assert "has several policies; add --policy-id speaker or --policy-id listener" in refused.output
    for name in ("speaker", "listener"):
        words = ["--format", "numpy", "--policy-id", name, "-o", f"{name}.py", "--results-dir", tree["results_dir"]]
        done = shoal("export", "match", *words)
        assert done.exit_code == 0, done.output
        assert "proved: 1000 observations" in done.output
    assert (here / "speaker.py").read_text() != (here / "listener.py").read_text()


@pytest.mark.parametrize("name", ["envs.Pole-numpy", "Pole-v1-numpy", "pole.v1.2"])
def test_a_dot_in_a_name_is_no_ending(results: Path, here: Path, name: str) -> None:
    result = shoal("export", "pole", "--format", "numpy", "--results-dir", str(results), "-o", name)
    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in here.iterdir()) == [f"{name}.numpy.proof.json", f"{name}.py"]


@pytest.mark.skipif(not Path("/bin/false").exists(), reason="there is no /bin/false")
def test_a_compiler_that_says_nothing_leaves_no_empty_end(
    results: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    result = shoal("export", "pole", "--format", "c", "-o", "x", "--results-dir", str(results))
    assert result.exit_code == 1, result.output
    assert "/bin/false ended with code 1: it said nothing; CC and FC name the compilers" in result.output
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--format", "numpy", "-o", "policy.txt"], "-o policy.txt: --format numpy writes a file that ends with .py"),
        (["--format", "numpy", "-o", "policy.onnx"], "--format numpy writes a file that ends with .py"),
        (["--format", "numpy", "-o", "policy.PT"], "--format numpy writes a file that ends with .py"),
        (["--format", "fortran", "-o", "policy.onnx"], "--format fortran writes a folder of files; write -o policy"),
        (["--format", "c", "-o", "policy.c"], "--format c writes a folder of files; write -o policy"),
        (["--format", "c", "-o", "mine"], "-o mine: this folder has other files in it"),
        (["--format", "c", "-o", "file"], "-o file: --format c writes a folder, and this is a file"),
        (["--format", "numpy", "-o", "none/x.py"], "-o none/x.py: there is no folder"),
        (["--format", "numpy", "--policy-id", "second"], "policy_id: there is no policy 'second'"),
        (["--format", "c", "--fmi-version", "3.0"], "--fmi-version: is of --format fmu; leave it out for --format c"),
        (["--format", "jpg"], "'jpg' is not one of 'numpy'"),
    ],
)
def test_what_is_no_export_is_one_sentence(results: Path, here: Path, words: list[str], sentence: str) -> None:
    (here / "mine").mkdir()
    (here / "mine/README.md").write_text("mine")
    (here / "file").write_text("")
    result = shoal("export", "pole", "--results-dir", str(results), *words)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert (here / "mine/README.md").read_text() == "mine"
    assert sorted(path.name for path in here.iterdir()) == ["file", "mine"]
