"""Spellings of the command line that were replaced: they go on working for one release, with a note on stderr."""

from collections.abc import Callable, Iterator, Sequence

import typer

_OUT = "--out"
_KEY_STYLES = {"paper": "plain", "published": "with-norm"}

OPTIONS: dict[str, dict[str, str]] = {
    "corrupt": {"--form": "--format"},
    "export": {"--json": ""},
    "fetch": {"--to": _OUT},
    "import-weights": {"--to": _OUT},
    "merge": {"--into": _OUT},
    "plan": {"--dry-run": ""},
    "run": {"--results": _OUT, "--requeue": "--slurm-requeue"},
    "submit slurm": {"--results": _OUT},
    "train": {"--to": _OUT, "--form": "--format"},
    "verify": {"--protocol-checks": "--attack-flags"},
}
"""Old options of a verb, each with its new spelling; empty where what it asked for happens without it."""

VALUES: dict[str, dict[str, dict[str, str]]] = {
    "export": {"--key-style": _KEY_STYLES},
    "meta": {"--key-style": _KEY_STYLES},
}
"""Old values of an option."""

OUT_ARGUMENTS = {"corrupt": 0, "export": 1, "import-json": 1}
"""Verbs whose output was an argument: how many arguments come before it."""


def update_spelling(app: typer.Typer, words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Rewrite a command line in the current spelling, and say what was rewritten."""
    n_words = 2 if list(words[:1]) == ["submit"] else 1
    verb, rest = " ".join(words[:n_words]), list(words[n_words:])
    if "--" in rest:  # arguments alone follow
        return list(words)
    updated = list(_update_options(verb, rest, say))
    if verb in OUT_ARGUMENTS:
        updated = _update_argument(app, verb, updated, say)
    return [*words[:n_words], *updated]


def _update_options(verb: str, words: Sequence[str], say: Callable[[str], None]) -> Iterator[str]:
    replaced, values = OPTIONS.get(verb, {}), VALUES.get(verb, {})
    before = ""
    for word in words:
        option, equals, value = word.partition("=")
        if option in replaced:
            new = replaced[option]
            if not new:
                say(f"note: {verb} no longer needs {option}; the next release will refuse it.")
            else:
                _tell(say, f"{option} of {verb}", new)
                yield f"{new}{equals}{value}"
        elif before in values and word in values[before]:
            _tell(say, f"{before} {word}", f"{before} {values[before][word]}")
            yield values[before][word]
        elif equals and option in values and value in values[option]:
            _tell(say, word, f"{option}={values[option][value]}")
            yield f"{option}={values[option][value]}"
        else:
            yield word
        before = word


def _update_argument(app: typer.Typer, verb: str, words: list[str], say: Callable[[str], None]) -> list[str]:
    """Put --out before the argument that used to name the output."""
    root = typer.main.get_command(app)
    command = root.commands[verb]  # type: ignore[attr-defined]  # a group, as there are several verbs
    takes_value = {
        name for option in command.params if not getattr(option, "is_flag", True) for name in (*option.opts,)
    }
    is_value, n_arguments = False, 0
    for place, word in enumerate(words):
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            is_value = word in takes_value
        elif n_arguments == OUT_ARGUMENTS[verb] and _OUT not in words:
            _tell(say, f"the argument {word} of {verb}", f"{_OUT} {word}")
            return [*words[:place], _OUT, *words[place:]]
        else:
            n_arguments += 1
    return words


def _tell(say: Callable[[str], None], old: str, new: str) -> None:
    say(f"note: {old} is now {new}; the old spelling works until the next release.")
