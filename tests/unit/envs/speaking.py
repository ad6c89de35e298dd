"""A program for the tests of programs: speaks the lines protocol without any client, and fails as its argument says."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

how = sys.argv[1] if len(sys.argv) > 1 else "well"
address = os.environ.get("SHOAL_ADDRESS")
if address:
    kind, _, place = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place)
    else:
        host, _, port = place.rpartition(":")
        connection = socket.create_connection((host, int(port)))
    reading = writing = connection.makefile("rw")
else:
    reading, writing = sys.stdin, sys.stdout


def send(text):
    writing.write((text if isinstance(text, str) else json.dumps(text)) + "\n")
    writing.flush()


if how == "early":
    print("no licence", file=sys.stderr)
    sys.exit(3)
if how == "silent":
    time.sleep(1000)
if how == "half a hello":
    writing.write('{"shoal": 1, "obs')
    writing.flush()
    time.sleep(1000)


def note(word):
    with open(sys.argv[2], "a") as notes:
        notes.write(word + "\n")


if how == "stays":  # until a signal ends it

    def end(*_):
        note("ended")
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
hello = {"shoal": 2 if how == "version" else 1, "token": os.environ.get("SHOAL_TOKEN")}
if how != "spaceless":
    hello["observation"] = {"type": "Box", "low": -1, "high": 1, "shape": [2]}
    hello["action"] = {"type": "Discrete", "n": 3}
if how == "token":
    hello["token"] = "guess"
if how == "huge":
    hello["observation"]["shape"] = [100_000, 100_000]
if how == "deaf":
    hello["action"] = {"type": "Box", "shape": [100_000]}
if how == "space":
    hello["action"] = {"type": "Discreet", "n": 3}
send("Reading mesh ..." if how == "banner" else hello)
config = json.loads(reading.readline())["env_config"]
if address:
    print("what stands on stdout is no message here")
step = 0
for line in reading:
    message = json.loads(line)
    if "reset" in message:
        step = 0
        seed = message["reset"]["seed"]
        info = {"seed": seed, "config": config, "cwd": os.getcwd(), "argv": sys.argv[1:]}
        first = json.dumps({"obs": [0.5, 0.0], "info": info})
        send(f"{first}\n{first}" if how == "answers a reset twice" else first)
        if how == "deaf":
            time.sleep(1000)
        if how == "leaves":
            break
    elif "step" in message:
        step += 1
        if step == 3 and how not in ("well", "answers twice"):
            if how == "dies":
                print("solver: floating point exception", file=sys.stderr)
                os.kill(os.getpid(), 8)
            if how == "hangs while it writes":
                print("iterating...", file=sys.stderr)
                writing.write('{"obs": [0.')
                writing.flush()
                time.sleep(1000)
            if how == "exits while it writes":
                writing.write('{"obs": [0.')
                writing.flush()
                sys.exit(0)
            if how == "hangs":
                subprocess.Popen(["sleep", "1000"])
                time.sleep(1000)
            if how == "floods":
                sys.stderr.write("x" * 1_000_000)
            if how == "error after an answer":
                done = json.dumps({"obs": [0, 0], "reward": 1, "terminated": False, "truncated": False})
                send(done + "\n" + json.dumps({"error": "it had diverged"}))
                continue
            answers = {
                "noise": "Iteration 3 residual 1e-5",
                "error": {"error": "diverged at t = 3"},
                "shape": {"obs": [1, 2, 3], "reward": 0},
                "column": {"obs": [[0], [0]], "reward": 0},
                "reward": {"obs": [0, 0], "reward": "much"},
                "flag": {"obs": [0, 0], "reward": 0, "terminated": "no"},
                "nothing": {},
                "misspelt": {"obs": [0, 0], "reward": 0, "terminated": False, "truncatd": True},
                "nan": '{"obs":[nan,-inf],"reward":1,"terminated":false,"truncated":false}',
            }
            send(answers.get(how, {"obs": [0, 0], "reward": 1, "terminated": False, "truncated": False}))
            continue
        for _ in range(1 + (how == "answers twice")):
            send({"obs": [0.1, step / 100], "reward": message["step"], "terminated": step == 50, "truncated": 0})
    else:
        break
if how == "stays":
    note("told")
    while True:
        signal.pause()
