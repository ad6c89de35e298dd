"""`shoal play`: an agent in a window, as text and on film."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.envs.video import Video, has_screen, screen_answers

ENVS = Path(__file__).parents[1] / "shared" / "evaluation_env.py"
DEADLINE_S = 60.0
SMALL = {"num_envs_per_worker": 2, "train_batch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}


def typed(command: str, *words: str | Path) -> Result:
    return CliRunner().invoke(main, [command, *map(str, words)], prog_name="shoal")


def trained(root: Path, env: str, name: str) -> Path:
    tree = {"env": env, "name": name, "results_dir": str(root), "stop": {"training_iteration": 1}, "report": False}
    list(shoal.run({**tree, "config": SMALL}))
    (folder,) = (root / name).iterdir()
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("results")
    found = {name: trained(root, f"{ENVS}:{name}", name) for name in ("Falling", "Blind", "Fading", "Steered")}
    return {**found, "lake": trained(root, "FrozenLake-v1", "lake"), "pole": trained(root, "CartPole-v1", "pole")}


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


def returns_of(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"^episode \d+: return (\S+),", output, re.MULTILINE)]


def test_an_environment_that_draws_text_is_seen_in_the_terminal(runs: dict[str, Path]) -> None:
    done = typed("play", runs["lake"], "--episodes", "2", "--seed", "3")
    assert done.exit_code == 0, done.output
    plain = re.sub(r"\x1b\[\d+m", "", done.output)
    lengths = [int(steps) for steps in re.findall(r"(\d+) steps$", plain, re.MULTILINE)]
    first, second, _ = re.split(r"^episode .*\n", plain, flags=re.MULTILINE)
    assert [text.count("HFFG") for text in (first, second)] == [length + 1 for length in lengths]
    assert "\x1b[41m" in done.output
    report = typed("evaluate", runs["lake"], "--episodes", "2", "--seed", "3", "--trajectories")
    assert report.exit_code == 0, report.output
    (file,) = runs["lake"].glob("evaluation_*.json")
    assert file.with_suffix(".parquet").exists()
    assert len(json.loads(file.read_text())["episode_rewards"]) == len(lengths) == 2


def test_without_a_screen_a_video_is_made_and_its_path_told(runs: dict[str, Path]) -> None:
    av = pytest.importorskip("av")
    done = typed("play", runs["Falling"], "--episodes", "2", "--fps", "12")
    assert done.exit_code == 0, done.output
    (file,) = runs["Falling"].glob("*.mp4")
    assert re.fullmatch(r"play_[\d_-]+\.mp4", file.name)
    assert file.name in done.output.splitlines()[-1]
    lengths = [int(steps) for steps in re.findall(r"(\d+) steps$", done.output, re.MULTILINE)]
    with av.open(str(file)) as video:
        assert len(list(video.decode(video=0))) == sum(length + 1 for length in lengths)
        assert float(video.streams.video[0].average_rate) == 12
    assert returns_of(done.output) == [-float(length) for length in lengths]


def test_the_name_of_the_file_is_ones_own(runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("av")
    done = typed("play", runs["Falling"], "--episodes", "3", "--seed", "5", "-o", tmp_path / "own.gif")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "own.gif").read_bytes().startswith(b"GIF8")
    # The episodes are those of a filmed evaluation.
    assert (
        typed("evaluate", runs["Falling"], "--episodes", "3", "--seed", "5", "--gif", tmp_path / "x.gif").exit_code == 0
    )
    (file,) = runs["Falling"].glob("evaluation_*.json")
    assert returns_of(done.output) == json.loads(file.read_text())["episode_rewards"]
    assert (tmp_path / "x.gif").read_bytes() == (tmp_path / "own.gif").read_bytes()


def test_a_window_where_there_is_a_screen(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown: list[int] = []
    flip = pygame.display.flip
    monkeypatch.setattr(pygame.display, "flip", lambda: shown.append(1) or flip())
    done = typed("play", runs["pole"], "--episodes", "2", "--fps", "2000")
    assert done.exit_code == 0, done.output
    assert len(returns_of(done.output)) == 2
    assert len(shown) >= sum(returns_of(done.output)) + 2
    assert not list(runs["pole"].glob("*.mp4"))


@pytest.mark.parametrize("display", [":4077", "127.0.0.1:59000.0", "nonsense"])
def test_a_screen_that_is_gone_is_none(display: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    assert has_screen()
    assert not screen_answers()


def test_ctrl_c_leaves_nothing_behind(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    pictures: list[Any] = []
    add = Video.add

    def pressed(video: Video, frame: Any) -> None:
        pictures.append(frame)
        if len(pictures) == 3:
            raise KeyboardInterrupt
        add(video, frame)

    monkeypatch.setattr(Video, "add", pressed)
    done = typed("play", runs["Falling"], "-o", tmp_path / "out.mp4")
    assert done.exit_code == 130
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def is_filming(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Whether a process has opened a film in a folder, of which the kernel tells also where it has no name.

    Before it films, it has tried by a probe whether the folder can be written.
    """
    opened = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.append(str(link.readlink()))
    return any(name.startswith(f"{folder}/") and "probe" not in name for name in opened)


@pytest.mark.parametrize(
    "words",
    [
        ["play", "--as", "video", "--episodes", "100000", "-o", "long.mp4"],
        ["evaluate", "--episodes", "100000", "--gif", "long.gif"],
    ],
)
def test_sigterm_ends_what_is_being_filmed_and_leaves_nothing(
    runs: dict[str, Path], tmp_path: Path, words: list[str]
) -> None:
    command = [sys.executable, "-m", "shoal", words[0], str(runs["pole"]), *words[1:]]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        deadline = monotonic() + DEADLINE_S
        while not is_filming(process, tmp_path):
            assert process.poll() is None
            assert monotonic() < deadline
            sleep(0.01)
        process.terminate()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert not [*tmp_path.iterdir()]


def test_a_view_that_fails_is_one_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("av")
    done = typed("play", runs["Fading"], "-o", tmp_path / "out.mp4")
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("Error: env Fading could not be shown: RuntimeError: the lens broke")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        (
            "Falling",
            ["--as", "window"],
            "--as window: there is no screen here (DISPLAY is not set, or nothing is there); use --as video",
        ),
        ("Falling", ["--as", "text"], "has no render_mode 'ansi'; it has video"),
        ("Falling", ["--as", "text", "-o", "x.mp4"], "-o is the file of a video; leave it out, or --as text."),
        ("Falling", ["-o", "x.avi"], "a video's name must end in .mp4 or .gif"),
        ("Falling", ["-o", "nowhere/x.mp4"], "is not a file in a folder that exists"),
        ("Falling", ["--env", "CartPole-v1"], "the checkpoint has"),
        ("Blind", [], "for a video its render() must return an array of uint8"),
        ("nobody", [], "there is no run"),
    ],
)
def test_what_is_refused(runs: dict[str, Path], name: str, words: list[str], sentence: str) -> None:
    done = typed("play", runs.get(name, Path("nobody")), *words)
    assert done.exit_code == 2, done.output
    assert sentence in done.output.splitlines()[-1]


def test_an_environment_that_draws_nothing(tmp_path: Path) -> None:
    folder = trained(tmp_path, f"{Path(__file__).parents[1] / 'shared' / 'probe_env.py'}:Walk", "probe")
    done = typed("play", folder)
    assert done.exit_code == 2
    assert "it draws nothing, because it has no render(); `shoal evaluate` plays it unseen" in done.output


def test_without_pyav(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr("shoal.envs.video.find_spec", lambda name: None)
    done = typed("play", runs["Falling"])
    assert done.exit_code == 2
    assert "so it is filmed: videos need PyAV, which is not installed; type: pip install" in done.output


def test_a_strangers_environment_is_not_run(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # somebody else, who has another secret
    folder = runs["Steered"]
    for command, words in (("play", []), ("report", ["--video"])):
        done = typed(command, folder, *words)
        assert done.exit_code == 2, done.output
        assert "is not a run of yours, and would run env" in done.output
        assert typed(command, folder, *words, "--trust").exit_code == 0
    assert (folder / "replay.mp4").exists()
