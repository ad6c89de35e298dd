"""What breaks Ray on clusters is mended, and said."""

from __future__ import annotations

from shoal.cluster.os_variables import variables_for_ray

PLAIN = {"PATH": "/bin", "LANG": "en_GB.UTF-8", "OMP_NUM_THREADS": "4", "HOME": "/home/me"}


def test_a_plain_environment_stays_as_it_is() -> None:
    env, changes = variables_for_ray(PLAIN, ["n1"])
    assert changes == []
    assert {name: env[name] for name in PLAIN} == PLAIN


def test_everything_that_is_changed_is_told() -> None:
    odd = {
        "LD_PRELOAD": "/opt/darshan.so",
        "http_proxy": "http://proxy:3128",
        "no_proxy": "example.org, 10.0.0.9",
        "ROCR_VISIBLE_DEVICES": "0,1",
        "LC_ALL": "C",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_TOKEN": "another cluster's",
    }
    env, changes = variables_for_ray(odd, ["n1", "10.77.0.11"])
    assert "LD_PRELOAD" not in env
    assert "RAY_ADDRESS" not in env
    assert "RAY_AUTH_TOKEN" not in env
    assert env["no_proxy"] == "example.org,10.0.0.9,localhost,127.0.0.1,n1,10.77.0.11"
    assert env["NO_PROXY"] == "localhost,127.0.0.1,n1,10.77.0.11"
    assert env["HIP_VISIBLE_DEVICES"] == "0,1"
    assert "ROCR_VISIBLE_DEVICES" not in env
    assert (env["LC_ALL"], env["KMP_AFFINITY"], env["OMP_NUM_THREADS"]) == ("C.UTF-8", "disabled", "1")
    told = " | ".join(changes)
    for word in ("LD_PRELOAD", "proxies", "ROCR", "LC_ALL", "KMP_AFFINITY", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "thread"):
        assert word in told
    assert "another cluster's" not in told
