"""Entry point of `unified-tree`: says in one line which extra to install where it cannot run."""

from __future__ import annotations

import gc
import io
import logging
import os
import sys

EXTRAS = {
    **dict.fromkeys(("click", "rich", "matplotlib"), "replay"),
    **dict.fromkeys(("aiohttp", "jinja2", "msgpack", "tokenizers", "zmq"), "record"),
    **dict.fromkeys(("redis", "yaml"), "redis"),
    "xxhash": "storage",
    "torch": "tensors",
}
"""The extra that brings a package."""


def main() -> None:
    """Run the command line. Exit code 2 and one line on stderr for everything that is wrong with the input."""
    logging.getLogger("unified_tree.cache").addHandler(logging.NullHandler())  # a command says itself what went wrong
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be text
    sys.path.append(os.getcwd())  # where MODULE:FACTORY is looked for last
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes of rows: numpy's threads would spin in each
    gc.disable()
    try:
        from unified_tree.controllers.cli.commands import app

        gc.freeze()  # modules live as long as the process: nothing of them is worth visiting
        gc.enable()
        app.main(prog_name="unified-tree")
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS:
            raise
        print(f"error: {name} is not installed; run: pip install 'unified-tree[{EXTRAS[name]}]'", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
