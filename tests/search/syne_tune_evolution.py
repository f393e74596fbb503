"""Syne Tune's regularised evolution on a blackbox that `robust201 search DATASET --blackbox FOLDER` wrote.

Run it with a Python that has syne-tune, fastparquet, huggingface_hub and ConfigSpace; robust201 is not needed:

    python tests/search/syne_tune_evolution.py FOLDER [--task cifar10] [--metric metric_error_clean] [--queries 1000]

It prints one JSON object: what Syne Tune found, the optimum of the table, and how many draws of the ConfigSpace are
cells of it.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

CONFIGSPACE_DRAWS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description="Syne Tune's regularised evolution on a blackbox of robust201.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--metric", default="metric_error_clean")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as results:
        os.environ["SYNETUNE_FOLDER"] = results  # read when Syne Tune is imported
        logging.disable(logging.WARNING)
        print(json.dumps(search(**vars(given))))


def search(folder: Path, task: str, metric: str, queries: int, seed: int) -> dict[str, Any]:
    """Search one task of a blackbox by Syne Tune's own simulator."""
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository.blackbox_tabular import deserialize
    from syne_tune.blackbox_repository.simulated_tabular_backend import UserBlackboxBackend
    from syne_tune.optimizer.baselines import REA

    blackbox = deserialize(str(folder))[task]
    place = blackbox.objectives_names.index(metric)
    errors = blackbox.objectives_evaluations[:, 0, 0, place]
    tuner = Tuner(
        trial_backend=UserBlackboxBackend(blackbox=blackbox, elapsed_time_attr="metric_elapsed_time"),
        scheduler=REA(blackbox.configuration_space, metric=metric, random_seed=seed),
        stop_criterion=StoppingCriterion(max_num_evaluations=queries),
        n_workers=1,
        sleep_time=0,
        callbacks=[SimulatorCallback()],
        save_tuner=False,
        print_update_interval=1e9,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        tuner.run()
        _, found = tuner.best_config()
    error = blackbox(found, fidelity={"hp_epoch": 1})[metric]
    return {
        "cells": len(errors),
        "queries": queries,
        "found": [found[name] for name in blackbox.hyperparameters.columns],
        "error": float(error),
        "optimum": float(errors.min()),
        "configspace_draws_in_table": count_configspace_draws(folder, blackbox.hyperparameters, seed),
    }


def count_configspace_draws(folder: Path, table: Any, seed: int) -> str:
    """Draw from the ConfigSpace, and count the draws that are cells of the table."""
    from ConfigSpace import ConfigurationSpace

    space = ConfigurationSpace.from_json(folder / "cell_space.json")
    space.seed(seed)
    known = {tuple(row) for row in table.itertuples(index=False)}
    drawn = [tuple(str(draw[name]) for name in table.columns) for draw in space.sample_configuration(CONFIGSPACE_DRAWS)]
    return f"{sum(cell in known for cell in drawn)} of {len(drawn)}"


if __name__ == "__main__":
    main()
