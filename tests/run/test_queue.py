"""The queue of a run, without Ray."""

import random
from typing import NamedTuple

import pytest

from robust201.core.errors import EvaluationError
from robust201.run.queue import MAX_DEATHS_WITHOUT_RESULT, PartQueue


class Part(NamedTuple):
    network: str
    number: int

    @property
    def id(self):
        return self

    @property
    def label(self):
        return f"{self.network}{self.number}"


def make_parts(n_networks, n_parts):
    return [Part(chr(ord("a") + network), number) for network in range(n_networks) for number in range(n_parts)]


def test_worker_keeps_its_network_and_then_helps_with_the_longest_queue():
    queue = PartQueue(make_parts(2, 3), 3)
    assert [queue.take().label, queue.take().label] == ["a0", "b0"]
    assert [queue.take("b").label for _ in range(2)] == ["b1", "b2"]
    assert queue.take("b").label == "a1"
    assert not queue.is_empty
    assert queue.take("a").label == "a2"
    assert queue.is_empty
    assert queue.take("a") is None


def test_only_the_first_part_of_a_dead_worker_is_blamed():
    queue = PartQueue(make_parts(1, 2), 2)
    parts = [queue.take(), queue.take()]
    assert queue.lose(parts, reason="killed", preempted=False) is None
    retried = [queue.take("a"), queue.take("a")]
    assert [part.label for part in retried] == ["a1", "a0"]  # the blamed part comes last
    assert queue.lose([retried[1]], reason="killed", preempted=False) == parts[0]
    assert queue.lose([retried[0]], reason="killed", preempted=False) is None


def test_preemptions_do_not_count_as_deaths():
    queue = PartQueue(make_parts(1, 1), 1)
    for _ in range(100):
        assert queue.lose([queue.take("a")], reason="gone", preempted=True) is None
    assert queue.take("a").label == "a0"


def test_parts_of_a_blocked_network_are_left_out():
    parts = make_parts(2, 3)
    queue = PartQueue([*parts[:2], *parts[3:], parts[2]], 3)  # a0 a1 b0 b1 b2 a2, as in a share
    first, second = queue.take(), queue.take("a")
    queue.block("a")
    queue.lose([second, first], reason="killed", preempted=False)
    queue.succeed([first])
    assert [queue.take("b") for _ in range(4)] == [*parts[3:], None]
    assert queue.is_empty


def test_many_deaths_without_a_result_end_the_run():
    queue = PartQueue(make_parts(1, 50), 3)
    for _ in range(MAX_DEATHS_WITHOUT_RESULT):
        queue.lose([queue.take("a")], reason="killed", preempted=False)
    queue.succeed()
    for _ in range(MAX_DEATHS_WITHOUT_RESULT):
        queue.lose([], reason="killed", preempted=False)
    with pytest.raises(EvaluationError, match="killed"):
        queue.lose([], reason="killed", preempted=False)


@pytest.mark.parametrize("seed", range(5))
def test_every_part_is_computed_or_reported(seed):
    rng, parts = random.Random(seed), make_parts(4, 6)
    deadly_parts = set(rng.sample(parts, 3))
    queue, workers = PartQueue(parts, 3), [("", []) for _ in range(3)]
    done, failed = [], []
    while not queue.is_empty or any(calls for _, calls in workers):
        index = rng.randrange(len(workers))
        network, calls = workers[index]
        while len(calls) < 2 and (part := queue.take(network)) is not None:
            network, calls = part.network, [*calls, part]
        if calls and calls[0] in deadly_parts:
            failure = queue.lose(calls, reason="killed", preempted=False)
            failed += [failure] if failure else []
            calls = []
        elif calls and rng.random() < 0.2:
            queue.lose(calls, reason="gone", preempted=True)
            calls = []
        elif calls:
            done.append(calls.pop(0))
            queue.succeed()
        workers[index] = network, calls
    assert sorted(done) == sorted(set(parts) - deadly_parts)
    assert set(failed) == deadly_parts
