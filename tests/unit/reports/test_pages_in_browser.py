"""What a person sees and does on the pages of sweeps and runs, in Chromium, with their content security policy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from fake_runs import fake_run
from fake_sweeps import LR, NET, fill, sweep
from gymnasium import spaces

from shoal.envs.recording import Trajectory
from shoal.envs.video import Video
from shoal.reports.answer_files import write_answer
from shoal.reports.reported_runs import read_run
from shoal.reports.run_report import ReportFiles, write_report
from shoal.runs.trajectories import write_trajectories

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")

EVIL = "</script><img src=x onerror='document.title=1'>"
HOVER = """(function () {
  var line = document.querySelector("figure[data-figure] g[data-t] .touch");
  line.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  return Array.from(document.querySelectorAll(".on")).length;
})()"""
CSV = """new Promise(function (done) {
  window.shoal.save = function (text) { done(text); };
  document.querySelector("figure[data-figure='%d'] [data-do=csv]").click();
})"""


CHART_CSV = """new Promise(function (done) {
  window.shoal.save = function (text) { done(text); };
  var buttons = Array.from(document.querySelectorAll(".chart ~ button"));
  buttons.find(function (one) { return one.textContent === "Save CSV"; }).click();
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def test_the_curves_of_a_sweep(tmp_path: Path, browser: Browser) -> None:
    folder = fill(tmp_path / "sweep", sweep(LR, NET, seeds=2), 6, early=True)
    analysis = write_answer(folder)
    browser.open(folder / "index.html")
    lines = "document.querySelectorAll('figure[data-figure] g[data-t] .line')"
    assert browser.until(f"{lines}.length") == len({record.group for record in analysis.records})
    assert browser.value("document.querySelectorAll('figure[data-figure] .area').length") == 5
    assert browser.value("document.querySelectorAll('figure[data-figure] .end').length") > 0
    assert browser.value(HOVER) >= 3  # in the curves, in the parallel coordinates, and in the tables
    text = browser.value(CSV % 0)
    assert text.splitlines()[0] == "group,run,timesteps_total,episode_reward_mean,low,high"
    rows = browser.value(CHART_CSV).splitlines()
    settings = ["config.lr", "config.model.fcnet_hiddens"]
    assert sorted(rows[0].split(",")) == sorted(["trials", *settings, "episode_reward_mean"])
    assert len(rows) == 1 + len({record.group for record in analysis.records})
    assert browser.problems() == []


def test_trajectories_and_a_video_of_a_run(tmp_path: Path, browser: Browser) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("av")
    folder = fake_run(tmp_path)
    walk = [np.array([step, -step], np.float32) for step in range(21)]
    kept = [Trajectory(0, walk, [0] * 20, [1.0] * 20, True), Trajectory(1, walk[:11], [1] * 10, [1.0] * 10, True)]
    space = spaces.Box(-99, 99, (2,))
    write_trajectories(folder / "evaluation_x.parquet", kept, space, spaces.Discrete(2), ["calm", EVIL])
    film = Video(folder / "replay.mp4", 10, (32, 32, 3))
    for shade in range(20):
        film.add(np.full((32, 32, 3), 10 * shade, np.uint8))
    film.finish()
    write_report([read_run(folder)], folder / "report.html", (), ReportFiles())
    browser.open(folder / "report.html")
    titles = browser.value("Array.from(document.querySelectorAll('.small figure h3 span')).map(s => s.textContent)")
    assert titles == ["obs[0]", "obs[1]", "action", "reward"]
    first = browser.value("Number(document.querySelector('.small figure').dataset.figure)")
    browser.value(f"document.querySelector(\"figure[data-figure='{first}']\").scrollIntoView()")
    assert browser.until("document.querySelectorAll('.small figure g[data-t] .line').length >= 4")
    text = browser.value(CSV % first)
    assert text.splitlines()[:2] == ["group,run,step,obs[0],low,high", "case calm,,0,0,,"]
    ticks = "Array.from(document.querySelectorAll(\"figure[data-figure='%d'] .tick\")).map(t => t.textContent).join()"
    before = [browser.value(ticks % place) for place in (0, first)]
    zoomed = f"document.querySelector(\"figure[data-figure='{first}'] .box\")"
    browser.value(f"{zoomed}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+'}}))")
    after = [browser.value(ticks % place) for place in (0, first)]
    assert after[0] == before[0]  # runs have another axis than episodes
    assert after[1] != before[1]
    loaded = "new Promise(r => { var v = document.querySelector('video'); v.readyState ? r(v.duration) : v.onloadedmetadata = () => r(v.duration); v.onerror = () => r(-1); })"  # noqa: E501
    assert browser.value(loaded) == pytest.approx(2.0, abs=0.2)
    assert browser.value("document.title") == "PPO CartPole-v1: report"
    assert browser.problems() == []


TICKS = "Array.from(document.querySelectorAll('figure.big .tick')).map(t => t.textContent).join()"
TOUCH = """(function () {
  var at = document.querySelector("figure.big .box").getBoundingClientRect();
  return {x: at.left, y: at.top + at.height / 2, wide: at.width};
})()"""


def test_two_fingers_zoom_on_a_phone(tmp_path: Path, browser: Browser) -> None:
    write_report([read_run(fake_run(tmp_path, iterations=60))], tmp_path / "report.html", (), ReportFiles())
    browser.resize(390, 900)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    browser.open(tmp_path / "report.html")
    assert browser.until("document.querySelectorAll('figure.big .tick').length > 4")
    browser.value("document.querySelector('figure.big').scrollIntoView({block: 'center'})")
    box, before = browser.value(TOUCH), browser.value(TICKS)

    def touch(kind: str, *places: float) -> None:
        points = [{"x": box["x"] + at, "y": box["y"], "id": number} for number, at in enumerate(places)]
        browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 180)
    touch("touchStart", 180, 220)
    for step in range(1, 6):
        touch("touchMove", 180 - 15 * step, 220 + 15 * step)
    assert browser.until(f"{TICKS} !== {before!r}")
    assert browser.value("!document.querySelector('[data-do=reset]').disabled")
    for step in range(5, -5, -1):
        touch("touchMove", 180 - 15 * step, max(220 + 15 * step, 265 - 15 * step))
    touch("touchEnd")
    browser.value("document.querySelector('[data-do=reset]').click()")
    assert browser.until(f"{TICKS} === {before!r}")
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.resize(1200, 900)
    assert browser.problems() == []


CONTRAST = """(function () {
  var paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  function light(colour) {
    paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    var rgb = Array.from(paint.getImageData(0, 0, 1, 1).data).slice(0, 3).map(function (one) {
      var part = one / 255;
      return part <= 0.04045 ? part / 12.92 : Math.pow((part + 0.055) / 1.055, 2.4);
    });
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
  }
  var root = getComputedStyle(document.documentElement), found = {};
  ["ink", "soft", "link", "best", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"].forEach(function (name) {
    ["back", "card"].forEach(function (behind) {
      var one = light(root.getPropertyValue("--" + name)), other = light(root.getPropertyValue("--" + behind));
      found[name + " on " + behind] = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    });
  });
  return found;
})()"""
"""How much lighter or darker each colour is than what is behind it, by the formula of the WCAG."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(tmp_path: Path, browser: Browser, scheme: str) -> None:
    write_report([read_run(fake_run(tmp_path))], tmp_path / "report.html", (), ReportFiles())
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(tmp_path / "report.html")
    found = browser.value(CONTRAST)
    words = {name: ratio for name, ratio in found.items() if not name.startswith("c")}
    assert {name: ratio for name, ratio in words.items() if ratio < 4.5} == {}  # level AA of the WCAG, for text
    assert {name: ratio for name, ratio in found.items() if ratio < 3} == {}  # and for what is drawn
    browser.call("Emulation.setEmulatedMedia", features=[])


CUT_TICKS = """Array.from(document.querySelectorAll("figure[data-figure] .box svg")).flatMap(function (svg) {
  var room = svg.getBoundingClientRect();
  return Array.from(svg.querySelectorAll(".tick")).filter(function (tick) {
    var at = tick.getBoundingClientRect();
    return at.right > room.right + 0.5 || at.left < room.left - 0.5;
  }).map(function (tick) { return tick.textContent; });
})"""


@pytest.mark.parametrize("width", [1200, 390])
def test_no_number_and_no_sentence_is_cut_off(tmp_path: Path, browser: Browser, width: int) -> None:
    folders = [fake_run(tmp_path, "x", iterations=60, config={"lr": lr}) for lr in (1e-3, 1e-4)]
    write_report([read_run(folder) for folder in folders], tmp_path / "report.html", (), ReportFiles())
    browser.resize(width, 900)
    browser.open(tmp_path / "report.html")
    assert browser.until("document.querySelectorAll('figure[data-figure] .tick').length > 8")
    assert browser.value(CUT_TICKS) == []
    words = "(e => e.parentElement.scrollWidth <= e.parentElement.clientWidth)(document.querySelector('.bars'))"
    assert browser.value(words), "where the time went is read without scrolling"
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    browser.resize(1200, 900)


def test_a_report_on_paper_is_light_and_says_which_line_is_which(tmp_path: Path, browser: Browser) -> None:
    folders = [fake_run(tmp_path, "x", iterations=5, config={"lr": lr}) for lr in (1e-3, 1e-4)]
    write_report([read_run(folder) for folder in folders], tmp_path / "report.html", (), ReportFiles())
    browser.open(tmp_path / "report.html")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    shown = (
        "Array.from(document.querySelectorAll('#controls > *')).filter(e => e.checkVisibility()).map(e => e.innerText)"
    )
    (keys,) = browser.value(shown)
    assert "lr 0.001" in keys
    assert "lr 0.0001" in keys
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
