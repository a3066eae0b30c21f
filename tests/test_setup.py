"""An installation is compiled, or runs as it is: never half of it."""

from __future__ import annotations

import runpy
import shutil
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

pytestmark = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")


@pytest.mark.parametrize("core", ["compiles", "does not compile"])
def test_where_the_core_is_not_compiled_no_module_waits_for_it(
    core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIED_TREE_PURE", "1")
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    script: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))
    names = [script["CORE"], "unified_tree.ages", "unified_tree.key_bytes"]
    extensions = []
    for name in names:
        source = tmp_path / f"{name}.c"
        text = MODULE.format(name=name.rpartition(".")[2])
        source.write_text("#error" if name == script["CORE"] and core != "compiles" else text)
        extensions.append(setuptools.Extension(name, [str(source)], optional=True))
    command = script["BuildAllOrNothing"](setuptools.Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
    command.ensure_finalized()
    command.run()
    built = {name for name in names if Path(command.get_ext_fullpath(name)).exists()}
    assert built == (set(names) if core == "compiles" else {"unified_tree.key_bytes"})
