"""The words of `shoal.tune`, and what Ray's schedulers and searchers are made of."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from any_algorithm import ANY_ALGORITHM, EVERY_ALGORITHM

import shoal.tune
from shoal.config.search_spaces import KINDS, find_settings
from shoal.config.sweep import Sweep, sweep_from
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS, chosen_options
from shoal.errors import ConfigError
from shoal.tune.api import FOREIGN
from shoal.tune.ray_classes import ray_class
from shoal.tune.ray_schedulers import make_scheduler
from shoal.tune.ray_searchers import GuardedSearcher, make_search
from shoal.tune.ray_spaces import AS_LOG, AS_TEXT, REPEAT, SEED, param_space, settings_of

CALLS: dict[str, tuple[Any, ...]] = {
    "grid_search": ([1, 2],),
    "choice": ((1, 2),),
    "uniform": (0, 1),
    "loguniform": (1e-5, 1),
    "quniform": (0, 1, 0.5),
    "qloguniform": (0.5, 8, 0.5),
    "randint": (1, 5),
    "lograndint": (1, 5),
    "qrandint": (2, 8, 2),
    "normal": (0, 1),
}
OUR_OWN = {"random": {"seed"}, "optuna": {"seed", "n_startup_trials"}, "hyperopt": {"seed"}, "bayesopt": {"seed"}}
OUR_OWN |= {"nevergrad": {"seed"}, "ax": {"seed"}}


def sweep(config: dict[str, Any], **words: Any) -> Sweep:
    tree = {
        "name": "f",
        "config": config,
        "metric": "score",
        "mode": "max",
        "stop": {"training_iteration": 20},
        **words,
    }
    return sweep_from(tree, check_experiment=False)


def test_every_word_gives_the_mapping_of_a_file() -> None:
    assert set(CALLS) == set(KINDS)
    for name, arguments in CALLS.items():
        space = getattr(shoal.tune, name)(*arguments)
        settings, problems = find_settings({"config": {"x": space}})
        assert not problems
        assert settings[0].kind == name
    with pytest.raises(ConfigError, match=r"shoal\.tune\.choice"):
        shoal.tune.sample_from(lambda _: 1)


def test_rays_names_give_the_mapping_of_a_file() -> None:
    """Every class of Ray's that a table names has a function here, which refuses what a file would."""
    for module, key, table in (("schedulers", "scheduler", SCHEDULERS), ("suggest", "search_alg", SEARCHERS)):
        for name, entry in table.items():
            made = getattr(getattr(shoal.tune, module), entry.ray_class.partition(":")[2])()
            assert made == {"type": name}
            assert sweep_words_of(key, made)[key] == made
    asha = shoal.tune.schedulers.ASHAScheduler(grace_period=2, reduction_factor=3)
    assert sweep({"lr": {"uniform": [0, 1]}}, scheduler=asha).scheduler.options["grace_period"] == 2
    with pytest.raises(ConfigError, match=r"scheduler\.metric: .*; metric goes to shoal\.tune\.run itself") as caught:
        shoal.tune.schedulers.ASHAScheduler(metric="score", grace_perid=1, max_t="long")
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match=r"max_concurrent_trials goes to shoal\.tune\.run itself"):
        shoal.tune.suggest.OptunaSearch(max_concurrent=4)


def sweep_words_of(key: str, value: Any) -> dict[str, Any]:
    """What `chosen_options` makes of a mapping that it has made."""
    name, options, problems = chosen_options(key, value, SCHEDULERS if key == "scheduler" else SEARCHERS)
    assert not problems
    return {key: {"type": name, **options}}


def test_what_is_run_is_an_algorithm_its_trainer_or_a_function() -> None:
    class Mine(shoal.PPO):
        pass

    trainer = shoal.PPO("CartPole-v1")
    for what, sentence in (
        (trainer, "every trial makes a trainer of its own .*; use 'PPO'"),
        (Mine, f"trials run one of {EVERY_ALGORITHM}(, \\S+)*, not a trainer of your own"),
        (3, "needs the name of an algorithm, or a function"),
        ("A3C", f"run: must be {ANY_ALGORITHM}"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            shoal.tune.run(what, config={"env": "CartPole-v1"}, stop={"training_iteration": 1})
    with pytest.raises(
        ConfigError, match="num_samples: nothing is drawn, so 4 samples would be the same; set seeds: 4"
    ):
        shoal.tune.run(
            shoal.PPO, config={"env": "X-v0"}, stop={"training_iteration": 9}, scheduler="asha", num_samples=4
        )


@pytest.mark.parametrize("word", FOREIGN)
def test_rays_other_arguments_are_refused_with_what_to_write(word: str) -> None:
    with pytest.raises(ConfigError, match=f"{word}: shoal.tune.run does not take it; .*(leave|set|use)"):
        shoal.tune.run("PPO", config={"env": "CartPole-v1"}, **{word: 1})


def test_words_and_tables_need_no_ray() -> None:
    code = "import sys, shoal.tune, shoal.config.sweep as s; shoal.tune.uniform(0, 1); assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_options_of_schedulers_are_rays(name: str) -> None:
    known = inspect.signature(ray_class(SCHEDULERS[name])).parameters
    assert set(SCHEDULERS[name].options) <= set(known)
    for option, entry in SCHEDULERS[name].options.items():
        if entry.is_given and option != "time_attr":
            assert entry.default == known[option].default


@pytest.mark.parametrize("name", SEARCHERS)
def test_options_of_searchers_are_rays(name: str) -> None:
    known = inspect.signature(ray_class(SEARCHERS[name])).parameters
    assert set(SEARCHERS[name].options) - OUR_OWN.get(name, set()) <= set(known)
    for option in set(SEARCHERS[name].options) - OUR_OWN.get(name, set()) - {"optimizer", "seed"}:
        assert SEARCHERS[name].options[option].default == known[option].default


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name not in ("pb2", "bohb")])
def test_every_scheduler_is_made_and_can_be_saved(name: str) -> None:
    made = make_scheduler(sweep({"lr": {"loguniform": [1e-4, 1e-1]}}, scheduler=name, num_samples=4))
    assert isinstance(made, ray_class(SCHEDULERS[name]))
    if name == "pbt":
        assert pickle.loads(pickle.dumps(made._custom_explore_fn))({"config.lr": 3.0}) == {"config.lr": 0.1}
        assert made._perturbation_interval == 2


def test_a_population_stays_within_bounds_and_begins_with_what_is_written() -> None:
    told = {"lr": {"qrandint": [2, 8, 2]}, "act": ["a", "b"], "new": {"uniform": [0, 1]}}
    made = sweep({"lr": 4, "act": {"grid_search": ["a", "b"]}}, scheduler={"type": "pbt", "hyperparam_mutations": told})
    space = param_space(made)
    assert space["config.lr"] == 4
    assert space["config.act"] == {"grid_search": ["a", "b"]}
    assert (space["config.new"].lower, space["config.new"].upper) == (0, 1)
    scheduler = make_scheduler(made)
    assert scheduler._hyperparam_mutations["config.act"] == ["a", "b"]
    changed = scheduler._custom_explore_fn({"config.lr": 4.8, "config.act": "b", "config.new": -0.3, "other": 1})
    assert changed == {"config.lr": 4, "config.act": "b", "config.new": 0.0, "other": 1}


def test_the_random_search_repeats_each_draw_with_every_seed() -> None:
    made = sweep({"x": {"uniform": [0, 1]}, "y": {"grid_search": [1, 2]}, "seed": 10}, num_samples=3, seeds=2)
    found = drawn_trials(made)
    assert len(found) == 12
    assert sorted(str(seed) for _, seed in found) == ["10"] * 6 + ["11"] * 6
    groups: dict[str, set[int]] = {}
    for values, seed in found:
        assert seed is not None
        groups.setdefault(json.dumps(values), set()).add(seed)
    assert [len(seeds) for seeds in groups.values()] == [2] * 6
    assert found == drawn_trials(made)


def drawn_trials(made: Sweep) -> list[tuple[dict[str, Any], int | None]]:
    """What the random search gives to each trial."""
    from ray.tune.experiment import Experiment

    search = make_search(made, None)
    search.add_configurations(Experiment("x", lambda _: None, config=param_space(made), num_samples=made.num_samples))
    trials = []
    while (trial := search.next_trial()) is not None:
        trials.append(settings_of(made, trial.config))
    return trials


def test_what_searchers_cannot_take_goes_to_them_in_other_words() -> None:
    config = {"lr": {"loguniform": [1e-4, 1e-1]}, "n": {"lograndint": [4, 65]}, "q": {"quniform": [0, 1, 0.25]}}
    choices = {"h": {"choice": [[8], None, "a"]}}
    made = sweep({**config, **choices}, search_alg="optuna", num_samples=4, seeds=2)
    assert set(param_space(made)) == {"config.lr", "config.n", "config.q", f"{AS_TEXT}config.h"}
    raw = {"config.lr": 0.01, "config.n": 5, "config.q": 0.4, f"{AS_TEXT}config.h": "[8]", REPEAT: 1}
    assert settings_of(made, raw) == ({"config.lr": 0.01, "config.n": 5, "config.q": 0.5, "config.h": [8]}, 1)
    flat = Sweep("f", {}, made.settings[:3], "score", search_alg=type(made.search_alg)("bayesopt"))
    assert set(param_space(flat)) == {f"{AS_LOG}config.lr", f"{AS_LOG}config.n", "config.q"}
    decoded, seed = settings_of(
        flat, {f"{AS_LOG}config.lr": -4.6051701, f"{AS_LOG}config.n": 1.6094379, "config.q": 0.9}
    )
    assert seed is None
    assert decoded == {"config.lr": pytest.approx(0.01), "config.n": 5, "config.q": 1.0}
    assert SEED not in param_space(made)


def test_settings_that_are_decoded_already_stay() -> None:
    made = sweep({"h": {"choice": [[8], "a"]}}, search_alg="optuna", num_samples=2)
    assert settings_of(made, {f"{AS_TEXT}config.h": '"a"', "config.h": [8]}) == ({"config.h": [8]}, None)


class Silent:
    """A searcher that has nothing to say."""

    metric, mode = "score", "max"

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        return {"x": 1} if trial_id == "first" else None

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.heard.append((trial_id, result, error))

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self.heard.append((trial_id, result))


def test_a_searcher_hears_numbers_alone_and_ends_instead_of_hanging() -> None:
    inner = Silent()
    steady = GuardedSearcher(inner)
    assert steady.suggest("first") == {"x": 1}
    assert [steady.suggest("next") for _ in range(30)] == [None] * 30
    steady.on_trial_result("first", {"training_iteration": 1})
    steady.on_trial_result("first", {"score": 1.0})
    steady.on_trial_complete("first", {"score": float("nan")})
    assert inner.heard == [("first", {"score": 1.0}), ("first", None, True)]
    said = [steady.suggest("next") for _ in range(30)]
    assert said[-1] == "FINISHED"


def test_optuna_finds_what_is_good() -> None:
    pytest.importorskip("optuna")
    made = sweep({"x": {"uniform": [0, 1]}, "h": {"choice": [[8], None]}}, search_alg="optuna", num_samples=30)
    search = make_search(made, 2)
    search.set_search_properties("score", "max", param_space(made))
    found = []
    for number in range(30):
        values, _ = settings_of(made, search.suggest(str(number)))
        found.append(values["config.x"])
        search.on_trial_complete(str(number), {"score": -abs(values["config.x"] - 0.3), "training_iteration": 1})
    assert sum(abs(x - 0.3) < 0.15 for x in found[15:]) > sum(abs(x - 0.3) < 0.15 for x in found[:15])


def test_options_have_names() -> None:
    with pytest.raises(ConfigError, match=r"asha takes its options by their names \(got .training_iteration.\)"):
        shoal.tune.schedulers.ASHAScheduler("training_iteration")
