"""A maze with a reward at its goal only: from far away nobody finds it by chance, from nearby everybody does."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from shoal import TaskSettableEnv

MAZE = (
    "#############",
    "#G#.....#...#",
    "#.#.###.#.#.#",
    "#.#.#...#.#.#",
    "#.#.#.###.#.#",
    "#...#...#.#.#",
    "#####.#####.#",
    "#...#.#.....#",
    "#.#.#.#.#####",
    "#.#...#.....#",
    "#.#########.#",
    "#...........#",
    "#############",
)
SPREAD = 5  # in the distances that episodes of a task start at
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


def distances() -> dict[tuple[int, int], int]:
    """The steps from each cell to the goal."""
    (goal,) = ((y, x) for y, row in enumerate(MAZE) for x, cell in enumerate(row) if cell == "G")
    found, border = {goal: 0}, [goal]
    for y, x in border:
        for dy, dx in MOVES:
            cell = y + dy, x + dx
            if MAZE[cell[0]][cell[1]] != "#" and cell not in found:
                found[cell] = found[y, x] + 1
                border.append(cell)
    return found


class MazeEnv(TaskSettableEnv):
    """Go up, down, left or right; the task is the distance from the goal at which episodes start."""

    def __init__(self, config: dict[str, Any]) -> None:
        found = distances()
        cells = list(found)
        self.distances = list(found.values())
        self.moves = [
            [cells.index((y + dy, x + dx) if (y + dy, x + dx) in found else (y, x)) for dy, dx in MOVES]
            for y, x in cells
        ]
        self.max_steps = config.get("max_steps", 200)
        self.distance = max(self.distances)
        self.observation_space = spaces.Discrete(len(cells))
        self.action_space = spaces.Discrete(4)

    def get_task(self) -> int:
        return self.distance

    def set_task(self, task: int) -> None:
        if not 1 <= task <= max(self.distances):
            raise ValueError(f"no cell is {task} steps away")
        self.distance = task

    def sample_tasks(self, n_tasks: int) -> list[int]:
        return self.np_random.integers(1, max(self.distances) + 1, n_tasks).tolist()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        starts = [cell for cell, steps in enumerate(self.distances) if 0 <= self.distance - steps < SPREAD and steps]
        self.cell = starts[self.np_random.integers(len(starts))]
        self.steps = 0
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.cell = self.moves[self.cell][action]
        self.steps += 1
        at_goal = self.distances[self.cell] == 0
        return self.cell, float(at_goal), at_goal, self.steps >= self.max_steps, {"at_goal": at_goal}
