"""What the tests with processes share."""

import pytest


@pytest.fixture(scope="module")
def ray_session(request):
    """One Ray for the module, which trainers find running, with its NUM_CPUS or four."""
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=getattr(request.module, "NUM_CPUS", 4),
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()
