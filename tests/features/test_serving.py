"""Policies behind a server: the actions are the policy's own, whatever else is sent, and newer ones take over."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")
from serving import TOKEN, Client, bad_requests, raw, serving, source

from shoal.serving import connections
from shoal.serving.service import ServingLimits

SMALL = {"train_batch_size": 32, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 32}
MLP = {"fcnet_hiddens": [8]}
ACTIONS = "/v1/policies/policy/actions"


class Doors(gymnasium.Env):
    """Some doors are locked."""

    observation_space = spaces.Dict(
        action_mask=spaces.Box(0, 1, (4,), np.int8),
        seen=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1)]),
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, True, {}

    def _obs(self) -> Any:
        return {"action_mask": np.array([1, 0, 1, 1], np.int8), "seen": (np.zeros(2, np.float32), 1)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    with shoal.PPO(env="CartPole-v1", config={**SMALL, "model": MLP}) as trainer:
        trainer.save(folder)
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "run"
    with shoal.PPO(env=Doors, config={**SMALL, "model": MLP}) as trainer:
        trainer.save(folder)
    return folder


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    memory = {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    folder = tmp_path_factory.mktemp("remembering") / "run"
    with shoal.PPO(env="Pendulum-v1", config={**SMALL, "model": {**MLP, **memory}}) as trainer:
        trainer.save(folder)
    return folder


@pytest.fixture(scope="module")
def served(plain: Path, masked: Path) -> Iterator[Any]:
    with serving(
        [source(plain), source(masked, "doors")], ServingLimits(max_batch=8, max_body_bytes=20_000)
    ) as service:
        yield service


def test_one_action_and_several_are_those_of_the_policy(served: Any, plain: Path) -> None:
    client, policy = Client(served.port), shoal.Policy.load(plain)
    observations = np.random.default_rng(1).normal(0, 2, (8, 4)).astype(np.float32)
    expected = policy.compute_actions(observations, explore=False)
    answer = client.act(observations=observations.tolist())
    assert answer == {"actions": expected, "training_iteration": 0}
    singles = [client.act(observation=row)["action"] for row in observations.tolist()]
    assert singles == expected
    sampled = client.act(observations=[[0.0, 0.0, 0.0, 0.0]] * 8, explore=True)["actions"]
    drawn = {action for _ in range(8) for action in client.act(observation=[0] * 4, explore=True).values()}
    assert {*sampled} | drawn >= {0, 1}, "chance chooses both"


def test_a_mask_rules_actions_out(served: Any) -> None:
    client = Client(served.port)
    obs = {"action_mask": [0, 1, 0, True], "seen": [[0.1, 0.2], 3]}
    for explore in (False, True):
        actions = client.act("doors", observations=[obs] * 8, explore=explore)["actions"]
        assert {*actions} <= {1, 3}
    obs["action_mask"] = [0, 0, 0, False]
    status, answer = client.ask("POST", "/v1/policies/doors/actions", {"observation": obs})
    assert (status, answer) == (422, {"error": "observation.action_mask allows no action: all its flags are 0"})


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("POST", ACTIONS, b"{", 400, "the body is not JSON"),
    ("POST", ACTIONS, b"", 400, "the body is not JSON"),
    ("POST", ACTIONS, b"\xff\xfe", 400, "the body is not JSON"),
    ("POST", ACTIONS, b"[" * 15_000, 400, "nested too deep"),
    ("POST", ACTIONS, b'{"observation": [0, 0, 0, NaN]}', 400, "NaN is no number"),
    ("POST", ACTIONS, b'{"observation": [0, 0, 0, -Infinity]}', 400, "-Infinity is no number"),
    ("POST", ACTIONS, b'{"observation": [0, 0, 0, 1e999]}', 422, "must be finite and from -1e+18 to 1e+18"),
    ("POST", ACTIONS, b'{"observation": [0, 0, 0, ' + b"9" * 4000 + b"]}", 422, "must be finite"),
    (
        "POST",
        ACTIONS,
        b'{"observation": [0, 0, 0, ' + b"9" * 9000 + b"]}",
        400,
        "a whole number in it has too many digits",
    ),
    (
        "POST",
        ACTIONS,
        {"observation": [0, 0, 0]},
        422,
        "observation must be lists of shape [4] with numbers (got a list",
    ),
    ("POST", ACTIONS, {"observation": [0, 0, 0, [0]]}, 422, "observation[3] must be a number (got a list of 1)"),
    ("POST", ACTIONS, {"observation": [0, 0, 0, True]}, 422, "observation[3] must be a number (got true)"),
    ("POST", ACTIONS, {"observation": [0, 0, 0, "1"]}, 422, "observation[3] must be a number (got '1')"),
    ("POST", ACTIONS, {"observation": None}, 422, "(got null)"),
    ("POST", ACTIONS, {"observations": [[0] * 4, [0] * 5]}, 422, "observations[1] must be lists"),
    ("POST", ACTIONS, {"observation": [0, 0, None, "a"]}, 422, "observation[2] must be a number (got null)"),
    (
        "POST",
        ACTIONS,
        {"observations": [[0] * 4, [0, True, 0, 0]]},
        422,
        "observations[1][1] must be a number (got true)",
    ),
    ("POST", ACTIONS, {"observations": []}, 422, "must be a list of 1 to 8"),
    ("POST", ACTIONS, {"observations": [[0] * 4] * 9}, 422, "must be a list of 1 to 8"),
    ("POST", ACTIONS, {"observations": {}}, 422, "must be a list of 1 to 8"),
    (
        "POST",
        ACTIONS,
        b'{"observation": [0, 0, 0, 0], "observation": [9, 9, 9, 9]}',
        400,
        "an object in it has the key 'observation' more than once",
    ),
    ("POST", ACTIONS, [], 422, "the body must be an object"),
    ("POST", ACTIONS, {}, 422, "give either observation"),
    ("POST", ACTIONS, {"observation": [0] * 4, "observations": [[0] * 4]}, 422, "give either observation"),
    ("POST", ACTIONS, {"obs": [0] * 4}, 422, "'obs' is none of observation, observations, explore"),
    ("POST", ACTIONS, {"observation": [0] * 4, "explore": 1}, 422, "explore must be true"),
    ("POST", ACTIONS, {"observation": [0] * 4, "session": "x"}, 422, "policy has no memory"),
    ("POST", ACTIONS, b" " * 20_001, 413, "more than 20000 bytes"),
    ("POST", "/v1/policies/doors/actions", {"observation": {"action_mask": [1] * 4}}, 422, "observation lacks 'seen'"),
    (
        "POST",
        "/v1/policies/doors/actions",
        {"observation": {"action_mask": [1] * 4, "seen": [[0, 0], 0]}},
        422,
        "observation.seen[1]: numbers must be whole and from 1 to 3 (got 0.0)",
    ),
    (
        "POST",
        "/v1/policies/doors/actions",
        {"observation": {"action_mask": [1, 1, 1, 2], "seen": [[0, 0], 1]}},
        422,
        "observation.action_mask: flags must be 0 or 1 (got 2.0)",
    ),
    ("POST", "/v1/policies/other/actions", {}, 404, "there are policy, doors"),
    ("POST", "/v1/policies/policy/sessions", None, 404, "policy has no memory"),
    ("GET", "/nowhere", None, 404, "GET /openapi.json lists them"),
    ("GET", ACTIONS, None, 405, "does not take that method; it takes POST"),
    ("DELETE", "/healthz", None, 405, "does not take that method"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "words"), REFUSED)
def test_what_is_wrong_is_one_sentence(served: Any, method: str, path: str, body: Any, status: int, words: str) -> None:
    found, answer = Client(served.port).ask(method, path, body)
    assert (found, [*answer]) == (status, ["error"])
    assert words in answer["error"]
    assert "\n" not in answer["error"]


def test_without_the_token_only_the_health_is_told(served: Any) -> None:
    stranger = Client(served.port, token=None)
    assert stranger.ask("GET", "/healthz") == (200, {"status": "ok"})
    for method, path in (("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", ACTIONS)):
        status, answer = stranger.ask(method, path)
        assert (status, [*answer]) == (401, ["error"])
    for given in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer", "Basic YTph", "Bearer \xe9"):
        assert stranger.ask("GET", "/metrics", headers={"Authorization": given})[0] == 401
    for given in (f"bearer {TOKEN}", f"BEARER {TOKEN}"):  # a scheme has no case
        assert stranger.ask("GET", "/metrics", headers={"Authorization": given})[0] == 200
    status, _ = Client(served.port).ask("POST", ACTIONS, b"{}", {"Content-Type": "text/plain"})
    assert status == 415


def test_what_is_no_http_is_answered_too(served: Any) -> None:
    for sent in (b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + bytes(50)):
        head, _, body = raw(served.port, sent).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body) == {"error": "this is not a request of HTTP/1.1"}
    endless = b"GET /healthz HTTP/1.1\r\n" + b"X-A: " + b"a" * 40_000
    assert raw(served.port, endless).startswith(b"HTTP/1.1 431 ")


def test_path_and_headers_have_32_kb_however_they_arrive(served: Any) -> None:
    def asked(path: bytes, headers: bytes) -> bytes:
        return raw(served.port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")

    largest = connections.MOST_HEADER_BYTES
    for length in (largest, 33_000, 70_000, 300_000):
        head, _, body = asked(b"/healthz", b"X-A: " + b"a" * length + b"\r\n").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 "), length
        assert json.loads(body) == {"error": "the path and the headers have more than 32768 bytes"}
    assert asked(b"/healthz", b"X-A: " + b"a" * (largest - 100) + b"\r\n").startswith(b"HTTP/1.1 200 ")
    assert asked(b"/healthz", b"X-A: aaaa\r\n" * 3000).startswith(b"HTTP/1.1 431 ")
    assert asked(b"/" + b"a" * 40_000, b"").startswith(b"HTTP/1.1 431 ")
    assert asked(b"/" + b"a" * 100_000, b"").startswith(b"HTTP/1.1 431 ")
    assert asked(b"/" + b"a" * 30_000, b"").startswith(b"HTTP/1.1 401 ")


def test_headers_are_counted_for_each_request_and_without_bodies(served: Any) -> None:
    body = json.dumps({"observation": [0] * 4}).encode().ljust(15_000)
    head = f"POST {ACTIONS} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    head += f"X-A: {'a' * 15_000}\r\nContent-Length: {len(body)}\r\n"
    requests = (f"{head}\r\n".encode() + body) * 4 + f"{head}Connection: close\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        for begin in range(0, len(requests), 7_000):
            connection.sendall(requests[begin : begin + 7_000])
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200 ") == 5


def test_slow_clients_are_let_go_and_strangers_make_room(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SLOWEST_S", 0.3)
    monkeypatch.setattr("shoal.serving.server._room_for_connections", lambda: 4)
    with serving([source(plain)]) as service:
        known = Client(service.port)
        known.act(observation=[0] * 4)
        begun = f"POST {ACTIONS} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        for sent in (b"", b"GET /hea", f"{begun}Content-Length: 99\r\n\r\n{{".encode()):
            with socket.create_connection(("127.0.0.1", service.port), timeout=60) as slow:
                slow.sendall(sent)
                assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")
        monkeypatch.setattr(connections, "SLOWEST_S", 60.0)
        waiting = [socket.create_connection(("127.0.0.1", service.port), timeout=60) for _ in range(6)]
        assert waiting[0].recv(4096).startswith(b"HTTP/1.1 503 "), "the oldest stranger makes room"
        known.act(observation=[0] * 4)
        for connection in waiting:
            connection.close()


def test_bad_requests_lose_none_of_the_good_ones(served: Any, plain: Path) -> None:
    expected = shoal.Policy.load(plain).compute_single_action([0.1, -0.2, 0.3, 0.4], explore=False)
    before = served.metrics.requests.values.get((("status", "500"),), 0)
    with ThreadPoolExecutor(4) as pool:
        bad = [pool.submit(bad_requests, served.port, 90, seed) for seed in range(3)]
        client = Client(served.port)
        answered = 0
        while not all(each.done() for each in bad) or answered < 100:
            assert client.act(observation=[0.1, -0.2, 0.3, 0.4])["action"] == expected
            answered += 1
        for each in bad:
            each.result()
    assert served.metrics.requests.values.get((("status", "500"),), 0) == before == 0


def test_a_failure_of_the_server_is_told_and_logged(
    plain: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving([source(plain)]) as service:
        client = Client(service.port)
        with monkeypatch.context() as broken:
            broken.setattr("shoal.serving.served_policy.action_json", lambda action: 1 / 0)
            status, answer = client.ask("POST", ACTIONS, {"observation": [0] * 4})
        assert (status, answer) == (500, {"error": "the server failed; its log says why"})
        client.act(observation=[0] * 4)
    assert "ZeroDivisionError" in caplog.text
    assert TOKEN not in caplog.text


def test_a_newer_checkpoint_takes_over_and_no_request_is_lost(tmp_path: Path) -> None:
    with shoal.PPO(env="CartPole-v1", config={**SMALL, "model": MLP}) as trainer:
        trainer.save(tmp_path / "run")
        with serving([source(tmp_path / "run")]) as service:
            client = Client(service.port)
            assert client.ask("POST", "/v1/policies/policy/reload") == (200, {"training_iteration": 0, "is_new": False})
            ended = threading.Event()

            def ask() -> list[int]:
                own, found = Client(service.port), []
                while not ended.is_set() or len(found) < 20:
                    found.append(own.act(observation=[0] * 4)["training_iteration"])
                return found

            with ThreadPoolExecutor(3) as pool:
                asking = [pool.submit(ask) for _ in range(3)]
                try:
                    for iteration in (1, 2):
                        trainer.train()
                        path = Path(trainer.save(tmp_path / "run"))
                        told = client.ask("POST", "/v1/policies/policy/reload")
                        assert told == (200, {"training_iteration": iteration, "is_new": True})
                finally:
                    ended.set()
                for each in asking:
                    seen = each.result()
                    assert seen == sorted(seen)
            # What is damaged is refused, and the one before it goes on to act.
            (path / "state.json").write_text("{}")
            (path / "manifest.json").write_text("{}")
            (path.parent / "checkpoint_000001").rename(tmp_path / "gone")
            (path.parent / "checkpoint_000000").rename(tmp_path / "gone as well")
            status, answer = client.ask("POST", "/v1/policies/policy/reload")
            assert (status, [*answer]) == (409, ["error"])
            assert client.act(observation=[0] * 4)["training_iteration"] == 2


def test_following_takes_a_newer_checkpoint_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.serving.service.FOLLOW_S", 0.05)
    with shoal.PPO(env="CartPole-v1", config={**SMALL, "model": MLP}) as trainer:
        trainer.save(tmp_path / "run")
        with serving([source(tmp_path / "run")], follow=True) as service:
            client = Client(service.port)
            trainer.train()
            trainer.save(tmp_path / "run")
            while client.act(observation=[0] * 4)["training_iteration"] == 0:
                pass
            text = client.ask("GET", "/metrics")[1]["text"]
    assert 'shoal_reloads_total{policy="policy",result="taken"} 1\n' in text
    assert 'shoal_training_iteration{policy="policy"} 1\n' in text


def test_sessions_remember_each_its_own_episode(remembering: Path) -> None:
    policy = shoal.Policy.load(remembering)
    rng = np.random.default_rng(2)
    with serving([source(remembering)], ServingLimits(max_sessions=3)) as service:
        client = Client(service.port)
        base = "/v1/policies/policy"
        names = [client.ask("POST", f"{base}/sessions")[1]["session"] for _ in range(3)]
        assert client.ask("POST", f"{base}/sessions")[0] == 503
        states: list[Any] = [policy.get_initial_state() for _ in names]
        before: list[tuple[Any, float | None]] = [(None, None)] * 3
        for _ in range(4):
            observations = rng.normal(0, 1, (3, 3)).astype(np.float32)
            expected = []
            for at, obs in enumerate(observations):
                action, states[at], _ = policy.compute_single_action(
                    obs, states[at], prev_action=before[at][0], prev_reward=before[at][1], explore=False
                )
                expected.append(action)
            rewards = [reward for _, reward in before]
            # Two in one request, the third alone.
            told = client.act(observations=observations[:2].tolist(), sessions=names[:2], prev_rewards=rewards[:2])
            last = client.act(observation=observations[2].tolist(), session=names[2], prev_reward=rewards[2])
            np.testing.assert_allclose([*told["actions"], last["action"]], expected, atol=1e-5)
            before = [(action, float(reward)) for action, reward in zip(expected, rng.normal(0, 1, 3), strict=True)]
        assert 'shoal_sessions{policy="policy"} 3\n' in client.ask("GET", "/metrics")[1]["text"]
        refused: list[tuple[dict[str, Any], int]] = [
            ({"observation": [0] * 3}, 422),
            ({"observation": [0] * 3, "session": "no such"}, 404),
            ({"observation": [0] * 3, "session": 3}, 422),
            ({"observation": [0] * 3, "sessions": names[:1]}, 422),
            ({"observations": [[0] * 3] * 2, "sessions": names}, 422),
            ({"observations": [[0] * 3] * 2, "sessions": names[:1] * 2}, 422),
            ({"observation": [0] * 3, "session": names[0], "prev_reward": "1"}, 422),
            ({"observations": [[0] * 3], "sessions": names[:1], "prev_rewards": [1, 2]}, 422),
        ]
        for body, status in refused:
            assert client.ask("POST", f"{base}/actions", body)[0] == status
        service.doors["policy"].sessions.find(names[0]).is_busy = True
        assert client.ask("POST", f"{base}/actions", {"observation": [0] * 3, "session": names[0]})[0] == 409
        assert client.ask("DELETE", f"{base}/sessions/{names[1]}")[0] == 204
        assert client.ask("DELETE", f"{base}/sessions/{names[1]}")[0] == 404


def test_a_policy_that_sees_rewards_wants_them_and_says_so(remembering: Path) -> None:
    path = "/v1/policies/policy"
    with serving([source(remembering)], ServingLimits(max_sessions=2)) as service:
        client = Client(service.port)
        facts = client.ask("GET", path)[1]
        assert facts["needs_prev_reward"] is True
        begun = client.act(**facts["example"])
        step = {"observation": [0.1] * 3, "session": begun["session"]}
        for missing in ({}, {"prev_reward": None}):
            status, answer = client.ask("POST", f"{path}/actions", {**step, **missing})
            assert (status, answer["error"].partition(":")[0]) == (422, "prev_reward is missing")
        listed = {"observations": [[0.1] * 3], "sessions": [begun["session"]]}
        for more in ({}, {"prev_rewards": [None]}):
            status, answer = client.ask("POST", f"{path}/actions", {**listed, **more})
            assert (status, answer["error"].partition(":")[0]) == (422, "prev_rewards is missing")
        policy = shoal.Policy.load(remembering)
        example = np.array(facts["example"]["observation"], np.float32)
        first, state, _ = policy.compute_single_action(example, policy.get_initial_state(), explore=False)
        second, _, _ = policy.compute_single_action(
            np.full(3, 0.1, np.float32), state, prev_action=first, prev_reward=2.5, explore=False
        )
        np.testing.assert_allclose(begun["action"], first, atol=1e-5)
        answer = client.act(**step, prev_reward=2.5)
        assert "session" not in answer
        np.testing.assert_allclose(answer["action"], second, atol=1e-5)
        document = client.ask("GET", "/openapi.json")[1]
        schema = document["paths"][f"{path}/actions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert [sorted(form["required"]) for form in schema["oneOf"]] == [
            ["observation", "session"],
            ["observation", "prev_reward", "session"],
            ["observations", "prev_rewards", "sessions"],
        ]
        refused = {**facts["example"], "prev_reward": "much"}
        assert client.ask("POST", f"{path}/actions", refused)[0] == 422
        client.act(**facts["example"])
        status, answer = client.ask("POST", f"{path}/actions", facts["example"])
        assert (status, answer["error"]) == (503, "there are 2 sessions; end one, or come again")


def test_one_of_several_processes_refuses_what_concerns_all(plain: Path) -> None:
    with serving([source(plain)], replicas=3) as service:
        client = Client(service.port)
        status, answer = client.ask("POST", "/v1/policies/policy/reload")
        assert (status, "--follow" in answer["error"]) == (409, True)
        status, answer = client.ask("GET", "/metrics")
        assert (status, "one of 3 processes" in answer["error"]) == (409, True)
        assert client.act(observation=[0.0] * 4)["action"] in (0, 1)


def test_the_document_and_the_metrics_tell_what_is_served(served: Any) -> None:
    client = Client(served.port)
    client.act(observation=[0] * 4)
    document = client.ask("GET", "/openapi.json")[1]
    assert document["openapi"] == "3.1.0"
    assert ACTIONS in document["paths"]
    facts = client.ask("GET", "/v1/policies")[1]["policies"]
    assert [each["name"] for each in facts] == ["policy", "doors"]
    for each in facts:
        client.act(each["name"], **each["example"])
        assert client.ask("GET", f"/v1/policies/{each['name']}")[1] == each
    lines = client.ask("GET", "/metrics")[1]["text"].splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(samples['shoal_actions_total{policy="policy"}']) > 0
    assert samples["shoal_requests_in_flight"] == "1"
    rows = [float(samples[f'shoal_batch_rows_bucket{{policy="policy",le="{le}"}}']) for le in ("1", "8", "+Inf")]
    assert rows == sorted(rows)
    assert rows[-1] == float(samples['shoal_batch_rows_count{policy="policy"}'])
