"""`python -m benchmarks.figures`: makes tables, pictures and the dashboard; `--check` looks."""

from __future__ import annotations

import argparse
import sys

from . import pages, results


def main() -> int:
    """Returns the exit status: with `--check`, 1 when something is stale."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures")
    parser.add_argument("--check", action="store_true", help="write nothing; say what is stale")
    options = parser.parse_args()
    runs = results.read()
    found = pages.stale(runs) if options.check else pages.write(runs)
    for path in found:
        print(f"{'stale' if options.check else 'written'}: {path}")
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
