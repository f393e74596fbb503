"""Faults inside a process of robust201: a worker that dies, lacks memory or is slow; a clock that jumps.

The faults are configured in ``injections.json`` beside the results folder, so that workers find them on any machine
with access to the folder. If a fault may occur a limited number of times, a worker claims a file for each occurrence.
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
CLAIMS_FOLDER = "claims"


class Injections:
    """The faults to inject into this process, read from the trial's folder."""

    def __init__(self, folder: Path) -> None:
        self._claims = folder / CLAIMS_FOLDER
        path = folder / INJECTIONS_FILE
        self._faults: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def apply(self) -> None:
        if {"pace", "slow", "poison"} & self._faults.keys():
            self._wrap_evaluate()
        if "step_seconds" in self._faults:
            self._delay_steps()
        if "die_at_steps" in self._faults:
            self._die_while_writing()
        if "memory" in self._faults:
            self._run_out_of_memory()
        self.apply_to_driver()

    def apply_to_driver(self) -> None:
        if "clock" in self._faults:
            self._make_clock_jump()

    def _claim(self, name: str) -> bool:
        """Claim one of a limited number of occurrences; return False if it is already claimed."""
        self._claims.mkdir(exist_ok=True)
        try:
            (self._claims / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _wrap_evaluate(self) -> None:
        from robust201.runtime import worker
        from robust201.tasks.evaluate import evaluate_part

        slow = self._faults.get("slow", {})

        def evaluate_with_faults(
            context: Any, task: Any, parameters: Any, part: Any, *rest: Any, **named: Any
        ) -> Iterator[Any]:
            if "pace" in self._faults:
                self._claim(f"worked-{os.getpid()}")
                time.sleep(self._faults["pace"])
            if part.unit.key == slow.get("key"):
                self._claim(f"slow-{part.unit.id}-{os.getpid()}-{time.monotonic_ns()}")
                time.sleep(slow["seconds"])
            if [part.unit.architecture, part.unit.key] in self._faults.get("poison", []):
                self._claim(f"poison-{part.unit.architecture}-{part.unit.key}-{os.getpid()}")
                os.kill(os.getpid(), signal.SIGKILL)
            yield from evaluate_part(context, task, parameters, part, *rest, **named)

        mock.patch.object(worker, "evaluate_part", evaluate_with_faults).start()

    def _delay_steps(self) -> None:
        from robust201.training import loop

        make_step = loop._Training._make_step

        def make_step_slowly(training: Any) -> None:
            time.sleep(self._faults["step_seconds"])
            make_step(training)

        mock.patch.object(loop._Training, "_make_step", make_step_slowly).start()

    def _die_while_writing(self) -> None:
        from robust201.runtime import worker
        from robust201.shards import ShardStore

        def die(step: str) -> None:
            if step in self._faults["die_at_steps"] and self._claim(f"died-{step}"):
                os.kill(os.getpid(), signal.SIGKILL)

        class DeadlyStore(ShardStore):
            @classmethod
            def open(cls, root: Path, **_named: Any) -> "DeadlyStore":
                return cls(root, on_step=die)

        mock.patch.object(worker, "ShardStore", DeadlyStore).start()

    def _run_out_of_memory(self) -> None:
        import torch

        from robust201.spaces.nasbench201.compiled import InferenceNetwork

        forward = InferenceNetwork._forward

        def forward_in_small_memory(network: Any, pixels: Any, *rest: Any) -> Any:
            if len(pixels) > self._faults["memory"]["images"]:
                self._claim(f"memory-{os.getpid()}-{time.monotonic_ns()}")
                raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
            return forward(network, pixels, *rest)

        mock.patch.object(InferenceNetwork, "_forward", forward_in_small_memory).start()

    def _make_clock_jump(self) -> None:
        now = time.time
        jumps = itertools.cycle(self._faults["clock"])

        def jumping_time() -> float:
            jump: float = next(jumps)
            self._claim(f"jump-{jump:+.0f}s")
            return now() + jump

        time.time = jumping_time
