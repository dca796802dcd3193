"""The command line: `inpage COMMAND ...`, or `python -m inpage COMMAND ...`."""

import argparse
import sys
from collections.abc import Sequence

from . import __version__, quantize


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="inpage", description="Transformer models inside the web page.")
    parser.add_argument("--version", action="version", version=f"inpage {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    describe = {"help": "write a quantised copy of a repository", "description": quantize.__doc__}
    raw = argparse.RawDescriptionHelpFormatter
    quantize.add_arguments(commands.add_parser("quantize", formatter_class=raw, **describe))
    return quantize.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
