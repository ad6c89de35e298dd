"""The board over HTTP: what is listed, told and refused."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow
import pytest
from fake_runs import fake_result, fake_run
from fake_sweeps import LR, fill, sweep
from pyarrow import parquet

from shoal.reports import watched_runs
from shoal.reports.board import Board, News
from shoal.reports.board_server import BoardServer, is_known_host
from shoal.reports.watched_runs import WatchedRuns
from shoal.runs.lease import LEASE, Lease, LeaseWatch
from shoal.runs.outcomes import Outcome

EVIL = "\"><script>document.title='owned'<_script>"


class Client:
    """Asks a board, as a browser does."""

    def __init__(self, server: BoardServer) -> None:
        self.server = server

    def get(self, path: str, host: str = "127.0.0.1", method: str = "GET", token: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        base = self.server.board.base if token is None else f"/{token}/"
        connection.request(method, base + path, headers={"Host": host})
        answer = connection.getresponse()
        answer.text = answer.read().decode() if "event-stream" not in str(answer.getheader("Content-Type")) else ""
        return answer

    def follow(self, path: str) -> Iterator[tuple[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        connection.request("GET", self.server.board.base + path)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            kind = ""
            for line in iter(answer.readline, b""):
                if line.startswith(b"event: "):
                    kind = line[7:].decode().strip()
                if line.startswith(b"data: "):
                    yield kind, json.loads(line[6:])
        finally:
            answer.close()
            connection.close()


Serve = Callable[[Path], Client]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serves a folder; looks come quickly one after the other."""
    monkeypatch.setattr(watched_runs, "LOOK_S", 0.02)
    monkeypatch.setattr("shoal.reports.board.LOOK_S", 0.02)
    servers = []

    def start(folder: Path) -> Client:
        server = BoardServer(folder, "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return Client(server)

    yield start
    for server, thread in servers:
        server.is_ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


def address(root: Path, run: Path) -> str:
    return quote(str(run.relative_to(root)))


def test_the_list_begins_with_all_runs_and_tells_what_changes(serve: Serve, tmp_path: Path) -> None:
    good = fake_run(tmp_path, "a", 0, iterations=4, config={"lr": 0.01})
    bad = fake_run(tmp_path, "b", 0, outcome=Outcome("failed", "EnvError: it broke"))
    client = serve(tmp_path)
    news = client.follow("events?columns=lr,learner/kl")
    kind, told = next(news)
    assert kind == "runs"
    rows = {row["at"]: row for row in told["rows"]}
    assert set(rows) == {address(tmp_path, good), address(tmp_path, bad)}
    own = rows[address(tmp_path, good)]
    assert own["state"] == "finished"
    assert [cell[1] for cell in own["cells"][2:5]] == [4.0, 4.0, 400]
    assert own["cells"][-2:] == [["0.01", 0.01], ["0.01", 0.01]]
    assert rows[address(tmp_path, bad)]["state"] == "failed"
    assert {"lr", "learner/kl", "best"} <= set(told["names"])
    with open(good / "result.json", "a") as file:
        file.write(json.dumps(fake_result(5, 77.0)) + "\n" + '{"training_iteration": 6, "epis')
    _, told = next(news)
    assert [row["at"] for row in told["rows"]] == [address(tmp_path, good)]
    assert told["rows"][0]["cells"][2] == ["77", 77.0]
    for file in bad.iterdir():
        file.unlink()
    bad.rmdir()
    _, told = next(news)
    assert (told["gone"], told["rows"]) == ([address(tmp_path, bad)], [])


def test_a_condition_chooses_and_a_wrong_one_is_a_sentence(serve: Serve, tmp_path: Path) -> None:
    quick = fake_run(tmp_path, "a", 0, iterations=9, config={"lr": 0.01})
    fake_run(tmp_path, "b", 0, iterations=3)
    client = serve(tmp_path)
    _, told = next(client.follow(f"events?where={quote('best > 5 and lr == 0.01')}"))
    assert (told["meets"], told["problem"]) == ([address(tmp_path, quick)], "")
    _, told = next(client.follow(f"events?where={quote('bst > 5')}"))
    assert told["problem"] == "'bst > 5' has the unknown name bst; did you mean best?"


def test_a_run_is_followed_numbers_log_and_incidents(serve: Serve, tmp_path: Path) -> None:
    run = fake_run(tmp_path, iterations=3, outcome=None, stop={"timesteps_total": 1000})
    (run / "log.txt").write_text("one\ntwo \x1b[31m\nhal")
    (run / "incidents.jsonl").write_text('{"number": 1, "cause": "ValueError: x", "step": 4}\n{"number": 2, "ca')
    client = serve(tmp_path)
    place = f"at/{address(tmp_path, run)}/"
    with Lease(run):
        news = client.follow(place + "events")
        found = dict(next(news) for _ in range(3))
        numbers = dict(found["run"]["numbers"])
        assert found["run"]["state"] == "running"
        assert (numbers["steps"], numbers["stops at timesteps_total"]) == ("300", "1000 (30 %)")
        assert found["log"] == {"lines": ["one", "two \\x1b[31m"], "again": True}
        assert found["incidents"]["rows"] == [["1", "-", "-", "4", "-", "ValueError: x"]]
        with open(run / "log.txt", "a") as file:
            file.write("f\n")
        assert next(news) == ("log", {"lines": ["half"], "again": False})
    kind, told = next(news)
    assert (kind, told["state"]) == ("run", "killed")
    for file in run.iterdir():
        file.unlink()
    run.rmdir()
    assert next(news)[0] == "gone"
    assert client.get(place).status == 404


def test_pages_reports_figures_and_logs(serve: Serve, tmp_path: Path) -> None:
    one = fake_run(tmp_path, "a", 0, config={"lr": 0.01})
    two = fake_run(tmp_path, "b", 0, config={"lr": 0.02})
    (one / "log.txt").write_text("a line")
    client = serve(tmp_path)
    place = f"at/{address(tmp_path, one)}/"
    page = client.get(place).text
    assert "connect-src &#x27;self&#x27;" in page
    assert 'data-figures="figures.json"' in page
    before = sorted(path for path in tmp_path.rglob("*"))
    assert "Do it again" in client.get(place + "report.html").text
    figures = json.loads(client.get(place + "figures.json").text)
    assert figures["figures"][0]["metric"] == "episode_reward_mean"
    log = client.get(place + "log.txt")
    assert (log.text, log.getheader("Content-Type")) == ("a line", "text/plain; charset=utf-8")
    both = "&".join(f"run={quote(address(tmp_path, run), safe='')}" for run in (one, two))
    page = client.get(f"at/compare?{both}").text
    assert "lr 0.01" in page
    assert "lr 0.02" in page
    assert f'href="{address(tmp_path, one)}/"' in page
    assert len(json.loads(client.get(f"at/compare.json?{both}").text)["groups"]) == 2
    assert client.get(f"at/report.html?{both}").status == 200
    assert sorted(path for path in tmp_path.rglob("*")) == before, "a board writes nothing"


def test_a_report_has_what_shoal_report_shows(serve: Serve, tmp_path: Path) -> None:
    root = tmp_path / "root"
    parent = fake_run(root, "parent", 0, config={"lr": 0.01})
    fork = fake_run(root, "fork", 0, config={"lr": 0.02})
    foreign = fake_run(root, "foreign", 0, config={"lr": 0.03})
    outside = fake_run(tmp_path / "elsewhere", "outside", 0, config={"lr": 0.77})
    for run, of in ((fork, parent), (foreign, outside)):
        (run / "fork.json").write_text(json.dumps({"parent": str(of), "iteration": 3, "link": None, "changes": []}))
    (fork / "evaluation_2026-11-17.csv").write_text("case,return\na heavy load,4.5\n")
    steps = {"episode": [0, 0, 1], "step": [0, 1, 0], "action": [0, 1, 1], "reward": [1.0, 1.0, 1.0]}
    parquet.write_table(pyarrow.table(steps), fork / "evaluation_2026-11-17.parquet")
    (tmp_path / "secret.csv").write_text("case,return\nsecret,1\n")
    (foreign / "evaluation_2026-11-18.csv").symlink_to(tmp_path / "secret.csv")
    os.mkfifo(foreign / "evaluation_2026-11-19.csv")
    os.mkfifo(foreign / "evaluation_2026-11-19.json")
    client = serve(root)
    page = client.get(f"at/{address(root, fork)}/report.html").text
    assert "a heavy load" in page
    assert "Trajectories" in page
    assert "lr 0.01" in page, "the run that it continues is beside it"
    several = client.get(f"at/report.html?run={quote(address(root, fork), safe='')}").text
    assert "lr 0.01" in several
    page = client.get(f"at/{address(root, foreign)}/report.html").text
    assert "secret" not in page
    assert "0.77" not in page


def test_a_sweep_has_its_page_and_its_trials(serve: Serve, tmp_path: Path) -> None:
    folder = fill(tmp_path / "s" / "tuned", sweep(LR), 3)
    trial = fake_run(tmp_path / "other", iterations=2)
    for file in (trial / "experiment.json", trial / "result.json"):
        file.replace(folder / "trials" / "00000" / file.name)
    client = serve(tmp_path)
    _, told = next(client.follow("events"))
    assert told["sweeps"] == [{"at": "s/tuned", "name": "s/tuned"}]
    assert told["rows"] == []
    assert 'href="trials/00000/"' in client.get("at/s/tuned/").text
    _, told = next(client.follow("events?sweep=s/tuned"))
    assert [row["at"] for row in told["rows"]] == ["s/tuned/trials/00000"]
    assert client.get("at/s/tuned/trials/00000/").status == 200
    assert client.get("?sweep=s/tuned").status == 200
    assert client.get("?sweep=s/other").status == 404


def test_a_run_or_a_sweep_may_be_the_folder_itself(tmp_path: Path) -> None:
    run = fake_run(tmp_path)
    board = Board(run)
    assert list(board.look().runs) == [""]
    found = board.answer("at/", {})
    assert found is not None
    assert not isinstance(found, News)
    assert found.code == 200
    made = fill(tmp_path / "s" / "tuned", sweep(LR), 2)
    assert list(Board(made).look().sweeps) == [""]


@pytest.mark.parametrize("token", ["", "wrong", "%00", "ü"])
def test_without_the_token_nothing_is_told(serve: Serve, tmp_path: Path, token: str) -> None:
    fake_run(tmp_path, "secret")
    answer = serve(tmp_path).get("", token=quote(token) if token == "ü" else token)
    assert answer.status == 403
    assert "secret" not in answer.text
    assert "token" in answer.text


def test_a_name_that_was_led_here_is_refused(serve: Serve, tmp_path: Path) -> None:
    client = serve(tmp_path)
    assert client.get("", host="evil.example:80").status == 403
    assert client.get("", host="localhost:9999").status == 200  # the other end of an ssh tunnel
    assert [is_known_host(name) for name in ("[::1]:80", "10.0.0.1", "localhost.evil.example", "", "[")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_every_answer_keeps_others_out(serve: Serve, tmp_path: Path) -> None:
    client = serve(tmp_path)
    for path, status in (("", 200), ("at/none/", 404), ("nothing", 404)):
        answer = client.get(path)
        assert answer.status == status
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert answer.getheader("X-Frame-Options") == "DENY"
        assert answer.getheader("Cache-Control") == "no-store"
        assert "default-src &#x27;none&#x27;" in answer.text
    for method in ("POST", "PUT", "DELETE"):
        assert client.get("", method=method).status == 501
    assert client.get("", method="HEAD").text == ""


def test_no_address_leads_out_of_the_folder(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "outside.mp4").write_text("secret")
    (tmp_path / "log.txt").write_text("secret")
    elsewhere = fake_run(tmp_path / "elsewhere")
    root = tmp_path / "root"
    run = fake_run(root, "a")
    (run / "video.mp4").write_text("film")
    (run / "stolen.mp4").symlink_to(tmp_path / "outside.mp4")
    (run / "log.txt").symlink_to(tmp_path / "log.txt")
    (run / "videos").symlink_to(tmp_path)
    (root / "linked").symlink_to(elsewhere.parent)
    (root / "a" / "linked").symlink_to(elsewhere)
    client = serve(root)
    place = f"at/{address(root, run)}"
    assert client.get(f"{place}/video.mp4").text == "film"
    ways = [
        f"{place}/stolen.mp4",
        f"{place}/log.txt",
        f"{place}/videos/outside.mp4",
        f"{place}/../../../outside.mp4",
        f"{place}/%2e%2e/%2e%2e/%2e%2e/outside.mp4",
        f"{place}/..%2f..%2f..%2foutside.mp4",
        "at/../outside.mp4",
        f"at/linked/{elsewhere.name}/",
        "at/a/linked/",
        f"at/{quote(str(elsewhere), safe='')}/",
        f"{place}/experiment.json",
        "at/compare?run=..%2Felsewhere",
    ]
    for way in ways:
        answer = client.get(way)
        assert answer.status == 404, way
        assert "secret" not in answer.text


def test_a_pipe_in_the_place_of_a_file_does_not_hold_it_up(serve: Serve, tmp_path: Path) -> None:
    run = fake_run(tmp_path, "a")
    (run / "result.json").unlink()
    os.mkfifo(run / "result.json")
    os.mkfifo(run / "log.txt")
    fake_run(tmp_path, "b")
    client = serve(tmp_path)
    _, told = next(client.follow("events"))
    assert [row["name"].partition("/")[0] for row in told["rows"]] == ["b"]
    assert client.get(f"at/{address(tmp_path, run)}/log.txt").status == 404


@pytest.mark.parametrize("content", ["", "{", "[]", '{"config": 3}', "[" * 100_000, '{"name": 1, "run": 2}'])
def test_half_written_experiments_are_left_out_and_known(tmp_path: Path, content: str) -> None:
    run = fake_run(tmp_path, "a")
    other = fake_run(tmp_path, "b")
    (run / "experiment.json").write_text(content)
    sight = WatchedRuns(tmp_path).look()
    assert [one.path for one in sight.runs.values()] == [other]
    assert sight.damaged == (run,)


def test_damaged_runs_are_counted_while_they_are_there(serve: Serve, tmp_path: Path) -> None:
    run = fake_run(tmp_path, "a")
    fake_run(tmp_path, "b")
    whole = (run / "experiment.json").read_text()
    (run / "experiment.json").write_text("{")
    news = serve(tmp_path).follow("events")
    _, told = next(news)
    assert told["damaged"].startswith("1 more run cannot be read, since files are damaged or missing; ")
    assert f"a/{run.name}" in told["damaged"]
    (run / "new").write_text(whole)
    (run / "new").rename(run / "experiment.json")
    _, told = next(news)
    assert (len(told["rows"]), told["damaged"]) == (1, "")


def test_hostile_names_are_text(serve: Serve, tmp_path: Path) -> None:
    run = fake_run(tmp_path, EVIL, env=EVIL, config={"env_config": {EVIL: EVIL}})
    odd = os.fsencode(tmp_path) + b"/\xff\n"
    os.mkdir(odd)
    os.rename(os.fsencode(fake_run(tmp_path, "b")), odd + b"/run")
    client = serve(tmp_path)
    _, told = next(client.follow("events"))
    assert len(told["rows"]) == 2
    for row in told["rows"]:
        page = client.get(f"at/{row['at']}/")
        assert page.status == 200
        assert page.text.count("<script") == 2  # its data and its own
        assert row["name"].isprintable()
    page = client.get(f"at/compare?run={quote(address(tmp_path, run), safe='')}")
    assert page.text.count("<script") == 2


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [fake_run(tmp_path, f"n{number}") for number in range(5)]
    monkeypatch.setattr(watched_runs, "LOOK_S", 0.0)
    monkeypatch.setattr(watched_runs, "SHARE", 1e9)
    watched = WatchedRuns(tmp_path)
    first = watched.look().runs
    read: list[Path] = []
    real = watched_runs.described
    monkeypatch.setattr(watched_runs, "described", lambda path, *more: read.append(path) or real(path, *more))
    assert all(run is first[at] for at, run in watched.look().runs.items())
    with open(runs[2] / "result.json", "a") as file:
        file.write(json.dumps(fake_result(11, 400.0)) + "\n")
    found = watched.look().runs[address(tmp_path, runs[2])]
    assert read == [runs[2]]
    assert found.progress.best == 400.0
    (runs[1] / "outcome.json").unlink()
    assert watched.look().runs[address(tmp_path, runs[1])].state == "killed"


def test_a_heartbeat_elsewhere_is_fresh_when_it_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_run(tmp_path)
    owner = {"host": "far", "boot": "x", "namespace": "y", "pid": 1, "started": "2", "nonce": "z"}
    (run / LEASE).write_text(json.dumps(owner))
    os.utime(run / LEASE, (time.time() - 500, time.time() - 500))  # its clock may be late, or it is dead
    leases = LeaseWatch()
    assert not leases.is_written(run)
    before = sorted(os.listdir(run))
    os.utime(run / LEASE, (time.time() - 490, time.time() - 490))
    assert leases.is_written(run)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert not leases.is_written(run)
    assert sorted(os.listdir(run)) == before
