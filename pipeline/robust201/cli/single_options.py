"""Commands that reject an option given twice, instead of ignoring its first value."""

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption


class SingleOptionsCommand(TyperCommand):
    """A command whose options may be given at most once, except flags and options that accept several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments as Typer does; raise BadParameter if an option that takes one value is repeated."""
        _, _, parameters = self.make_parser(ctx).parse_args(args=[*args])
        single_value_options = [
            parameter
            for parameter in parameters
            if isinstance(parameter, TyperOption) and not parameter.multiple and not parameter.is_flag
        ]
        for parameter, count in Counter(single_value_options).items():
            if count > 1:
                option = max(parameter.opts, key=len)
                raise typer.BadParameter(f"{option} is given {count} times. Give it once", ctx=ctx)
        remaining_arguments: list[str] = super().parse_args(ctx, args)
        return remaining_arguments
