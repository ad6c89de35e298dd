"""Another user of the node against a Ray that shoal has started: nothing answers, nothing can be read."""

from __future__ import annotations

import os
import socket
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import stranger

pytest.importorskip("ray")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_nothing_that_another_user_tries_succeeds() -> None:
    with socket.socket() as fake, tempfile.TemporaryDirectory(dir="/tmp", prefix="s-") as folder:
        os.chmod(folder, 0o755)
        fake.bind(("127.0.0.1", 0))
        fake.listen()
        fake.setblocking(False)
        with stranger.victim(Path(folder), f"127.0.0.1:{fake.getsockname()[1]}") as found:
            assert len(found["ports"]) >= 4
            answers = stranger.tries(found)
            token = Path(found["folder"], "token").read_text()
            with_token = stranger.tries(found, uid=0, token=token)
        with pytest.raises(BlockingIOError):
            fake.accept()  # nobody has followed the planted address
    assert stranger.successes(answers) == []
    counted = Counter(answers["grpc"].values())
    assert counted[16] >= len(stranger.CALLS)  # UNAUTHENTICATED, and not for want of a question
    assert set(answers["files"].values()) == {"PermissionError"}
    # The same questions are answered to who has the token, so they are questions.
    assert Counter(with_token["grpc"].values())[0] >= 2
    assert set(with_token["files"].values()) == {""}
