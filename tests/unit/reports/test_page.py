"""The page, best.yml and the table at the end."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_sweeps import BATCH, GAMMA, LR, NET, fill, fill_population, sweep, write_results, write_sweep

from shoal.config.experiment import experiments_from_file
from shoal.config.sweep import MethodChoice, Setting, Sweep
from shoal.data.number_text import tick_text
from shoal.reports.analysis import Analysis
from shoal.reports.answer import answer_lines, answer_of
from shoal.reports.answer_files import write_answer
from shoal.reports.charts import limits
from shoal.reports.drawing import Scale, round_values, scale_of
from shoal.reports.lineage import ancestry
from shoal.reports.records import Exploit, TrialRecord

Filled = Callable[..., Path]
SVG = "{http://www.w3.org/2000/svg}"


def parsed(folder: Path) -> ET.Element:
    """The page as XML: every tag is closed, every text escaped."""
    text = (folder / "index.html").read_text()
    assert text.startswith("<!DOCTYPE html>\n")
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    return ET.fromstring(text.partition("\n")[2])


def charts(page: ET.Element) -> dict[str, ET.Element]:
    return {(svg.findtext(f"{SVG}title") or "").partition(":")[0]: svg for svg in page.iter(f"{SVG}svg")}


def curves_of(page: ET.Element) -> list[dict[str, Any]]:
    """The lines that the page's script draws."""
    (data,) = (script for script in page.iter("script") if script.get("id") == "data")
    (figure,) = json.loads(data.text or "")["figures"]
    lines: list[dict[str, Any]] = figure["lines"]
    return lines


def text_of(page: ET.Element) -> str:
    return " ".join(page.itertext())


def test_the_policy_allows_this_script_alone_and_no_network(filled: Filled) -> None:
    folder = filled(20)
    write_answer(folder)
    page, text = parsed(folder), (folder / "index.html").read_text()
    (policy,) = [meta.get("content") or "" for meta in page.iter("meta") if meta.get("http-equiv")]
    script = text[text.index("<script>") + len("<script>") : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_page_has_the_answer_first_and_everything_else(filled: Filled) -> None:
    folder = filled(20)
    analysis = write_answer(folder)
    page = parsed(folder)
    main = page.find("body/main")
    assert main is not None
    best = analysis.best_trial
    assert main[0].get("class") == "answer"
    assert f"trial {best.record.index}" in "".join(main[0].itertext())
    assert f"shoal train -f {folder / 'best.yml'}" in "".join(main[0].itertext())
    found = charts(page)
    lines = [g for g in found["Parallel coordinates"].iter(f"{SVG}g") if g.get("data-t")]
    assert len(lines) == 20
    assert sum("best" in (g.get("class") or "").split() for g in lines) == 1
    curves = curves_of(page)
    assert len({line["t"] for line in curves}) == 20
    assert (curves[-1]["kind"], curves[-1]["t"]) == ("t best", best.record.group)
    early = sum(record.status == "stopped early" for record in analysis.records)
    assert sum(line.get("end") == "early" for line in curves) == early > 0
    assert "share of the differences" in text_of(page)
    rows = [row for row in page.iter("tr") if row.get("data-t")]
    assert next(link.get("href") for row in rows for link in row.iter("a")) == f"trials/{best.trial_id}/"
    assert "EnvError: the simulator died" in text_of(page)
    assert "Traceback" not in text_of(page)


def test_the_users_own_words_are_text_and_not_markup(tmp_path: Path) -> None:
    bad = "</script><b>\"&'\x1b[31m"
    made = dataclasses.replace(sweep(Setting("config.env_config.what", "choice", (bad, "x"))), name="a <b> & c")
    records = []
    for index, value in enumerate((bad, "x")):
        last = {"training_iteration": 1.0, "timesteps_total": 10.0, "episode_reward_mean": float(-index)}
        settings = {"config.env_config.what": value}
        record = TrialRecord(index, index, settings, None, "failed" if index else "finished", bad, f"trials/{index}")
        records.append(dataclasses.replace(record, last_result=last))
        write_results(tmp_path, record, [last])
    write_sweep(tmp_path, made, records)
    write_answer(tmp_path)
    page = parsed(tmp_path)
    assert "a <b> & c" in text_of(page)
    assert "\x1b" not in text_of(page)
    assert len(list(page.iter("script"))) == 1
    assert experiments_from_file(tmp_path / "best.yml")[0].config.env_config == {"what": bad}


@pytest.mark.parametrize("stop", [{"timesteps_total": 50_000}, {"episode_reward_mean": 475.0}, {"time_total_s": "90m"}])
def test_best_yml_is_an_experiment_that_trains_for_longer(tmp_path: Path, stop: dict[str, object]) -> None:
    made = sweep(LR, BATCH, NET)
    made = dataclasses.replace(made, tree={**made.tree, "stop": stop, "checkpoint_freq": 3})
    analysis = write_answer(fill(tmp_path, made, 12))
    (experiment,) = experiments_from_file(tmp_path / "best.yml")
    best = analysis.best_trial.record
    assert experiment.name == "cartpole_best"
    assert experiment.config.env == "CartPole-v1"
    assert experiment.config.lr == best.settings["config.lr"]
    assert list(experiment.config.model.fcnet_hiddens) == best.settings["config.model.fcnet_hiddens"]
    assert experiment.checkpoint_freq == 3
    expected = {"time_total_s": 10_800.0} if "time_total_s" in stop else {"timesteps_total": 100_000}
    assert experiment.stop == expected


@pytest.mark.parametrize(
    ("env", "file"),
    [
        ("throw_env.ThrowEnv", "throw_env.py"),
        ("./throw_env.py:ThrowEnv", "throw_env.py"),
        ("envs.throwing:ThrowEnv", "envs/throwing.py"),
        ("envs.ThrowEnv", "envs/__init__.py"),
    ],
)
def test_the_command_goes_to_the_folder_of_the_users_code(tmp_path: Path, env: str, file: str) -> None:
    code = tmp_path / "my code"
    (code / file).parent.mkdir(parents=True)
    (code / file).write_text("")
    made = sweep(LR)
    made = dataclasses.replace(made, tree={**made.tree, "env": env})
    folder = fill(tmp_path / "sweep", made, 2)
    about = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps({**about, "search_path": [str(tmp_path), str(code)]}))
    commands = dict(answer_of(Analysis(folder)).commands)
    assert commands["train for longer"] == f"cd '{code}' && shoal train -f {folder / 'best.yml'}"


def test_with_seeds_there_is_a_band_an_interval_and_a_verdict(tmp_path: Path) -> None:
    folder = fill(tmp_path, sweep(LR, NET, seeds=5), 6, early=False)
    analysis = write_answer(folder)
    page = parsed(folder)
    assert ["low" in line for line in curves_of(page)] == [False] + 5 * [True]
    text = text_of(page)
    assert "95 % interval of the mean over 5 seeds" in text
    assert "permutation test" in text
    (experiment,) = experiments_from_file(folder / "best.yml")
    assert experiment.config.seed == analysis.best_trial.record.seed
    lines = answer_lines(answer_of(analysis))
    assert "  trials   mean   95 % interval    IQM  lr         fcnet_hiddens" in lines


def test_a_population_has_a_lineage_and_settings_over_time(tmp_path: Path) -> None:
    folder = fill_population(tmp_path)
    analysis = write_answer(folder)
    found = charts(parsed(folder))
    takes = [mark for mark in found["Lineage"].iter(f"{SVG}polyline") if mark.get("class") == "take"]
    assert len(takes) == sum(len(record.exploits) for record in analysis.records) == 8
    assert any(mark.get("class") == "way" for mark in found["Lineage"].iter(f"{SVG}polyline"))
    assert {"lr over timesteps_total", "gamma over timesteps_total"} <= set(found)
    assert "changed theirs" in analysis.importances.note


def test_ancestry_goes_back_to_the_first() -> None:
    records = [
        TrialRecord(0, 0, {}, exploits=(Exploit(10, 100, 1, {}), Exploit(30, 300, 2, {}))),
        TrialRecord(1, 1, {}),
        TrialRecord(2, 2, {}, exploits=(Exploit(20, 200, 0, {}),)),
    ]
    assert [(index, begin) for index, begin, _ in ancestry(records, 0, "timesteps_total")] == [
        (0, 300.0),
        (2, 200.0),
        (0, 100.0),
        (1, 0.0),
    ]
    assert [index for index, _, _ in ancestry(records, 2, "training_iteration")] == [2, 0, 1]


def test_a_function_of_the_users_own_has_no_best_yml(tmp_path: Path) -> None:
    settings = (Setting("config.x", "grid_search", (1, 2, 3)), Setting("config.y", "grid_search", (1, 2, 3)))
    made = Sweep("fn", {"name": "fn", "config": {}}, settings, metric="score", mode="min")
    records = []
    for index in range(9):
        record = TrialRecord(
            index, index, {"config.x": index // 3, "config.y": index % 3}, folder=f"trials/{index:05d}"
        )
        write_results(tmp_path, record, [{"score": float(index // 3), "training_iteration": 1}], is_run=False)
        records.append(dataclasses.replace(record, status="finished", last_result={"score": float(index // 3)}))
    write_sweep(tmp_path, made, records)
    analysis = write_answer(tmp_path)
    assert not (tmp_path / "best.yml").exists()
    assert analysis.best_config == {"x": 0, "y": 0}
    assert "shoal train" not in text_of(parsed(tmp_path))


@pytest.mark.parametrize("metric", ["", "episode_reward_mean"])
def test_a_sweep_without_any_result_or_metric_makes_a_page(tmp_path: Path, metric: str) -> None:
    write_sweep(
        tmp_path,
        sweep(LR, metric=metric),
        [TrialRecord(0, 0, {"config.lr": 1e-3}), TrialRecord(1, 1, {"config.lr": 1})],
    )
    analysis = write_answer(tmp_path)
    assert answer_lines(answer_of(analysis)) == ["2 trials: 2 waiting"]
    assert ("has no metric" if not metric else "No trial has a score yet") in text_of(parsed(tmp_path))
    write_sweep(tmp_path, sweep(LR, metric=metric), [])
    assert answer_lines(answer_of(write_answer(tmp_path))) == ["no trial has begun"]
    parsed(tmp_path)


def test_a_page_of_many_trials_stays_small(tmp_path: Path) -> None:
    folder = fill(tmp_path, sweep(LR, GAMMA, BATCH, NET, scheduler=MethodChoice("asha")), 300, iterations=80)
    write_answer(folder)
    assert (folder / "index.html").stat().st_size < 1_500_000
    parsed(folder)


def test_the_table_shows_what_differs_and_fits(filled: Filled) -> None:
    answer = answer_of(Analysis(filled(15, settings=(LR, Setting("config.gamma", "choice", (0.99,)), NET, BATCH))))
    lines = answer_lines(answer)
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("15 trials: ")
    head = next(line for line in lines if line.lstrip().startswith("trial"))
    assert "lr" in head
    assert "gamma" not in head
    assert not any("gamma" in line for line in lines)
    narrow = answer_lines(answer, 45)
    assert any("no room here, see the page" in line for line in narrow)


def test_scales_and_ticks() -> None:
    assert [tick_text(value) for value in (0, 1e-5, 0.25, 1500, 20_000, 1.5e6, -3e9)] == [
        "0", "1e-5", "0.25", "1500", "20k", "1.5M", "-3G",
    ]  # fmt: skip
    assert round_values(0, 50_000, 6) == [0, 10_000, 20_000, 30_000, 40_000, 50_000]
    log = Scale(1e-5, 1e-2, 100, 0, log=True)
    assert log(1e-2) == 0
    assert log.ticks() == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2])
    assert scale_of([3.0, 3.0], 0, 10)(3.0) == 5
    assert limits([0.0] + [float(value) for value in range(100)] + [1e9])[1] < 1000
    assert limits([1.0, 2.0, 3.0]) == (1.0, 3.0)
