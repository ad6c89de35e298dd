"""9x9 Go against random play or against a program over GTP, with a mask of the legal moves."""

from __future__ import annotations

import re
import shlex
from typing import Any

import gymnasium as gym
import numpy as np
from go_board import BLACK, NAMES, WHITE, Board, other

import shoal
from shoal.envs import GtpEngine

SIZE = 9
POINTS = SIZE**2
PASS = POINTS
# All of them are told to play by the rules of go_board.py, and not to pass before dead stones are captured: a game
# is scored with every stone that is left on the board.
PROGRAMS = {
    "gnugo": "gnugo --mode gtp --quiet --level {level} --seed {seed} --chinese-rules --positional-superko "
    "--forbid-suicide --capture-all-dead --never-resign",
    "pachi": "pachi -d 0 -t ={level} -s {seed} --nodcnn --nojoseki --nopatterns "
    "threads=1,resign_threshold=0,pass_all_alive",
}
LEVELS = {"gnugo": 1, "pachi": 500}
HINTS = {
    "gnugo": "; Debian's package gnugo has it",
    "pachi": "; Debian's package pachi is a platform game of that name: build the Go program of github.com/pasky/pachi",
}
SETTINGS: dict[str, Any] = {
    "opponent": "random",  # random, gnugo, pachi, or the command line of another program that speaks GTP
    "level": None,  # gnugo: 0 to 10; pachi: number of playouts per move; {level} in a command line
    "komi": 7.5,
    "color": "black",  # the agent's: black, white, or both, drawn for each game
    "reward": "win",  # 1 or -1 at the end, as Gym's Go9x9-v0; or score: the difference of the areas / 81
    "max_moves": 2 * POINTS,  # of both players; then the game is scored as it stands
    "start_timeout_s": 20.0,  # until the program has told its name
    "timeout_s": 60.0,  # for one answer of it
}
SIDES = {"black": (BLACK,), "white": (WHITE,), "both": (BLACK, WHITE)}
WORDS = {"color": tuple(SIDES), "reward": ("win", "score")}
LEAST = {"level": 0, "max_moves": 1, "start_timeout_s": 0.1, "timeout_s": 0.1}


class Go9x9(gym.Env):
    """An action is a point, or 81 to pass.

    The agent sees its own stones, the opponent's, the opponent's last move (three boards, each row by row), and
    whether the opponent has just passed. Two passes end the game.
    """

    observation_space = gym.spaces.Dict(
        observations=gym.spaces.Box(0, 1, (3 * POINTS + 1,), np.float32),
        action_mask=gym.spaces.Box(0, 1, (POINTS + 1,), np.int8),
    )
    action_space = gym.spaces.Discrete(POINTS + 1)
    metadata = {"render_modes": ["ansi"]}
    render_mode = "ansi"

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config = checked({**SETTINGS, **(config or {})})
        opponent = str(self.config["opponent"])
        if self.config["level"] is None:
            self.config["level"] = LEVELS.get(opponent, 1)
        self.command = None if opponent == "random" else shlex.split(PROGRAMS.get(opponent, opponent))
        self.engine: GtpEngine | None = None
        try:
            self.start_engine(seed=1)  # so that a program that is missing or wrong is told before anything is trained
        except shoal.ShoalError as error:
            raise shoal.ConfigError(f"opponent {opponent!r}: {error}{HINTS.get(opponent, '')}") from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        sides = SIDES[self.config["color"]]
        self.begin(int(self.np_random.choice(sides)), int(self.np_random.integers(1, 2**31)))
        if self.color == WHITE:
            self.play(self.opponents_move())
        return self.seen(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        point = None if action == PASS else int(action)
        if point is not None and not self.board.is_legal(point, self.color):
            return self.seen(), -1.0, True, False, {"win": 0.0, "illegal": 1.0}
        self.tell(self.color, point)
        self.play(point)
        if not self.is_over():
            self.play(self.opponents_move())
        if not self.is_over():
            return self.seen(), 0.0, False, False, {}
        score = self.score()
        reward = float(np.sign(score)) if self.config["reward"] == "win" else score / POINTS
        info = {"win": float(score > 0), "score": score, "moves": len(self.moves)}
        return self.seen(), reward, True, False, info

    def close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def render(self) -> str:
        return str(self.board)

    def get_state(self) -> dict[str, Any]:
        """What a run needs to go on in the middle of a game: the moves and the seed of the program."""
        return {"color": self.color, "engine_seed": self.engine_seed, "moves": list(self.moves)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Play the game again; the program thinks about its moves again, so that its chance is where it was."""
        if not self.replay(state, thinks_again=True):  # it does not play the same twice: what it played then counts
            self.replay(state, thinks_again=False)

    def replay(self, state: dict[str, Any], thinks_again: bool) -> bool:
        """Play a game again; False if the program, which thinks again, plays something else."""
        self.begin(state["color"], state["engine_seed"])
        for point in state["moves"]:
            if self.turn == self.color or not thinks_again:
                self.tell(self.turn, point)
            elif self.engine is not None and self.engines_move() != point:
                return False
            self.play(point)
        return True

    @property
    def turn(self) -> int:
        return WHITE if len(self.moves) % 2 else BLACK

    def begin(self, color: int, engine_seed: int) -> None:
        self.board = Board(SIZE)
        self.moves: list[int | None] = []
        self.opponent_resigned = False
        self.color, self.engine_seed = color, engine_seed
        self.start_engine(engine_seed)

    def start_engine(self, seed: int) -> None:
        """Start a program of this game's own: it takes some milliseconds, and a game depends on its seed alone."""
        self.close()
        if self.command is None:
            return
        places = {"{level}": str(self.config["level"]), "{seed}": str(seed)}
        words = [re.sub("|".join(places), lambda place: places[place[0]], word) for word in self.command]
        self.engine = GtpEngine(words, self.config["timeout_s"], self.config["start_timeout_s"])
        try:
            for command in (f"boardsize {SIZE}", "clear_board", f"komi {self.config['komi']}"):
                self.engine.ask(command)
        except shoal.EnvError:
            self.close()
            raise

    def tell(self, color: int, point: int | None) -> None:
        if self.engine is not None:
            self.engine.ask(f"play {NAMES[color]} {self.board.vertex(point)}")

    def play(self, point: int | None) -> None:
        if point is not None:
            self.board.play(point, self.turn)
        self.moves.append(point)

    def opponents_move(self) -> int | None:
        """A legal move of the opponent's; None is a pass."""
        if self.engine is None:
            return self.random_move()
        point = self.engines_move()
        if point is not None and not self.board.is_legal(point, self.turn):
            raise shoal.EnvError(f"{self.engine.program} played {self.board.vertex(point)}, which is not legal")
        return point

    def random_move(self) -> int | None:
        """A random legal move that fills no eye of one's own; without one, a pass."""
        color = self.turn
        for point in self.np_random.permutation(POINTS).tolist():
            if self.board.is_legal(point, color) and not self.board.is_own_eye(point, color):
                return point
        return None

    def engines_move(self) -> int | None:
        """What the program plays; None is a pass, or that it has resigned."""
        assert self.engine is not None
        vertex = self.engine.ask(f"genmove {NAMES[self.turn]}")
        if vertex.lower() == "resign":
            self.opponent_resigned = True
            return None
        try:
            return self.board.point(vertex)
        except ValueError:
            raise shoal.EnvError(f"{self.engine.program} answered genmove with {vertex!r}, which is no move") from None

    def is_over(self) -> bool:
        is_long = len(self.moves) >= self.config["max_moves"]
        return self.opponent_resigned or is_long or self.moves[-2:] == [None, None]

    def score(self) -> float:
        """By how many points the agent is ahead; all of them if the opponent has resigned."""
        if self.opponent_resigned:
            return float(POINTS)
        lead = self.board.area(BLACK) - self.board.area(WHITE) - self.config["komi"]
        return lead if self.color == BLACK else -lead

    def seen(self) -> dict[str, Any]:
        stones = np.array(self.board.stones)
        last = self.moves[-1] if self.moves else None
        observations = np.zeros(3 * POINTS + 1, np.float32)
        observations[:POINTS] = stones == self.color
        observations[POINTS : 2 * POINTS] = stones == other(self.color)
        if last is not None:
            observations[2 * POINTS + last] = 1
        observations[-1] = bool(self.moves) and last is None
        mask = np.array([*self.board.legal_points(self.color), True], np.int8)
        return {"observations": observations, "action_mask": mask}


def checked(config: dict[str, Any]) -> dict[str, Any]:
    """The settings, or a sentence that says what is wrong with them."""
    unknown = sorted(config.keys() - SETTINGS.keys())
    if unknown:
        raise shoal.ConfigError(f"Go9x9 has no setting {', '.join(unknown)}; it has {', '.join(SETTINGS)}")
    for key, words in WORDS.items():
        if config[key] not in words:
            raise shoal.ConfigError(f"Go9x9's {key} is one of {', '.join(words)} (got {config[key]!r})")
    for key, least in {"komi": -np.inf, **LEAST}.items():
        kinds = (int, float) if isinstance(SETTINGS[key], float) else int
        if config[key] is None and SETTINGS[key] is None:
            continue
        if isinstance(config[key], bool) or not isinstance(config[key], kinds) or not config[key] >= least:
            what = "a whole number" if kinds is int else "a number"
            raise shoal.ConfigError(f"Go9x9's {key} is {what} of at least {least} (got {config[key]!r})")
    return config
