"""The page of runs: what it says, that it is safe to open, and that it opens in a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import fake_run

from shoal.config.algorithms import ALGORITHMS
from shoal.reports.figure_data import KNOWN, MOST_POINTS, STILL, figure_data, figures_of
from shoal.reports.reported_runs import grouped, read_run, read_runs
from shoal.reports.run_page import ReportInput, run_page
from shoal.reports.run_report import leave_report
from shoal.reports.run_verdict import time_shares, verdict_of
from shoal.runs.outcomes import Outcome


def page_of(*folders: Path, **more: Any) -> str:
    runs = [read_run(folder) for folder in folders]
    return run_page(ReportInput(runs, folders[0].parent / "report.html", **more))


def parsed(text: str) -> ET.Element:
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.partition("\n")[2])


def words(page: ET.Element) -> str:
    return " ".join(page.find("body/main").itertext())  # type: ignore[union-attr]


def numbers(text: str, kind: type = np.float32) -> list[float]:
    return np.frombuffer(base64.b64decode(text), kind).tolist()


def test_one_run_has_its_verdict_first_and_everything_else(tmp_path: Path) -> None:
    stop = {"episode_reward_mean": 8, "timesteps_total": 100_000}
    evaluation = {"episode_reward_mean": 9.0, "episode_rewards": [8.0, 10.0], "episode_lengths": [8, 10]}
    folder = fake_run(tmp_path, stop=stop, evaluation=evaluation, config={"lr": 0.125}, task=2, stages_passed=1)
    by_hand = {"checkpoint": "/x/checkpoint_000010", "episode_reward_mean": 7.5, "episodes_this_iter": 5}
    (folder / "evaluation_2026-11-17.json").write_text(json.dumps(by_hand))
    (folder / "evaluation_2026-11-18.json").write_text("{")
    page = parsed(page_of(folder))
    main = page.find("body/main")
    assert main is not None
    assert main[0].get("class") == "answer"
    assert main[0][0].text == (
        "Solved at 800 steps in 8 s (episode_reward_mean of 8); learning takes 70 % of the time, at 100 steps/s."
    )
    text = words(page)
    for part in ("Return in evaluation", "KL divergence", "Explained variance", "Throughput", "Task", "Its 2 episodes"):
        assert part in text
    assert "environment 20 %, actions 10 %, learning 70 %; 100 steps/s; the environment alone allows 500" in text
    assert f"shoal train -f {folder}/config.yaml --new" in text
    marked = ["".join(row[0].itertext()) for row in page.iter("tr") if row.get("class") == "differs"]
    assert "lr" in marked
    assert "gamma" not in marked
    assert "No environment has failed." in text
    assert "evaluation_2026-11-17 of checkpoint_000010 7.5 - - - - 5" in re.sub(r"\s+", " ", text)
    assert "at 1,000 steps 9" in re.sub(r"\s+", " ", text)


def test_several_groups_are_compared_and_their_differences_marked(tmp_path: Path) -> None:
    folders = [
        fake_run(tmp_path, f"lr{lr}", seed, lambda at, lr=lr, seed=seed: at * 1000 * lr + seed, config={"lr": lr})
        for lr in (1e-3, 1e-2)
        for seed in range(5)
    ]
    page = parsed(page_of(*folders))
    main = page.find("body/main")
    assert main is not None
    verdict = main[0][0].text or ""
    assert verdict.startswith("lr 0.01 is better than lr 0.001, by more than luck (episode_reward_mean 102 and 12 at")
    marked = [[cell.text for cell in row] for row in page.iter("tr") if row.get("class") == "differs"]
    assert marked == [["lr", "0.001", "0.01"]]
    keys = [button for button in page.iter("button") if button.get("data-group")]
    assert ["".join(key.itertext()) for key in keys] == ["lr 0.001 (5)", "lr 0.01 (5)"]


def test_verdicts(tmp_path: Path) -> None:
    def of(*folders: Path) -> str:
        return verdict_of(grouped([read_run(folder) for folder in folders]))

    assert of(fake_run(tmp_path, "a")).startswith("Return 10 after 1,000 steps, still rising; learning takes 70 %")
    flat = fake_run(tmp_path, "b", course=lambda at: float(min(at, 3)), iterations=20)
    assert "Return 3 after 2,000 steps, no longer rising" in of(flat)
    falling = fake_run(tmp_path, "c", course=lambda at: -float(at), stop={"episode_reward_mean": 5})
    assert of(falling).startswith(
        "Not solved (episode_reward_mean of 5): return -10 after 1,000 steps, the best was -1, falling"
    )
    failed = fake_run(tmp_path, "d", outcome=Outcome("failed", "EnvError: it broke\nmore"))
    assert of(failed).startswith("Failed after 1,000 steps: EnvError: it broke;")
    seeds = [
        fake_run(tmp_path, "e", seed, lambda at, seed=seed: at + seed, stop={"episode_reward_mean": 10})
        for seed in (0, 1)
    ]
    assert of(*seeds).startswith(
        "2 of 2 runs solved it, at 950 steps in the median (episode_reward_mean of 10); return 10.5"
    )
    one, other = fake_run(tmp_path, "f"), fake_run(tmp_path, "g", config={"lr": 0.5}, course=lambda at: 2.0 * at)
    assert "looks better than" in of(one, other)
    assert "better in 1 of 1 pair of runs, but so few may be luck" in of(one, other)
    few = fake_run(tmp_path, "h", iterations=1)
    assert "too few results to see a trend" in of(few)


def test_the_time_adds_up(tmp_path: Path) -> None:
    found = time_shares(read_run(fake_run(tmp_path)))
    assert found is not None
    assert sum(found.shares.values()) == pytest.approx(1)
    assert (found.steps_per_s, found.env_limit) == pytest.approx((100, 500))


def test_with_workers_the_learners_time_is_shared_out_once(tmp_path: Path) -> None:
    def of(name: str, **seconds: float) -> tuple[dict[str, float], str]:
        timers = {f"{phase}_s": spent for phase, spent in seconds.items()}
        run = read_run(fake_run(tmp_path, name, timers=timers))
        found = time_shares(run)
        assert found is not None
        assert sum(found.shares.values()) == pytest.approx(1)
        return found.shares, verdict_of(grouped([run]))

    # A worker samples for 0.25 s of each second, and for 0.6 s of it nobody but the learner works.
    shares, verdict = of("in turn", env=0.2, policy=0.05, communicate=0.01, learn=0.6, idle=0.75, wait=0.35)
    assert "learning takes 60 % of the time" in verdict
    assert shares == pytest.approx(
        {"env": 0.2, "policy": 0.05, "communicate": 0.01, "learn": 0.6, "idle": 0.1, "other": 0.04}
    )
    # What is sampled while the learner learns costs no time.
    shares, verdict = of("at once", env=0.8, policy=0.1, communicate=0.0, learn=0.9, idle=0.1, wait=0.05)
    assert "learning takes 90 % of the time" in verdict
    assert shares["env"] + shares["policy"] == pytest.approx(0.1)
    # One worker is slow, and the others wait for it, as the learner does.
    shares, verdict = of("slow", env=0.1, policy=0.1, communicate=0.0, learn=0.1, idle=0.8, wait=0.9)
    assert "waiting for workers takes 70 % of the time" in verdict


def test_versions_are_those_of_the_run(tmp_path: Path) -> None:
    folder = fake_run(tmp_path)
    head = {"chain": 1, "shoal": "0.0.3", "versions": {"python": "3.9.99", "numpy": "1.0.1"}, "cpu": "a processor"}
    went_on = {"after": 5, "machine": {"shoal": "0.0.4", "versions": {"python": "3.9.99", "numpy": "1.0.2"}}}
    (folder / "chain.jsonl").write_text(f"{json.dumps(head)}\n{json.dumps(went_on)}\n")
    told = {"".join(name.itertext()): "".join(text.itertext()) for name, text in pairs_of(parsed(page_of(folder)))}
    assert told["shoal"] == "0.0.3, 0.0.4 from iteration 6"
    assert told["numpy"] == "1.0.1, 1.0.2 from iteration 6"
    assert told["Python"] == "3.9.99"
    assert told["processor"] == "a processor"
    assert told["this page"].startswith("shoal ")


def test_versions_of_runs_that_differ_are_all_told(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path, "x", seed) for seed in (0, 1, 2)]
    for folder, version in zip(folders, ("1.0", "2.0", "2.0")):
        (folder / "chain.jsonl").write_text(json.dumps({"shoal": "0.1", "versions": {"numpy": version}}) + "\n")
    told = {"".join(name.itertext()): "".join(text.itertext()) for name, text in pairs_of(parsed(page_of(*folders)))}
    assert told["numpy"] == "1.0 (1 run), 2.0 (2 runs)"


def pairs_of(page: ET.Element) -> list[tuple[ET.Element, ET.Element]]:
    (versions,) = [found for found in page.iter("dl") if found.get("class") is None]
    return list(zip(versions.iter("dt"), versions.iter("dd")))


HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&\x1b[31m"


def hostile_page(tmp_path: Path) -> str:
    folder = fake_run(tmp_path, "x", config={"env_config": {"what": HOSTILE}})
    tree = json.loads((folder / "experiment.json").read_text())
    tree["name"] = HOSTILE
    tree["config"]["env"] = HOSTILE
    (folder / "experiment.json").write_text(json.dumps(tree))
    (folder / "config.yaml").write_text(HOSTILE)
    entry = {"number": 1, "cause": HOSTILE, "kind": HOSTILE, "env_index": HOSTILE}
    (folder / "incidents.jsonl").write_text(json.dumps(entry) + "\n")
    with open(folder / "result.json", "a") as file:
        file.write(json.dumps({"timesteps_total": 5000, "custom_metrics": {f"{HOSTILE}_mean": 1.0}}) + "\n")
    return page_of(folder, cases=[(HOSTILE, [["case", HOSTILE], ["1", HOSTILE]])])


def test_what_others_wrote_is_text(tmp_path: Path) -> None:
    text = hostile_page(tmp_path)
    assert "\x1b" not in text
    page = parsed(text)
    assert not list(page.iter("img"))
    scripts = list(page.iter("script"))
    assert [script.get("type") for script in scripts] == ["application/json", None]
    assert "</script>" in words(page)


def test_the_policy_allows_this_script_alone_and_no_network(tmp_path: Path) -> None:
    text = page_of(fake_run(tmp_path))
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"/>', text)
    assert policy is not None
    script = text[text.index("<script>") + len("<script>") : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in policy[1]
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_long_runs_are_thinned_and_keep_their_peaks(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, iterations=5000, course=lambda at: 1e6 if at == 2500 else float(at % 7))
    groups = grouped([read_run(folder)])
    specs = figures_of([run for group in groups for run in group.runs])
    data = figure_data(groups, specs)
    (series,) = data["figures"][0]["groups"][0]["runs"]
    y = numbers(series["y"])
    assert len(y) <= MOST_POINTS + 2
    assert max(y) == 1e6
    at = numbers(series["at"], np.uint32)
    assert at[y.index(1e6)] == 2499
    run = data["groups"][0]["runs"][0]
    steps = np.interp(at, numbers(run["knots"], np.uint32), numbers(run["axes"]["timesteps_total"], np.float64))
    assert np.allclose(steps, 100 * (np.array(at) + 1))


NO_FIGURE = ("num_target_updates", "num_epochs", "dataset_steps", "dataset_episodes")
"""Counters that only go up, and what never changes."""


def test_what_learners_report_has_a_figure(tmp_path: Path) -> None:
    shown = {spec.metric for spec in KNOWN} | {spec.low for spec in KNOWN} | {spec.high for spec in KNOWN}
    known = {f"learner/{name}" for algorithm in ALGORITHMS.values() for name in algorithm.results}
    assert known - shown == {f"learner/{name}" for name in NO_FIGURE}
    assert {metric for metric in shown if metric.startswith("learner/")} <= known
    assert set(STILL) <= shown
    folder = fake_run(
        tmp_path, run="ES", learner={"return_mean": 5.0, "return_min": 1.0, "return_max": 9.0, "noise_stdev": 0.1}
    )
    specs = figures_of([read_run(folder)])
    assert {"learner/return_mean", "learner/noise_stdev"} & {spec.metric for spec in specs} == {"learner/return_mean"}


def test_each_of_several_policies_has_its_figures(tmp_path: Path) -> None:
    learner = {"wolf/kl": 0.01, "wolf/grad_gnorm": 1.0, "sheep/kl": 0.02, "wolf/own": 3.0}
    returns = {
        f"policy_reward_{kind}": {"wolf": at, "sheep": -at} for kind, at in (("min", 1), ("mean", 2), ("max", 3))
    }
    runs = [read_run(fake_run(tmp_path, "pack", learner=learner, **returns))]
    specs = [spec for spec in figures_of(runs) if spec.section == "policies"]
    titles = ["sheep: Return of an agent", "sheep: KL divergence", "wolf: Return of an agent", "wolf: KL divergence"]
    assert [spec.title for spec in specs] == titles
    data = figure_data(grouped(runs), specs)
    assert data["figures"][0]["note"].startswith("policy_reward_mean/sheep: mean return of an agent of this policy")
    assert data["figures"][3]["note"].startswith("learner/wolf/kl: KL divergence of the new policy")
    (series,) = data["figures"][2]["groups"][0]["runs"]
    assert (set(numbers(series["low"])), set(numbers(series["high"]))) == ({1.0}, {3.0})
    text = words(parsed(page_of(runs[0].path)))
    assert "Policies" in text
    assert "wolf: Return of an agent" in text


def test_a_run_leaves_its_report_and_an_empty_one_none(tmp_path: Path) -> None:
    folder = fake_run(tmp_path)
    leave_report(folder)
    assert parsed((folder / "report.html").read_text()) is not None
    empty = fake_run(tmp_path, "empty", iterations=0)
    leave_report(empty)
    assert not (empty / "report.html").exists()


def test_runs_without_times_tasks_or_episodes(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, iterations=1)
    (folder / "result.json").write_text('{"training_iteration": 1, "timesteps_total": 7}\n')
    text = words(parsed(page_of(folder)))
    assert text.startswith("No episode has ended in 7 steps.")


HANDS = """
<script>setTimeout(function () {
  function all(what) {
    window.dispatchEvent(new Event("beforeprint"));  // draws also what has not come into view yet
    return Array.from(document.querySelectorAll(what));
  }
  function lines() { return all("figure.big path.line").map(function (one) { return one.getAttribute("d"); }); }
  function ticks() { return all("figure.big .tick").map(function (one) { return one.textContent; }).join(" "); }
  function mouse(kind, x) {
    var box = document.querySelector(".box"), at = box.getBoundingClientRect();
    var where = { clientX: at.left + x, clientY: at.top + 60, button: 0, pointerId: 1, bubbles: true };
    box.setPointerCapture = function () {};
    box.dispatchEvent(new PointerEvent(kind, where));
  }
  function set(name, value) {
    var field = document.querySelector("[name=" + name + "]");
    if (field.type === "checkbox") { field.checked = value; } else { field.value = value; }
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  var seen = { all: lines().length }, told = document.querySelector(".told");
  var key = document.querySelector("[data-group]");
  mouse("pointermove", 300); seen.hover = told.textContent;
  key.click(); seen.hidden = lines().length; key.click();
  set("runs", true); seen.runs = lines().length; set("runs", false);
  var jagged = lines()[0]; set("smooth", 9); seen.smoothed = lines()[0] !== jagged; set("smooth", 1);
  seen.same = lines()[0] === jagged;
  var before = ticks(); document.querySelector("[data-do=log]").click(); seen.log = ticks() !== before;
  document.querySelector("[data-do=log]").click();
  mouse("pointerdown", 200); mouse("pointermove", 300); mouse("pointerup", 300); seen.zoomed = ticks() !== before;
  document.querySelector(".box").dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true }));
  seen.whole = ticks() === before;
  set("axis", 1); seen.time = all(".name")[0].textContent; set("axis", 0);
  window.shoal.save = function (text) { seen.csv = text; };
  document.querySelector("[data-do=csv]").click();
  window.shoal.save = function (text) { seen.times = text; };
  function press(words) {
    var all = Array.from(document.querySelectorAll(".times ~ button"));
    all.find(function (one) { return one.textContent === words; }).click();
  }
  press("Save CSV");
  window.shoal.saveSvg = function (drawing) { seen.bars = drawing.querySelectorAll("rect.p2").length; };
  press("Save SVG");
  function finger(kind, id, x) {
    var box = document.querySelector(".box"), at = box.getBoundingClientRect();
    box.setPointerCapture = function () {};
    var where = { clientX: at.left + x, clientY: at.top + 60, pointerId: id };
    box.dispatchEvent(new PointerEvent(kind, Object.assign(where, { pointerType: "touch", bubbles: true })));
  }
  before = ticks();
  finger("pointerdown", 7, 300); finger("pointerdown", 8, 400);
  finger("pointermove", 7, 200); finger("pointermove", 8, 600);
  seen.spread = ticks() !== before;
  finger("pointermove", 7, 395); finger("pointermove", 8, 400); finger("pointermove", 7, 380);
  seen.together = ticks() === before;
  finger("pointerup", 7, 380); finger("pointerup", 8, 400);
  var filter = document.querySelector("input.filter"); filter.value = "gamma"; filter.dispatchEvent(new Event("input"));
  var rows = Array.from(filter.parentNode.querySelectorAll("tbody tr"));
  seen.rows = rows.filter(function (row) { return !row.hidden; }).length;
  document.title = "SEEN" + JSON.stringify(seen) + "END";
}, 500);</script></body>"""
"""What a person does with the figures, and what they see of it."""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_figures_are_drawn_and_used_in_a_browser(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path, "x", seed, lambda at, seed=seed: at % 3 + seed + 1.1) for seed in (0, 1)]
    folders.append(fake_run(tmp_path, "y", config={"lr": 0.5}))
    # The policy would rightly refuse the test's own hands.
    good = re.sub(r"<meta http-equiv[^>]*>", "", page_of(*folders)).replace("</body>", HANDS)
    shown = in_browser(tmp_path, good)
    found = re.search(r"<title>SEEN(.*?)END</title>", shown, re.DOTALL)
    assert found is not None, shown[:300]
    seen = json.loads(html.unescape(found[1]))
    assert (seen["all"], seen["hidden"], seen["runs"]) == (2, 1, 4)
    assert all(seen[name] for name in ("smoothed", "same", "log", "zoomed", "whole", "spread", "together"))
    assert seen["times"].splitlines()[0] == "group,environment,actions,learning,messages,waiting,steps/s"
    assert seen["times"].splitlines()[1] == "lr 0.0007,0.2,0.1,0.7,0,0,100"
    assert seen["bars"] == 3  # of the legend, and of both groups
    assert "lr 0.0007" in seen["hover"]
    assert seen["time"] == "training time (s)"
    assert seen["csv"].startswith("group,run,timesteps_total,episode_reward_mean,low,high\nlr 0.0007,all,100,")
    assert "lr 0.0007,seed 1,100,3.1,," in seen["csv"]
    assert seen["rows"] == 1


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_hostile_page_is_drawn_and_runs_nothing_else(tmp_path: Path) -> None:
    shown = in_browser(tmp_path, hostile_page(tmp_path))
    assert len(re.findall(r'<path d="M[^"]{20,}" class="line"', shown)) >= 3
    assert "<title>owned" not in shown


def in_browser(folder: Path, text: str) -> str:
    """The page as it stands after its scripts."""
    file = folder / "page.html"
    file.write_text(text)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --window-size=1000,3000 --virtual-time-budget=5000 --dump-dom"
    command = ["chromium", *flags.split(), f"--user-data-dir={folder / 'user'}", f"file://{file}"]
    for _ in range(3):  # where the machine is busy, the page may be dumped before its first figure is drawn
        shown = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
        if 'class="line"' in shown:
            break
    return shown


def test_several_runs_by_name(tmp_path: Path) -> None:
    fake_run(tmp_path, "x")
    fake_run(tmp_path, "y")
    runs = read_runs(["x", "y"], str(tmp_path))
    page = parsed(run_page(ReportInput(runs, tmp_path / "r.html", ["name"])))
    assert "Within a group, other settings may differ" in words(page)
