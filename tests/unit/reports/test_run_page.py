"""The page of runs: what it says, that it is safe to open, and that it opens in a browser."""

from __future__ import annotations

import base64
import hashlib
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

from shoal.reports.figure_data import MOST_POINTS, figure_data, figures_of
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


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_figures_are_drawn_in_a_browser(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.html", tmp_path / "bad.html"
    folders = [fake_run(tmp_path, "x", seed) for seed in (0, 1)] + [fake_run(tmp_path, "y", config={"lr": 0.5})]
    good.write_text(page_of(*folders))
    bad.write_text(hostile_page(tmp_path / "bad"))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    for file in (good, bad):
        command = [
            "chromium",
            *flags.split(),
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1000,3000",
        ]
        command += [
            f"--user-data-dir={tmp_path / file.stem}-user",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"file://{file}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        drawn = re.findall(r'<path d="M[^"]{20,}" class="line"', done.stdout)
        assert len(drawn) >= (16 if file is good else 3), done.stderr[-500:]
        assert "<title>owned" not in done.stdout


def test_several_runs_by_name(tmp_path: Path) -> None:
    fake_run(tmp_path, "x")
    fake_run(tmp_path, "y")
    runs = read_runs(["x", "y"], str(tmp_path))
    page = parsed(run_page(ReportInput(runs, tmp_path / "r.html", ["name"])))
    assert "Within a group, other settings may differ" in words(page)
