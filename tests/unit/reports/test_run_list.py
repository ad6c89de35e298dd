"""The list of runs: states, numbers, and what is read again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.results import number_in, numbers
from shoal.errors import ConfigError
from shoal.reports import run_cache, run_list
from shoal.reports.run_cache import CACHE_FILE
from shoal.reports.run_choice import LISTED
from shoal.reports.run_list import RETURN, runs_below
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome, forget_outcome, read_outcome, write_outcome


def made(folder: Path, *returns: float, name: str = "cart", stop: float = 1000, **config) -> Path:
    """The folder of a run, with a result for each return."""
    folder.mkdir(parents=True)
    tree = {"name": name, "run": "PPO", "stop": {"timesteps_total": stop}, "config": {"env": "CartPole-v1", **config}}
    (folder / "experiment.json").write_text(json.dumps(tree))
    if returns:
        lines = [
            json.dumps({"timesteps_total": 100 * (k + 1), "episode_reward_mean": mean, "learner": {"kl": 0.01 * k}})
            for k, mean in enumerate(returns)
        ]
        (folder / "result.json").write_text("\n".join(lines) + "\n")
    return folder


def states(folder: Path) -> dict[str, str]:
    return {run.path.name: run.state for run in runs_below(folder).runs}


def test_every_state(tmp_path: Path) -> None:
    for kind in ("stopped", "interrupted", "failed"):
        write_outcome(made(tmp_path / "cart" / kind, 1, 2), Outcome(kind, "so it was"))
    made(tmp_path / "cart" / "killed", 1, 2)
    made(tmp_path / "cart" / "old", 1, 2, stop=200)
    made(tmp_path / "cart" / "new")
    with Lease(made(tmp_path / "cart" / "running", 1)):
        found = states(tmp_path)
    assert found == {
        "stopped": "finished",
        "interrupted": "interrupted",
        "failed": "failed",
        "killed": "killed",
        "old": "finished",
        "new": "new",
        "running": "running",
    }
    assert states(tmp_path)["running"] == "killed"


def test_numbers_and_settings(tmp_path: Path) -> None:
    made(tmp_path / "a", 10, 50, 20, lr=0.5, model={"fcnet_activation": "tanh"})
    (run,) = runs_below(tmp_path).runs
    assert (run.progress.best, run.progress.last["episode_reward_mean"]) == (50, 20)
    assert run.values["learner/kl"] == 0.02
    assert (run.values["lr"], run.values["model/fcnet_activation"]) == (0.5, "tanh")
    assert run.values["env"] == "CartPole-v1"
    assert run.size > 100
    assert runs_below(tmp_path / "a").runs[0].path == tmp_path / "a"


def test_settings_are_kept_beside_the_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = made(tmp_path / "cart" / "one", 1, lr=0.5), made(tmp_path / "cart" / "two", 2, lr=0.25)
    (tmp_path / ".shoal_settings.json").write_text(json.dumps({"format": 2, "runs": {str(one): {"settings": 3}}}))
    first = {run.path: run.settings for run in runs_below(tmp_path, with_settings=True).runs}
    assert first == {one: {"lr": 0.5}, two: {"lr": 0.25}}
    read = []
    real = run_list.bounded_bytes
    monkeypatch.setattr(run_list, "bounded_bytes", lambda path, *more: read.append(path) or real(path, *more))
    assert {run.path: run.settings for run in runs_below(tmp_path, with_settings=True).runs} == first
    assert not read
    changed = json.loads((two / "experiment.json").read_text())
    changed["config"]["lr"] = 0.125
    (two / "experiment.json").write_text(json.dumps(changed))
    assert {run.path: run.settings["lr"] for run in runs_below(tmp_path, True).runs} == {one: 0.5, two: 0.125}
    assert {path.parent for path in read} == {two}
    os.chmod(tmp_path, 0o555)
    try:
        assert len(runs_below(tmp_path, True).runs) == 2
    finally:
        os.chmod(tmp_path, 0o755)


def test_what_the_table_shows_needs_no_settings(tmp_path: Path) -> None:
    made(tmp_path / "cart" / "one", 1)
    assert set(runs_below(tmp_path).runs[0].shown) == set(LISTED)


LINES = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "episode_reward_mean": st.one_of(st.floats(), st.integers(), st.none(), st.just(10**400), st.text()),
            "evaluation": st.fixed_dictionaries({"episode_reward_mean": st.floats(0, 1e6)}),
            "said": st.just('"episode_reward_mean": 1e9, '),
            "timesteps_total": st.integers(0, 10**9),
        },
    ).map(lambda result: json.dumps(result).encode() + b"\n"),
    st.sampled_from([b"", b"\n", b"[1]\n", b"3\n", b'{"episode_reward_mean": 1e7', b'{"episode_reward_mean": 9}{}\n']),
)


@given(lines=st.lists(LINES, max_size=30), block_bytes=st.sampled_from([1, 200, 1 << 20]))
def test_the_lines_that_are_not_parsed_decide_nothing(lines: list[bytes], block_bytes: int) -> None:
    best, last = None, {}
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict):
            mean, last = number_in(result, RETURN), numbers(result)
            best = mean if best is None or (mean is not None and mean > best) else best
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_list, "BLOCK_BYTES", block_bytes)
        assert run_list.progress_after(run_list.Progress(), lines) == run_list.Progress(last, best)


def test_of_a_long_run_few_results_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, parsed, parse = made(tmp_path / "a", *range(500)), [], json.loads
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda text: parsed.append(text) or parse(text))
        assert run_list.read_progress(run / "result.json").best == 499
    assert len(parsed) == 2


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(100):
        folder = made(tmp_path / f"name{k % 7}" / f"run{k}", k, k + 1)
        write_outcome(folder, Outcome("stopped", "so it was"))
    assert len(runs_below(tmp_path).runs) == 100
    read = []

    def watch(name: str) -> None:
        whole = getattr(run_list, name)

        def watched(path: Path, *more: object):
            read.append(path)
            return whole(path, *more)

        monkeypatch.setattr(run_list, name, watched)

    for name in ("read_progress", "bounded_bytes", "read_outcome"):
        watch(name)
    found = runs_below(tmp_path).runs
    assert not read
    assert {(run.progress.best, run.state, run.env) for run in found} == {
        (k + 1, "finished", "CartPole-v1") for k in range(100)
    }
    with open(tmp_path / "name0" / "run0" / "result.json", "a") as file:
        file.write(json.dumps({"episode_reward_mean": 5000}) + "\n")
    assert max(run.progress.best for run in runs_below(tmp_path).runs) == 5000
    assert read == [tmp_path / "name0" / "run0" / "result.json"]


@pytest.mark.parametrize("kept", ["", "[]", "{}", '{"format": 2}', '{"format": 2, "runs": {"x": 3}}', "\0garbage"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, kept: str) -> None:
    made(tmp_path / "a", 10, 50)
    (tmp_path / CACHE_FILE).write_text(kept)
    assert runs_below(tmp_path).runs[0].progress.best == 50
    assert json.loads((tmp_path / CACHE_FILE).read_text())["runs"]


@pytest.mark.parametrize("wrong", [3, "x", None, [], {}, {"last": {"a": "b"}, "best": 1}, {"name": 1}, "failed"])
@pytest.mark.parametrize("what", ["progress", "about", "outcome", "checkpoints"])
def test_what_somebody_else_put_into_the_cache_is_read_anew(tmp_path: Path, what: str, wrong: object) -> None:
    run = made(tmp_path / "a", 10, 50)
    (run / "checkpoint_000010").mkdir()
    write_outcome(run, Outcome("stopped", "so it was"))
    before = runs_below(tmp_path).runs[0]
    cache = json.loads((tmp_path / CACHE_FILE).read_text())
    if (what, wrong) in (("outcome", "failed"), ("outcome", None), ("checkpoints", 3)):
        pytest.skip("it has the form of ours")
    cache["runs"][str(run)][what][1] = wrong
    (tmp_path / CACHE_FILE).write_text(json.dumps(cache))
    assert runs_below(tmp_path).runs[0] == before


def test_sizes_and_times(tmp_path: Path) -> None:
    run = made(tmp_path / "a", 10)
    (run / "videos" / "deep").mkdir(parents=True)
    (run / "videos" / "deep" / "one.mp4").write_bytes(b"x" * 1000)
    for number in (10, 20):
        (run / f"checkpoint_{number:06d}" / "replay").mkdir(parents=True)
        (run / f"checkpoint_{number:06d}" / "replay" / "rows").write_bytes(b"x" * number)

    def expected() -> int:
        return sum(file.lstat().st_size for file in run.rglob("*") if not file.is_dir())

    for _ in range(2):  # the second time, checkpoints are known
        assert runs_below(tmp_path).runs[0].size == expected()
    shutil.rmtree(run / "checkpoint_000010")
    (run / "videos" / "deep" / "one.mp4").write_bytes(b"x" * 3000)
    os.utime(run / "videos" / "deep" / "one.mp4", (4e9, 4e9))
    (found,) = runs_below(tmp_path).runs
    assert (found.size, found.changed) == (expected(), 4e9)


def test_half_written_and_foreign_folders(tmp_path: Path) -> None:
    whole = made(tmp_path / "cart" / "a", 10, 50)
    with open(whole / "result.json", "a") as file:
        file.write('{"episode_reward_mean": 9')
    (made(tmp_path / "cart" / "b", 1) / "experiment.json").write_text('{"name": ')
    (tmp_path / "cart" / "notes").mkdir()
    (tmp_path / "cart" / "file.txt").write_text("x")
    (tmp_path / "sweep" / "s").mkdir(parents=True)
    (tmp_path / "sweep" / "s" / "sweep.json").write_text("{}")
    os.symlink(whole, tmp_path / "cart" / "link")
    assert [(run.path.name, run.progress.best) for run in runs_below(tmp_path).runs] == [("a", 50)]
    assert runs_below(tmp_path).damaged == [tmp_path / "cart" / "b"]
    with pytest.raises(ConfigError, match="is not a folder"):
        runs_below(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_written_is_listed_all_the_same(tmp_path: Path, monkeypatch) -> None:
    made(tmp_path / "a", 10)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_cache, "replace_file", refused)
    assert runs_below(tmp_path).runs[0].progress.best == 10


def test_outcomes_are_written_read_and_forgotten(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    write_outcome(tmp_path, Outcome("interrupted", "interrupted by SIGTERM", 15))
    assert read_outcome(tmp_path) == Outcome("interrupted", "interrupted by SIGTERM", 15)
    for wrong in ("", "[]", '{"kind": "gone", "sentence": ""}', '{"kind": "failed"}'):
        (tmp_path / "outcome.json").write_text(wrong)
        assert read_outcome(tmp_path) is None
    forget_outcome(tmp_path)
    forget_outcome(tmp_path)
    assert not (tmp_path / "outcome.json").exists()
