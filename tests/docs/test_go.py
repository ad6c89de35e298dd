"""The Go of examples/trpo: its rules beside GNU Go's, its games, its opponents and how they fail."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env

import shoal
from shoal.envs import GtpEngine
from shoal.envs.env_states import restore_state, state_of
from shoal.envs.importing import UserCode

TRPO = Path(__file__).parents[2] / "examples" / "trpo"
CODE = UserCode.at(TRPO)
go_board, go_env = CODE.load_module("go_board"), CODE.load_module("go_env")
Board, Go9x9, PASS = go_board.Board, go_env.Go9x9, go_env.PASS
BLACK, WHITE, NAMES, other = go_board.BLACK, go_board.WHITE, go_board.NAMES, go_board.other
GO = f"{TRPO / 'go_env.py'}:Go9x9"
GAMES = "/usr/games:/usr/local/games"
needs_gnugo = pytest.mark.skipif(
    not (shutil.which("gnugo") or shutil.which("gnugo", path=GAMES)), reason="needs GNU Go (Debian's package gnugo)"
)
SMALL = {"train_batch_size": 40, "num_envs_per_worker": 2, "num_sgd_iter": 2, "model": {"fcnet_hiddens": [8]}}


def is_pachi(program: str) -> bool:
    """Whether a program of that name is the one that plays Go, and not Debian's platform game."""
    path = shutil.which(program)
    return path is not None and not path.startswith("/usr/games")


needs_pachi = pytest.mark.skipif(
    not is_pachi("pachi"), reason="needs Pachi, the Go program, which Debian does not have"
)


def board_of(*rows: str) -> Any:
    """A board as it is drawn, with X for black and O for white."""
    board = Board(len(rows))
    for point, drawn in enumerate("".join(rows)):
        if drawn != ".":
            board.play(point, " XO".index(drawn))
    return board


def drawn(board: Any) -> list[str]:
    return re.findall(
        r"^ ?\d+ (.*)$", str(board).replace(". ", ".").replace("X ", "X").replace("O ", "O"), re.MULTILINE
    )


def test_stones_without_liberties_are_captured() -> None:
    board = board_of(".OX", "OXX", "XX.")
    board.play(0, BLACK)
    assert drawn(board) == ["X.X", ".XX", "XX."]


def test_suicide_is_illegal_and_a_capture_is_none() -> None:
    board = board_of(".X.", "X..", "...")
    assert not board.is_legal(0, WHITE)
    assert board.is_legal(0, BLACK)
    assert board_of(".XO", "XO.", "O..").is_legal(0, WHITE), "it captures"


def test_a_ko_may_not_be_taken_back_at_once() -> None:
    board = board_of(".XO.", "X.XO", ".XO.", "....")
    board.play(5, WHITE)
    assert drawn(board)[1] == "XO.O"
    assert not board.is_legal(6, BLACK), "the position before would be there again"
    board.play(15, BLACK)
    board.play(12, WHITE)
    assert board.is_legal(6, BLACK)


def test_own_eyes_are_recognised() -> None:
    board = board_of(".X.", "XX.", "...")
    assert board.is_own_eye(0, BLACK)
    assert not board.is_own_eye(0, WHITE)
    assert not board_of(".X.", "XO.", "...").is_own_eye(0, BLACK), "a false eye at the edge"


def test_area_counts_stones_and_what_they_alone_surround() -> None:
    board = board_of(".X.O.", "XX.OO", ".....", ".....", ".....")
    assert (board.area(BLACK), board.area(WHITE)) == (4, 4)


def test_points_and_vertices_are_each_others() -> None:
    board = Board(9)
    assert [board.vertex(point) for point in (0, 8, 40, 80, None)] == ["A9", "J9", "E5", "J1", "pass"]
    assert [board.point(board.vertex(point)) for point in range(81)] == list(range(81))
    assert board.point("PASS") is None
    for wrong in ("", "I5", "K5", "A0", "A10", "E", "swordfish"):
        with pytest.raises(ValueError):
            board.point(wrong)


@needs_gnugo
@pytest.mark.parametrize("seed", range(4))
def test_rules_and_scores_are_gnugos(seed: int) -> None:
    """In half of the games eyes are filled too, so that they go on and positions come again."""
    generator, fills_eyes, board, color, passes = random.Random(seed), seed % 2 == 0, Board(9), BLACK, 0
    rules = "--mode gtp --quiet --level 0 --chinese-rules --positional-superko --forbid-suicide"
    engine = GtpEngine(["gnugo", *rules.split()], 60)
    try:
        for command in ("boardsize 9", "clear_board", "komi 7.5"):
            engine.ask(command)
        for _ in range(250):
            theirs = {board.point(vertex) for vertex in engine.ask(f"all_legal {NAMES[color]}").split()}
            ours = {point for point, is_legal in enumerate(board.legal_points(color)) if is_legal}
            assert ours == theirs, f"\n{board}"
            choice = sorted(point for point in ours if fills_eyes or not board.is_own_eye(point, color))
            point = generator.choice(choice) if choice else None
            engine.ask(f"play {NAMES[color]} {board.vertex(point)}")
            if point is not None:
                board.play(point, color)
            passes = passes + 1 if point is None else 0
            if passes == 2:
                break
            color = other(color)
        for color in (BLACK, WHITE):
            stones = {board.point(vertex) for vertex in engine.ask(f"list_stones {NAMES[color]}").split()}
            assert stones == {point for point, stone in enumerate(board.stones) if stone == color}
        if not fills_eyes:
            assert passes == 2
            winner, _, lead = engine.ask("final_score").partition("+")
            assert board.area(BLACK) - board.area(WHITE) - 7.5 == float(lead) * (1 if winner == "B" else -1)
    finally:
        engine.close()


def played(env: Any, seed: int = 0, steps: int = 500) -> tuple[float, dict[str, Any]]:
    """A game with random legal moves, or as many steps of it: the last reward and info."""
    obs, _ = env.reset(seed=seed)
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        action = generator.choice(np.flatnonzero(obs["action_mask"]))
        obs, reward, terminated, truncated, info = env.step(action)
        assert not truncated
        if terminated:
            break
    return reward, info


@pytest.mark.parametrize("color", ["black", "white", "both"])
def test_it_is_an_environment_whose_mask_has_the_legal_moves(color: str) -> None:
    env = Go9x9({"color": color})
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=3)
    for _ in range(20):
        mask = obs["action_mask"]
        assert mask.tolist() == [*env.board.legal_points(env.color), True]
        own, theirs, last = obs["observations"][:-1].reshape(3, 81)
        assert own.sum() == env.board.stones.count(env.color)
        assert theirs.sum() == env.board.stones.count(other(env.color))
        assert np.flatnonzero(last).tolist() == [point for point in env.moves[-1:] if point is not None]
        obs, *_ = env.step(np.flatnonzero(mask)[0])
    colors = set()
    for _ in range(20):
        env.reset()
        colors.add(NAMES[env.color])
    assert colors == ({"black", "white"} if color == "both" else {color})


def test_a_game_ends_with_two_passes_an_illegal_move_or_too_many_moves() -> None:
    env = Go9x9({"max_moves": 60})
    reward, info = played(env)
    assert (reward, info["win"]) in ((1.0, 1.0), (-1.0, 0.0))
    assert info["moves"] == 60
    env.reset(seed=0)
    env.step(40)
    assert env.step(40)[1:] == (-1.0, True, False, {"win": 0.0, "illegal": 1.0})
    env.reset(seed=0)
    env.random_move = lambda: None
    obs, reward, terminated, _, info = env.step(40)
    assert not terminated
    assert obs["observations"][-1] == 1, "the opponent has passed"
    _, reward, terminated, _, info = env.step(PASS)
    assert terminated
    assert (reward, info["score"]) == (1.0, 81 - 7.5)
    env.config["reward"] = "score"
    env.reset(seed=0)
    assert env.step(PASS)[1] == -7.5 / 81


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"oponent": "gnugo"}, "Go9x9 has no setting oponent; it has opponent, level"),
        ({"color": "red"}, "Go9x9's color is one of black, white, both (got 'red')"),
        ({"level": 1.5}, "Go9x9's level is a whole number of at least 0 (got 1.5)"),
        ({"timeout_s": 0}, "Go9x9's timeout_s is a number of at least 0.1 (got 0)"),
        ({"komi": "six"}, "Go9x9's komi is a number of at least -inf (got 'six')"),
        (
            {"opponent": "deep-thought --depth 3"},
            "opponent 'deep-thought --depth 3': there is no program 'deep-thought'",
        ),
        ({"opponent": "cat -u"}, "opponent 'cat -u': cat does not speak GTP: cat answered 'name' with 'name'"),
    ],
)
def test_wrong_settings_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(shoal.ConfigError, match=re.escape(words)):
        Go9x9({"start_timeout_s": 0.5, **config})


@pytest.mark.parametrize("opponent", ["random", pytest.param("gnugo", marks=needs_gnugo)])
def test_a_game_goes_on_from_its_state_as_if_it_had_not_stopped(opponent: str) -> None:
    settings = {"opponent": opponent, "level": 0, "color": "white"}
    env, later = Go9x9(settings), Go9x9(settings)
    try:
        played(env, seed=5, steps=6)
        state = state_of(env)
        assert state is not None
        later.reset(seed=9)
        restore_state(later, state)
        for action in np.flatnonzero(env.seen()["action_mask"])[:4]:
            for left, right in zip(env.step(action)[0].values(), later.step(action)[0].values()):
                assert left.tolist() == right.tolist()
        assert env.moves == later.moves
    finally:
        env.close()
        later.close()


@needs_gnugo
def test_gnugo_wins_against_random_play() -> None:
    env = Go9x9({"opponent": "gnugo", "level": 0, "max_moves": 40})
    try:
        assert played(env)[0] == -1
        assert env.engine is not None
        assert env.engine.name == "GNU Go"
    finally:
        env.close()


@needs_pachi
def test_pachi_wins_against_random_play() -> None:
    env = Go9x9({"opponent": "pachi", "max_moves": 40})
    try:
        assert played(env)[0] == -1
        moves = list(env.moves)
        played(env)
        assert env.moves == moves, "a game depends on its seed and the agent's moves"
    finally:
        env.close()


# Plays the first legal point; the first program of this folder to come to its fifth move does what its argument says.
ENGINE = """
import os, subprocess, sys, time
sys.path.insert(0, {folder!r})
from go_board import BLACK, WHITE, Board
how, board, moves = sys.argv[1], Board(9), 0
for line in sys.stdin:
    word, *rest = line.split()
    answer = ""
    if word == "play":
        point = board.point(rest[1])
        if point is not None:
            board.play(point, BLACK)
    if word == "genmove":
        moves += 1
        bad = False
        if moves == 5:
            try:
                os.mkdir("failed")
                bad = True
            except FileExistsError:
                pass
        if bad and how == "hang":
            child = subprocess.Popen(["sleep", "1000"])
            open("child", "w").write(str(child.pid))
            time.sleep(1000)
        if bad and how == "die":
            sys.exit(3)
        if bad and how == "resign":
            answer = "resign"
        elif bad:
            answer = {{"illegal": "A9", "nonsense": "check"}}[how]
        else:
            point = board.legal_points(WHITE).index(True)
            board.play(point, WHITE)
            answer = board.vertex(point)
    print("=", answer, flush=True)
    print(flush=True)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command line of a program that plays Go until it fails."""
    (tmp_path / "engine.py").write_text(ENGINE.format(folder=str(TRPO)))
    monkeypatch.chdir(tmp_path)
    return f"{sys.executable} {tmp_path / 'engine.py'}"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("illegal", "played A9, which is not legal"),
        ("nonsense", "answered genmove with 'check', which is no move"),
    ],
)
def test_a_move_that_is_none_fails(how: str, words: str, engine: str) -> None:
    env = Go9x9({"opponent": f"{engine} {how}"})
    try:
        with pytest.raises(shoal.EnvError, match=words):
            played(env)
    finally:
        env.close()


def test_one_that_resigns_has_lost(engine: str) -> None:
    env = Go9x9({"opponent": f"{engine} resign", "reward": "score"})
    try:
        reward, info = played(env)
        assert (reward, info["win"], info["moves"]) == (1.0, 1.0, 10)
    finally:
        env.close()


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("hang", "did not answer 'genmove white' within 2 s"),
        ("die", "ended with code 3"),
    ],
)
def test_an_opponent_that_fails_is_an_incident_of_its_environment_alone(
    how: str, words: str, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"opponent": f"{engine} {how}", "timeout_s": 2, "start_timeout_s": 30}
    with shoal.TRPO(env=GO, config={**SMALL, "env_config": settings}) as trainer:
        result = trainer.train()
        assert result["env_failures_total"] == 1
        assert result["timesteps_total"] == 39, "the step that failed is left out"
        assert trainer.train()["timesteps_total"] == 79
        running = [child.cmdline() for child in psutil.Process().children() if str(tmp_path) in str(child.cmdline())]
        assert len(running) == 2, "each environment has one program"
    assert re.search(rf"environment 0 failed at step 5 of its episode .*{re.escape(words)}", caplog.text)
    if how == "hang":
        child = int((tmp_path / "child").read_text())
        if psutil.pid_exists(child):
            psutil.Process(child).wait(20)
    assert not [child for child in psutil.Process().children() if str(tmp_path) in str(child.cmdline())]


AGAINST_GNUGO = {
    **SMALL,
    "train_batch_size": 16,
    "env_config": {"opponent": "gnugo", "level": 0, "color": "both", "max_moves": 12},
}


@pytest.mark.slow
@needs_gnugo
def test_training_against_a_program_resumes_exactly(tmp_path: Path) -> None:
    with shoal.TRPO(env=GO, config=AGAINST_GNUGO) as trainer:
        trainer.train()
        path = trainer.save(str(tmp_path))
        trainer.train()
        straight = trainer.get_policy().network.params.copy()
    with shoal.TRPO(env=GO, config=AGAINST_GNUGO) as resumed:
        resumed.restore(path)
        resumed.train()
        assert np.array_equal(resumed.get_policy().network.params, straight)


@needs_gnugo
@pytest.mark.slow
def test_two_workers_and_processes_learn_what_one_process_learns() -> None:
    learned = []
    for settings in (
        {},
        {"env_isolation": "process"},
        {"num_workers": 2, "num_envs_per_worker": 1},
    ):
        with shoal.TRPO(env=GO, config={**AGAINST_GNUGO, **settings}) as trainer:
            results = [trainer.train() for _ in range(2)]
            assert results[-1]["env_failures_total"] == 0
            learned.append(trainer.get_policy().network.params.copy())
    assert np.array_equal(learned[0], learned[1])
    np.testing.assert_allclose(learned[0], learned[2], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_engine_that_hangs_is_ended_with_its_environments_process(engine: str, tmp_path: Path) -> None:
    settings = {"opponent": f"{engine} hang"}
    limits = {"env_step_timeout_s": 3, "env_reset_timeout_s": 60}
    with shoal.TRPO(env=GO, config={**SMALL, **limits, "env_config": settings}) as trainer:
        result = trainer.train()
        assert result["env_failures_total"] == 1
    child = int((tmp_path / "child").read_text())
    if psutil.pid_exists(child):
        psutil.Process(child).wait(20)


@needs_gnugo
def test_the_program_of_the_page_asks_gnugo() -> None:
    page = (TRPO.parents[1] / "docs" / "gtp.md").read_text()
    (program,) = re.findall(r"^```python\n(from shoal.envs import GtpEngine\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert re.fullmatch(r"GNU Go answers [A-HJ][1-9]\n", done.stdout), done.stderr


@pytest.mark.slow
def test_it_learns_to_play_against_random_play() -> None:
    settings = {
        "env_config": {"reward": "score"},
        "train_batch_size": 2000,
        "num_envs_per_worker": 8,
        "batch_mode": "complete_episodes",
        "max_kl": 0.05,
        "model": {"fcnet_hiddens": [244, 81]},
    }
    with shoal.TRPO(env=GO, config=settings) as trainer:
        scores = [trainer.train()["custom_metrics"]["score_mean"] for _ in range(20)]
    assert scores[1] < -50
    assert scores[-1] > -35
