"""Faults inside processes of robust201: workers that die, run out of memory or are slow, and clocks that jump.

The faults are configured in ``injections.json`` beside the results folder, where workers on all machines find them. A
process creates a file for each fault that it injects. If a fault may occur only once, the existing file prevents a
second occurrence.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

INJECTIONS_FILE = "injections.json"
OCCURRENCES_FOLDER = "occurrences"


class Injections:
    """Faults to inject into this process, as configured in the folder that also contains the results folder.

    The configuration may have these fields:

    - `seconds_per_part`: delay of each part.
    - `slow`: a `key`, whose parts are delayed by `seconds`.
    - `poison`: pairs of architecture and key; evaluating such a pair kills the process.
    - `training_step_seconds`: delay of each training step.
    - `die_at_write_steps`: steps of writing a shard; at each step, one process is killed once.
    - `memory`: maximum number of `images` per batch; larger batches run out of memory.
    - `clock`: offsets in seconds from the real time; each reading of the clock uses the next offset, cyclically.
    """

    def __init__(self, folder: Path) -> None:
        self._occurrences = folder / OCCURRENCES_FOLDER
        path = folder / INJECTIONS_FILE
        self._faults: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def apply(self) -> None:
        if {"seconds_per_part", "slow", "poison"} & self._faults.keys():
            self._wrap_evaluate()
        if "training_step_seconds" in self._faults:
            self._delay_steps()
        if "die_at_write_steps" in self._faults:
            self._die_while_writing()
        if "memory" in self._faults:
            self._run_out_of_memory()
        self.apply_to_driver()

    def apply_to_driver(self) -> None:
        if "clock" in self._faults:
            self._make_clock_jump()

    def _record_occurrence(self, name: str) -> bool:
        """Create the file of an occurrence; return False if it already exists."""
        self._occurrences.mkdir(exist_ok=True)
        try:
            (self._occurrences / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _wrap_evaluate(self) -> None:
        from robust201.runtime import worker
        from robust201.tasks.evaluate import evaluate_part

        slow = self._faults.get("slow", {})

        def evaluate_with_faults(
            context: Any, task: Any, parameters: Any, part: Any, *arguments: Any, **options: Any
        ) -> Iterator[Any]:
            if "seconds_per_part" in self._faults:
                self._record_occurrence(f"worked-{os.getpid()}")
                time.sleep(self._faults["seconds_per_part"])
            if part.unit.key == slow.get("key"):
                self._record_occurrence(f"slow-{part.unit.id}-{os.getpid()}-{time.monotonic_ns()}")
                time.sleep(slow["seconds"])
            if [part.unit.architecture, part.unit.key] in self._faults.get("poison", []):
                self._record_occurrence(f"poison-{part.unit.architecture}-{part.unit.key}-{os.getpid()}")
                os.kill(os.getpid(), signal.SIGKILL)
            yield from evaluate_part(context, task, parameters, part, *arguments, **options)

        mock.patch.object(worker, "evaluate_part", evaluate_with_faults).start()

    def _delay_steps(self) -> None:
        from robust201.training import loop

        make_step = loop._Training._make_step

        def make_step_slowly(training: Any) -> None:
            time.sleep(self._faults["training_step_seconds"])
            make_step(training)

        mock.patch.object(loop._Training, "_make_step", make_step_slowly).start()

    def _die_while_writing(self) -> None:
        from robust201.runtime import worker
        from robust201.shards import ShardStore

        def die(write_step: str) -> None:
            if write_step in self._faults["die_at_write_steps"] and self._record_occurrence(f"died-{write_step}"):
                os.kill(os.getpid(), signal.SIGKILL)

        class DeadlyStore(ShardStore):
            @classmethod
            def open(cls, root: Path, **_options: Any) -> "DeadlyStore":
                return cls(root, on_step=die)

        mock.patch.object(worker, "ShardStore", DeadlyStore).start()

    def _run_out_of_memory(self) -> None:
        import torch

        from robust201.spaces.nasbench201.compiled import InferenceNetwork

        forward = InferenceNetwork._forward

        def forward_with_limited_memory(network: Any, pixels: Any, *arguments: Any) -> Any:
            if len(pixels) > self._faults["memory"]["images"]:
                self._record_occurrence(f"memory-{os.getpid()}-{time.monotonic_ns()}")
                raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
            return forward(network, pixels, *arguments)

        mock.patch.object(InferenceNetwork, "_forward", forward_with_limited_memory).start()

    def _make_clock_jump(self) -> None:
        real_time = time.time
        jumps = itertools.cycle(self._faults["clock"])

        def jumping_time() -> float:
            jump: float = next(jumps)
            self._record_occurrence(f"jump-{jump:+.0f}s")
            return real_time() + jump

        time.time = jumping_time
