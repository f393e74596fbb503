"""Parsing of texts that refer to networks, optionally as ``NAME=…``.

    FOLDER                                                       a saved evaluation
    DATASET:ARCHITECTURE[@WEIGHTS]                               networks of a dataset with per-image outcomes
    FILE:FUNCTION[,weights=FILE][,mean=NUMBERS,std=NUMBERS]      the network that a function in a user's file returns

The weights are a state_dict (safetensors or PyTorch). Mean and standard deviation have one number per channel,
separated by commas, for networks that take normalised images.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from robust201.analysis.evaluation import Evaluation
from robust201.analysis.evaluation_file import is_evaluation
from robust201.analysis.network_context import as_normalisation
from robust201.core.errors import ArchitectureError, ConfigError, did_you_mean
from robust201.core.user_code import UserFunction, describe_failure, importing_neighbours, parse_function

if TYPE_CHECKING:
    from robust201.core.records import Normalisation

_OPTIONS = ("weights", "mean", "std")

_NAME = re.compile(r"(?P<name>[^=:,/]+)=(?P<rest>.+)", re.DOTALL)


class UserNetwork(NamedTuple):
    """A network in a user's file.

    Attributes:
        function: function without arguments that returns the network.
        weights: file with the network's state_dict; None for the weights that the function sets.
        normalisation: normalisation of the images that the network takes; None for pixels in [0, 1].
        report: function that is called with messages about the file and the weights.
    """

    function: UserFunction
    weights: Path | None = None
    normalisation: "Normalisation | None" = None
    report: Callable[[str], None] = lambda _line: None

    def build(self) -> nn.Module:
        """Execute the file, call the function, and load the weights.

        Raises:
            ArchitectureError: the function fails, or does not return a module.
            CheckpointError: the weights are damaged, or belong to another network.
            ConfigError: the file cannot be executed, or does not define the function.
        """
        from robust201.weights.loading import fill_network, read_weights
        from robust201.weights.published.base import wrapper_prefix

        tensors = None if self.weights is None else read_weights(self.weights, self.report)
        self.report(f"Executing {self.function.path} (SHA-256 {self.function.sha256[:16]}…)")
        with importing_neighbours(self.function):
            build = self.function.load()
            try:
                module, got = build(), ""
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a network may raise anything
                module, got = None, describe_failure(error)
        if not isinstance(module, nn.Module):
            raise ArchitectureError(
                f"Building a network failed for {self.function.label}: expected a torch.nn.Module from a call without "
                f"arguments, got {got or type(module).__name__}. Correct the function."
            )
        if tensors is not None:
            prefix = wrapper_prefix(module.state_dict())  # the function may return a wrapped network
            fill_network(module, {prefix + name: tensor for name, tensor in tensors.items()}, str(self.weights))
        return module


def read_network(
    text: str, name: str = "", keys: Sequence[str] | None = None, data: str | None = None
) -> dict[str, Evaluation | UserNetwork]:
    """Return the networks that a text names, by name, without executing user files.

    Args:
        text: see the module's docstring.
        name: name of the network; by default the name in the text or, without one, the name of the folder, the name of
            the network in the dataset, or FILE:FUNCTION.
        keys: keys, or keys at a strength, of networks in datasets (see `read_evaluations`).
        data: image dataset, if DATASET has several.

    Raises:
        ConfigError: the text is not of this form, or a name stands for several networks.
        ResultsError: a saved evaluation is damaged, or a dataset has no per-image outcomes.
    """
    from robust201.analysis.stored_evaluations import read_evaluations, split_network

    match = _NAME.fullmatch(text)
    name, rest = (match["name"], match["rest"]) if match and not name else (name, text)
    if is_evaluation(Path(rest)):
        return {name or Path(rest).resolve().name: Evaluation.load(rest)}
    if (folder_and_name := split_network(rest)) is not None:
        evaluations = read_evaluations(*folder_and_name, keys=keys, data=data)
        if name and len(evaluations) > 1:
            raise ConfigError(
                f"Reading networks failed for {name}: the architecture has several weights: {', '.join(evaluations)}. "
                "Name one of them as ARCHITECTURE@WEIGHTS, or leave out the name."
            )
        return {name or network: evaluation for network, evaluation in evaluations.items()}
    if ":" not in rest.partition(",")[0]:
        advice = (
            f"Append the function: {rest}:FUNCTION" if rest.endswith(".py") else "Evaluate a network with --save first"
        )
        raise ConfigError(
            f"Reading networks failed for {text!r}: expected a saved evaluation (a folder of --save), FILE:FUNCTION or "
            f"DATASET:ARCHITECTURE, got {'a path of another type' if Path(rest).exists() else 'a missing path'}. "
            f"{advice}, or correct the name."
        )
    return {name or rest.partition(",")[0]: parse_user_network(rest)}


def parse_user_network(text: str) -> UserNetwork:
    """Parse FILE:FUNCTION with options (see the module's docstring).

    Raises:
        ConfigError: the text is not of this form, or the file cannot be read.
    """
    function, *fields = re.split(r",(?=[^,=]*=|$)", text)
    options: dict[str, str] = {}
    for field in fields:
        option, _, value = field.partition("=")
        if option not in _OPTIONS or option in options or not value:
            raise ConfigError(
                f"Reading networks failed for {text!r}: expected FILE:FUNCTION,weights=FILE,mean=R,G,B,std=R,G,B, got "
                f"{field!r}.{did_you_mean(option, _OPTIONS)}"
            )
        options[option] = value
    weights = Path(options["weights"]) if "weights" in options else None
    return UserNetwork(parse_function(function), weights, _parse_normalisation(text, options))


def _parse_normalisation(text: str, options: dict[str, str]) -> "Normalisation | None":
    if not {"mean", "std"} & options.keys():
        return None
    pair: Any = [options.get(name, "").split(",") for name in ("mean", "std")]
    try:
        return as_normalisation(pair)
    except ConfigError as error:
        raise ConfigError(f"Reading networks failed for {text!r}: {error}") from error
