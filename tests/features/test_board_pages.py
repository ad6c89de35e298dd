"""The board in a real browser: every view, in the light and in the dark, on a desk and on a phone."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser as PageBrowser
from fake_runs import fake_result, fake_run
from fake_sweeps import LR, fill, sweep

from shoal.reports.board_server import BoardServer
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: apt-get install chromium"),
]

EVIL = '"><img src=x onerror="document.title=\'owned\'">'
LONG = "a-name-without-any-space-" * 7
ROWS = "document.querySelectorAll('#rows tr').length"
SIZES = pytest.mark.parametrize(("width", "dark"), [(1100, False), (390, True)], ids=["desk", "phone in the dark"])


class Browser(PageBrowser):
    """A browser that goes to addresses, clicks and types."""

    def look_like(self, width: int, height: int, dark: bool) -> None:
        """Be a window of this size, in the light or in the dark."""
        self.resize(width, height)
        self.width = width
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, address: str) -> None:
        """Go to a page, and wait until it is there."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait(self, script: str) -> None:
        """Wait until a line of JavaScript is true; one that fails is not true yet: a page may be between two."""
        end = time.monotonic() + 60
        while not self.value(f"(() => {{ try {{ return Boolean({script}); }} catch (error) {{ return false; }} }})()"):
            assert time.monotonic() < end, f"{script} never came true in:\n{self.value('document.body.innerText')}"
            time.sleep(0.05)

    def check_width(self) -> None:
        """Nothing is wider than the window: a phone would make its window wider, so that its own words say nothing."""
        reaches = self.value("document.documentElement.scrollWidth")
        assert reaches <= self.width, f"{self.value('location.pathname')} is {reaches} wide"

    def click(self, selector: str) -> None:
        """Click the first element that a selector finds."""
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, words: str) -> None:
        """Put words into a field, as typing does."""
        self.value(
            f"(f => {{ f.value = {json.dumps(words)}; f.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        assert isinstance(found, Browser)
        yield found


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = BoardServer(tmp_path, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.url
    server.is_ending.set()
    server.shutdown()
    server.server_close()
    thread.join()


@SIZES
def test_every_view_is_reached_by_clicking(browser: Browser, url: str, tmp_path: Path, width: int, dark: bool) -> None:
    browser.look_like(width, 850, dark)
    browser.events.clear()
    for seed in range(2):
        fake_run(tmp_path, "a", seed, config={"lr": 0.01})
        fake_run(tmp_path, "b", seed, lambda at: 2.0 * at, config={"lr": 0.02})
    fake_run(tmp_path, "c", outcome=Outcome("failed", "EnvError: it broke"))
    fill(tmp_path / "s" / "tuned", sweep(LR), 3)
    live = fake_run(tmp_path, "live", iterations=3, outcome=None)
    (live / "log.txt").write_text("the first line\n")
    with Lease(live):
        browser.go(url)
        browser.wait(f"{ROWS} === 6 && document.querySelector('#told').textContent.includes('1 running')")
        ink = browser.value("getComputedStyle(document.body).backgroundColor")
        assert ink == ("rgb(18, 23, 29)" if dark else "rgb(255, 255, 255)")
        browser.check_width()
        # Filters: words, a state, a condition that is right and one that is not.
        browser.type("[name=text]", "failed")
        browser.wait(f"{ROWS} === 1")
        browser.type("[name=text]", "")
        browser.value("document.querySelector('[name=state]').value = 'running'")
        browser.type("[name=state]", "running")
        browser.wait(f"{ROWS} === 1")
        browser.type("[name=state]", "")
        browser.type("[name=where]", "best > 15 and lr == 0.02")
        browser.wait(f"{ROWS} === 2")
        browser.type("[name=where]", "bst > 15")
        browser.wait("document.querySelector('#told').textContent.includes('did you mean best?')")
        browser.type("[name=where]", "")
        browser.type("[name=columns]", "lr")
        browser.wait("[...document.querySelectorAll('#heads th')].some(head => head.textContent === 'lr')")
        browser.wait(f"{ROWS} === 6")
        browser.value("[...document.querySelectorAll('#heads button')].find(one => one.textContent === 'lr').click()")
        browser.wait("document.querySelector('#rows tr').textContent.includes('0.02')")
        assert "sort=lr" in browser.value("location.search")
        # Several beside each other.
        pick = "['a/', 'b/'].some(name => row.textContent.includes(name))"
        browser.value(
            f"document.querySelectorAll('#rows tr').forEach(row => {pick} && row.querySelector('input').click())"
        )
        browser.wait("document.querySelector('#compare').textContent === 'Compare 4 runs'")
        browser.click("#compare")
        browser.wait("location.href.includes('at/compare') && document.querySelectorAll('.box svg .line').length >= 2")
        assert "lr 0.01 (2)" in browser.value("document.body.innerText")
        browser.check_width()
        # One run, live.
        browser.value("history.back()")
        browser.wait(f"document.querySelector('#rows') && {ROWS} === 6")
        browser.click("#rows a[href*='/live/']")
        browser.wait(
            "document.querySelector('#log') && document.querySelector('#log').textContent.includes('first line')"
        )
        browser.wait("document.querySelector('#standing').textContent === 'It is training.'")
        browser.wait("document.querySelector('.box svg')")
        before = browser.value("document.querySelector('.box svg .line').getAttribute('d')")
        (live / "incidents.jsonl").write_text(json.dumps({"number": 1, "cause": f"ValueError: {EVIL}"}) + "\n")
        with open(live / "result.json", "a") as file:
            file.write(json.dumps(fake_result(4, 99.0)) + "\n")
        with open(live / "log.txt", "a") as file:
            file.write("the second line\n")
        browser.wait("document.querySelector('#numbers').textContent.includes('99')")
        browser.wait("document.querySelector('#log').textContent.includes('second line')")
        browser.wait("document.querySelector('#incidents').textContent.includes('ValueError')")
        browser.wait(f"document.querySelector('.box svg .line').getAttribute('d') !== {json.dumps(before)}")
        browser.check_width()
    browser.wait("document.querySelector('#standing').textContent.startsWith('Nobody trains it')")
    browser.click("nav a[href='report.html']")
    browser.wait("location.href.endsWith('report.html') && document.querySelector('.verdict')")
    browser.check_width()
    # A sweep.
    browser.go(url)
    browser.wait("document.querySelector('#sweeps a')")
    browser.click("#sweeps a")
    browser.wait("document.body.textContent.includes('Learning curves')")
    browser.check_width()
    assert browser.problems() == []


@SIZES
def test_hostile_names_run_nothing(browser: Browser, url: str, tmp_path: Path, width: int, dark: bool) -> None:
    browser.look_like(width, 850, dark)
    browser.events.clear()
    run = fake_run(tmp_path, "x" + EVIL.replace("/", "_"), env=EVIL, config={"env_config": {EVIL: EVIL, LONG: LONG}})
    (run / "log.txt").write_text(f"{EVIL}\n{LONG}\n")
    (run / "incidents.jsonl").write_text(json.dumps({"number": 1, "cause": f"{EVIL}{LONG}"}) + "\n")
    other = fake_run(tmp_path, "<b>&amp;'\"`${1}" + LONG, config={"lr": 0.5})
    (other / "outcome.json").write_text(json.dumps({"kind": "failed", "sentence": EVIL}))
    browser.go(url)
    browser.wait(f"{ROWS} === 2")
    assert EVIL in browser.value("document.querySelector('#rows').textContent")
    browser.check_width()
    links = browser.value("[...document.querySelectorAll('#rows a')].map(link => link.href)")
    browser.value("document.querySelectorAll('#rows input').forEach(box => box.click())")
    browser.click("#compare")
    browser.wait("location.href.includes('compare') && document.querySelector('.box svg')")
    assert browser.value("document.title") == "Compare: board"
    browser.check_width()
    for link in links:
        browser.go(link)
        browser.wait(
            "document.querySelector('#standing') && document.querySelector('#standing').textContent.length > 3"
        )
        browser.wait("document.querySelector('.box svg')")
        browser.check_width()
        browser.go(f"{link}report.html")
        browser.wait("document.querySelector('.verdict') && document.querySelector('.box svg')")
        browser.check_width()
        assert browser.value("document.title") != "owned"
        assert browser.value("document.images.length") == 0
    assert browser.problems() == []


@SIZES
def test_a_thousand_runs_are_listed_and_sorted(
    browser: Browser, url: str, tmp_path: Path, width: int, dark: bool
) -> None:
    first = fake_run(tmp_path, "many", 0, iterations=2)
    content = {name: (first / name).read_bytes() for name in ("experiment.json", "result.json", "outcome.json")}
    for number in range(1, 1000):
        folder = tmp_path / f"e{number % 40}" / f"PPO_CartPole-v1_{number:05x}"
        folder.mkdir(parents=True)
        for name, text in content.items():
            (folder / name).write_bytes(text.replace(b"200", str(1000 + number).encode()))
    fake_run(tmp_path, LONG, 1, iterations=2)
    browser.look_like(width, 850, dark)
    browser.go(url)
    browser.wait(f"{ROWS} === 1001")
    browser.check_width()
    browser.value("[...document.querySelectorAll('#heads button')].find(one => one.textContent === 'steps').click()")
    browser.wait("document.querySelector('#rows tr').textContent.includes('1,999')")
    browser.type("[name=text]", "e7/")
    browser.wait(f"{ROWS} === 25")
    browser.value("document.querySelectorAll('#rows input').forEach(box => box.click())")
    browser.click("#compare")
    browser.wait("location.href.includes('compare') && document.querySelector('.box svg')")
    browser.check_width()
