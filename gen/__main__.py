"""Run the command line: `python -m gen`, installed as `matrix-gen`."""

import os
import sys

__all__ = ["console"]


def main() -> int:
    """Run one command. `doctor` needs no other package, so that it can say which is missing."""
    try:
        from gen.cli import main as run
    except ImportError as error:
        if sys.argv[1:2] != ["doctor"]:
            print(f"matrix-gen: {error}; `matrix-gen doctor` says what to do", file=sys.stderr)
            return 2
        from gen.commands import doctor

        return doctor.run()
    return run()


def console() -> int:
    """Run `matrix-gen`. As with `python -m gen`, the folder where it runs is imported from."""
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    return main()


if __name__ == "__main__":
    sys.exit(main())
