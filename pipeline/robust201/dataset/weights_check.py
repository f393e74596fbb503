"""Comparison of the clean accuracies in a results folder with those recorded with the weights (docs/trust.md)."""

from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.rows import KeyRows
from robust201.images.specs import UNKNOWN_COUNT
from robust201.statistics.weights_check import ACCURACY_TOLERANCE, CleanAccuracy, WeightsCheck, check_accuracies
from robust201.store.folder import ResultsFolder
from robust201.sweep.parts import compare
from robust201.sweep.plan import Plan


def check_clean_accuracy(plan: Plan, folder: ResultsFolder) -> WeightsCheck:
    """Compare the clean accuracies in a results folder with the recorded accuracies, for networks that have both.

    Raises:
        ShardDamagedError: a file is damaged.
        StorageError: a file cannot be read at the moment.
    """
    listing, accuracies = folder.list(), []
    clean_plan = plan.comparable.narrow(keys=("clean",))
    for state in compare(clean_plan, listing, folder.read_tuple).keys:
        rows, n_test = KeyRows(folder, state.key, listing), plan.config.dataset_spec(state.key.dataset).n_test
        for position in range(len(state.key.networks)):
            unit = state.key.unit(position)
            recorded = plan.facts.recorded_accuracies.get(unit.checkpoint_sha256)
            if recorded is None or n_test == UNKNOWN_COUNT or any(True for _ in state.missing(position)):
                continue
            measured = float(rows.read(position, ("accuracy",))[CLEAN_STRENGTH]["accuracy"])
            tolerance = ACCURACY_TOLERANCE[plan.config.precision]
            network = unit.dataset, unit.architecture, unit.weights
            accuracies.append(CleanAccuracy(*network, measured, recorded, unit.n_images, n_test, tolerance))
    return check_accuracies(accuracies)
