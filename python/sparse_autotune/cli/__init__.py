"""The command line. Importing `sparse_autotune` imports nothing of it, nor what it needs."""

from __future__ import annotations

import sys
from typing import NoReturn


def _end(text: str, code: int) -> NoReturn:
    print(f"sparse-autotune: {text}", file=sys.stderr)
    sys.exit(code)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs a command and exits: 0 if it was done, 2 with one sentence if the input was bad."""
    try:
        import click
        import rich as rich
    except ImportError as error:
        _end(f"{error.name} is missing (pip install 'sparse-autotune[cli]')", 2)
    from .commands import cli

    try:
        cli.main(arguments, prog_name="sparse-autotune", standalone_mode=False)
    except click.ClickException as error:
        _end(" ".join(error.format_message().split()), 2)
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # of `| head`
            sys.stderr.close()
            sys.exit(1)
        _end(" ".join(str(error).split()), 2)
    except (click.Abort, KeyboardInterrupt):
        _end("interrupted", 130)
    sys.exit(0)
