"""A Ray instance shared by the tests of a process, since starting one takes longer than the tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Address of a Ray instance on this machine with two CPUs."""
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
