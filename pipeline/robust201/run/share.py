"""The work of one share of a planned sweep (`run --share I/N`), for example in each task of a job array.

Shares run at the same time, so they take no lock. They read the plan that `plan --save` or a run wrote, and list the
stored results only at their start. For planning, they hash neither images nor weights.
"""

from robust201.core.errors import ConfigError, InputError
from robust201.core.user_code import hash_file
from robust201.run.sweep import SweepWork, check_device, fix_device
from robust201.run.work import Say
from robust201.store.folder import ResultsFolder
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import PLAN_FILE, load_plan
from robust201.sweep.filters import Filters
from robust201.sweep.parts import compare
from robust201.sweep.plan import make_plan
from robust201.sweep.protocol import UNKNOWN_IMAGES, list_differences
from robust201.sweep.shares import Share
from robust201.sweep.sweep_record import result_fields


def prepare_share(config: SweepConfig, share: Share, filters: Filters, say: Say) -> SweepWork:
    """Return the work of a share: its missing parts. Nothing is written.

    Raises:
        InputError: there is no plan, it lacks images or weights that the share needs, or the device differs.
        ConfigError: the sweep differs from the plan in fields that may affect results.
        StorageError: results cannot be read.
    """
    if not (config.results / PLAN_FILE).exists():
        raise InputError(
            f"Running with --share failed for {config.results}: expected a planned sweep, got a folder without "
            f"{PLAN_FILE}. Write it on one machine first: robust201 plan --save SWEEP.yaml"
        )
    planned, facts = load_plan(config.results)
    differences = list_differences(result_fields(planned), result_fields(config))
    if differences:
        raise ConfigError(
            f"Running with --share failed for {config.results}: the sweep differs from the saved plan "
            f"({'; '.join(differences[:3])}). Plan it again: robust201 plan --save SWEEP.yaml"
        )
    config = fix_device(
        planned.model_copy(update={"execution": config.execution.model_copy(update={"ray_address": None})})
    )
    folder = ResultsFolder.open(config.results)
    check_device(config, folder)
    plan = filters.narrow(make_plan(config, facts, folder.slices))
    unhashed = [f"{key.dataset} {key.key}" for key in plan.keys if key.payload.get("corruption") == UNKNOWN_IMAGES]
    unhashed += [key.unit(row).network_label for key in plan.keys for row in key.networks_without_weights()]
    if unhashed:
        raise InputError(
            f"Running with --share failed for {unhashed[0]}: expected the hashes of its inputs in {PLAN_FILE}, got "
            "none, because filters excluded it from the saved plan. Plan without filters (robust201 plan --save "
            "SWEEP.yaml), or use the same filters."
        )
    for field, path in config.code_files().items():
        if path.exists() and hash_file(path) != facts.code[field]:
            say(f"warning: {path} has changed since the sweep was planned; this share executes the planned version.")
    return SweepWork(folder, plan, compare(plan, folder.list(say), folder.read_tuple), share)
