"""Generate the reference of the Python API from signatures and docstrings."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Warns")
"""Headings of docstring sections."""


_INTERNAL = {
    *("Evaluation", "Evaluation.evaluations", "Evaluation.find", "Evaluation.unit_of"),
    *("Comparison", "SecurityCurves", "SecurityCurves.figure", "ChosenImages", "ChosenImages.sample", "Resize.check"),
}
"""Members that only robust201 uses, and classes that only robust201 instantiates."""


def describe_api(*names: str) -> str:
    """Return Markdown for functions and classes, such as `robust201.evaluate`; errors get one sentence."""
    return "\n\n".join(text for name in names for text in _describe(name))


def _describe(name: str) -> Iterator[str]:
    module_name, _, attribute = name.rpartition(".")
    value = getattr(import_module(module_name), attribute)
    if inspect.isclass(value) and issubclass(value, Exception):
        yield f"- `{attribute}`: {(inspect.getdoc(value) or '').partition(chr(10))[0]}"
    else:
        is_public = attribute not in _INTERNAL
        yield f"### {attribute}\n\n{_describe_callable(attribute, value) if is_public else _format_docstring(value)}"
        if inspect.isclass(value):
            yield from _describe_members(attribute, value)


def _describe_callable(name: str, value: Callable[..., Any]) -> str:
    if _format_signature(name, value) == f"{name}()":
        return _format_docstring(value)
    return f"```text\n{_format_signature(name, value)}\n```\n\n{_format_docstring(value)}"


def _describe_members(class_name: str, value: type) -> Iterator[str]:
    """Yield the methods and properties that a class defines, in the order of its source."""
    for name, member in vars(value).items():
        function = getattr(member, "__func__", member)
        is_public = not name.startswith("_") and f"{class_name}.{name}" not in _INTERNAL
        if not is_public or not inspect.getdoc(function):
            continue
        if isinstance(member, property | cached_property):
            yield f"#### {class_name}.{name}\n\n{_format_docstring(member)}"
        elif inspect.isfunction(function):
            yield f"#### {class_name}.{name}()\n\n{_describe_callable(name, function)}"


def _format_signature(name: str, value: Callable[..., Any]) -> str:
    """Return a call with the names and defaults of the parameters, on one line or one parameter per line."""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in {"self", "cls"}
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    call = f"{name}{text}"
    return call if len(call) <= 100 else "\n".join(textwrap.wrap(call, 100, subsequent_indent="    "))


def _format_docstring(value: object) -> str:
    """Return a docstring as Markdown, with a list for each section."""
    text = re.sub(r"``(.+?)``", r"`\1`", inspect.getdoc(value) or "", flags=re.S)
    pieces = re.split(rf"^({'|'.join(_SECTIONS)}):\n", text, flags=re.M)
    sections = [
        f"**{heading.replace('Args', 'Arguments')}**\n\n{_format_entries(textwrap.dedent(body).strip())}"
        for heading, body in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
    return "\n\n".join([pieces[0].strip(), *sections])


def _format_entries(text: str) -> str:
    """Return the entries `NAME: MEANING` of a section as a list; consecutive entries with equal meanings are joined."""
    while (merged := re.sub(r"^(\w[\w, ]*): (.*)\n(\w+): \2$", r"\1, \3: \2", text, flags=re.M)) != text:
        text = merged
    return re.sub(r"^(\w+(?:, \w+)*): ", r"- `\1`: ", text, flags=re.M)
