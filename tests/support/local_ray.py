"""A Ray instance that the tests of a process share, because starting one takes longer than the tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Start a Ray instance with two CPUs on this machine, and yield its address."""
    import ray

    from robust201.runtime.executors.ray import disable_unused_ray_services

    disable_unused_ray_services()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=128 << 20
        )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
