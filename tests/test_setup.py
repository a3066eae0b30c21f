"""An installation is compiled, or runs as it is: never half of it."""

from __future__ import annotations

import runpy
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
setuptools = pytest.importorskip("setuptools")
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}"}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""

HAS_COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
HEADER = Path(sysconfig.get_path("include"), "Python.h")

pytestmark = pytest.mark.skipif(not (HAS_COMPILER and HEADER.exists()), reason="no C compiler, or no Python.h")


@pytest.mark.parametrize("broken", [None, "unified_tree_core__mypyc", "unified_tree.ages"])
def test_hot_modules_are_compiled_all_or_none(broken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an earlier run has left in the same folder."""
    monkeypatch.setenv("UNIFIED_TREE_PURE", "1")
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    script: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))
    hot = [script["CORE"], "unified_tree.ages", "unified_tree.node"]
    names = [*hot, "unified_tree.key_bytes"]

    def built(broken: str | None) -> set[str]:
        """The extensions that are there after a run."""
        extensions = []
        for name in names:
            source = tmp_path / f"{name}.c"
            source.write_text("#error" if name == broken else MODULE.format(name=name.rpartition(".")[2]))
            extensions.append(setuptools.Extension(name, [str(source)], optional=True))
        command = script["BuildAllOrNothing"](setuptools.Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
        command.ensure_finalized()
        command.run()
        return {name for name in names if Path(command.get_ext_fullpath(name)).exists()}

    assert built(None) == set(names)
    assert built(broken) == (set(names) if broken is None else {"unified_tree.key_bytes"})
