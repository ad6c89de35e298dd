"""A program for the tests of programs: speaks the lines protocol without any client, and fails as its argument says."""

import json
import os
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
        send({"obs": [0.5, 0.0], "info": {"seed": seed, "config": config, "cwd": os.getcwd(), "argv": sys.argv[1:]}})
        if how == "deaf":
            time.sleep(1000)
        if how == "leaves":
            break
    elif "step" in message:
        step += 1
        if step == 3 and how != "well":
            if how == "dies":
                print("solver: floating point exception", file=sys.stderr)
                os.kill(os.getpid(), 8)
            if how == "hangs":
                subprocess.Popen(["sleep", "1000"])
                time.sleep(1000)
            if how == "floods":
                sys.stderr.write("x" * 1_000_000)
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
        send({"obs": [0.1, step / 100], "reward": message["step"], "terminated": step == 50, "truncated": 0})
    else:
        break
