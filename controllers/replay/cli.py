"""Entry point of `unified-tree`: says in one line which extra to install where it cannot run."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit code 2 and one line on stderr for everything that is wrong with the input."""
    try:
        from unified_tree.controllers.replay.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        print(f"error: {error.name} is not installed; run: pip install 'unified-tree[replay]'", file=sys.stderr)
        sys.exit(2)
    app.main(prog_name="unified-tree")


if __name__ == "__main__":
    main()
