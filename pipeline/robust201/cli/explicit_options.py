"""Which options a command was given."""

import typer


def explicit_options(context: typer.Context) -> dict[str, str]:
    """Map the parameters that the command line itself gives to their spellings, such as ``data`` to ``--dataset``."""
    given = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            given[str(parameter.name)] = max(parameter.opts, key=len)
    return given
