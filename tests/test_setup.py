"""An installation is compiled, or runs as it is and says why: never half of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from waiting import PROGRAM_S

ROOT = Path(__file__).parents[1]
setuptools = pytest.importorskip("setuptools")
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}"}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""

HAS_COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
HEADER = Path(sysconfig.get_path("include"), "Python.h")
COMPILES = pytest.mark.skipif(not (HAS_COMPILER and HEADER.exists()), reason="no C compiler, or no Python.h")
BUILD = """
import sys
import setuptools.build_meta as backend
folder = sys.argv[1]
if {metadata}:
    backend.get_requires_for_build_wheel()
    backend.prepare_metadata_for_build_wheel(folder)
else:
    backend.build_wheel(folder)
assert not [name for name in sys.modules if name.startswith("mypy")], "the hot modules were written as C"
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py, which sets nothing up."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    spec = importlib.util.spec_from_file_location("setup_of_unified_tree", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for building writes into its folder."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "unified_tree", "components", "controllers"):
        subprocess.run(["cp", "-a", str(ROOT / name), str(copy)], check=True)
    return copy


def run(source: Path, code: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=source,
        env={**os.environ, "UNIFIED_TREE_PURE": "", **environment},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def uncompiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed where the compiler fails."""
    folder = tmp_path_factory.mktemp("wheel")
    run(source, BUILD.format(metadata=False), folder, CC="false")
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def ran(code: str, installed: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A program over what is installed there."""
    command = [sys.executable, "-P", *flags, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_S, check=True)


def test_every_name_of_its_lists_is_a_module(script: ModuleType) -> None:
    names = (*script.COMPILED, *script.INTERPRETED, *script.HOTTEST)
    assert [name for name in names if not list((ROOT / "unified_tree").glob(f"{name}.py"))] == []


def test_what_is_asked_before_the_build_compiles_nothing(source: Path, tmp_path: Path) -> None:
    run(source, BUILD.format(metadata=True), tmp_path)


def test_a_compiler_that_fails_is_named_at_the_first_import(uncompiled: Path) -> None:
    assert not list(uncompiled.rglob("*.so"))
    code = "import unified_tree, importlib; importlib.reload(unified_tree.build); print(unified_tree.is_compiled)"
    done = ran(code, uncompiled, "-W", "error")
    assert done.stdout == "False\n"
    [line] = done.stderr.splitlines()
    assert "could not be compiled when it was installed: false could not compile probe.c" in line


@pytest.mark.parametrize("is_there", [True, False])
def test_the_command_says_which_build_runs(is_there: bool, uncompiled: Path) -> None:
    pytest.importorskip("click")
    code = "from unified_tree.controllers.cli.commands import app; app(['--version'])"
    shown = ran(code, uncompiled if is_there else ROOT).stdout
    assert (", interpreted: false could not compile probe.c" in shown) == is_there
    assert is_there or shown.endswith(", interpreted\n")


@pytest.mark.parametrize("is_there", [True, False])
def test_caches_say_which_build_runs(is_there: bool, uncompiled: Path) -> None:
    """`stats` of each, and the log once a process."""
    code = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
from unified_tree import Component, Path
from unified_tree.controllers import PrefixCache
for _ in range(2):
    print(PrefixCache([Component(name="full", coverage=Path())], 1, {"full": 1}).stats().is_compiled)
"""
    done = ran(code, uncompiled if is_there else ROOT)
    lines = [line for line in done.stdout.splitlines() if "installed" not in line]
    assert lines == ["unified_tree: unified_tree runs interpreted", "False", "False"]


@COMPILES
@pytest.mark.parametrize("broken", ["nothing", "the core", "the modules"])
def test_hot_modules_are_compiled_all_or_none(
    broken: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an earlier run has left in the same folder."""
    command_class = script.BuildExtensions
    is_broken = False

    def build_core(command: Any, core: Any, *_: object) -> None:
        core.sources = [str(tmp_path / f"{core.name}.c")]
        Path(core.sources[0]).write_text("#error" if is_broken and broken == "the core" else MODULE.format(name=core.name))
        command.build_extension(core)

    def build_modules(_: object, paths: list[Path], *__: object) -> None:
        for path in paths[: 2 if is_broken and broken == "the modules" else None]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        if is_broken and broken == "the modules":
            raise OSError("the disk is full")

    monkeypatch.setattr(command_class, "build_core", build_core)
    monkeypatch.setattr(command_class, "build_modules", build_modules)
    hot = {script.CORE, *map(script.module_name, script.HOT)}

    def built() -> tuple[set[str], bool]:
        """The extensions that are there after a run, and whether it says why some are not."""
        native = tmp_path / "key_bytes.c"
        native.write_text(MODULE.format(name="key_bytes"))
        extensions = [
            setuptools.Extension(script.CORE, []),
            setuptools.Extension("unified_tree.native.key_bytes", [str(native)]),
        ]
        command = command_class(setuptools.Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
        command.ensure_finalized()
        command.run()
        names = {name for name in (*hot, "unified_tree.native.key_bytes") if Path(command.get_ext_fullpath(name)).exists()}
        return names, Path(command.build_lib, script.NOT_COMPILED).exists()

    assert built() == ({*hot, "unified_tree.native.key_bytes"}, False)
    is_broken = broken != "nothing"
    assert built() == ({"unified_tree.native.key_bytes"} if is_broken else {*hot, "unified_tree.native.key_bytes"}, is_broken)
    is_broken = False
    assert built() == ({*hot, "unified_tree.native.key_bytes"}, False)


def test_hot_modules_have_different_names(script: ModuleType) -> None:
    """One extension has the beginnings of all."""
    names = [name.rpartition("/")[2] for name in script.HOT]
    assert len(set(names)) == len(names)


def test_each_exception_is_a_module_of_a_compiled_room(script: ModuleType) -> None:
    """One that moved or went would be compiled unseen, or stand in the list for ever."""
    patterns = [pattern for pattern in script.COMPILED if "*" in pattern]
    for name in script.INTERPRETED:
        assert (ROOT / "unified_tree" / f"{name}.py").is_file(), name
        assert any(fnmatch(name, pattern) for pattern in patterns), name


def test_each_of_the_hottest_modules_is_compiled(script: ModuleType) -> None:
    """One that moved would be compiled with the others unseen."""
    assert set(script.HOT) >= script.HOTTEST


def test_mypy_is_pinned_to_what_the_patches_are_written_for() -> None:
    """The build's and that of the tests are one, so that what is tested is what users get."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    [pinned] = [each for each in wanted if each.startswith("mypy")]
    assert pinned in (ROOT / "constraints.txt").read_text().splitlines()


MYPYC_C = {
    "__native_room.c": """
static PyMethodDef room_methods[] = {
    {"wide", (PyCFunction)CPyPy_room___wide, METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("wide()\\n--\\n\\n") /* docstring */},
};
static struct PyModuleDef roommodule = {
    PyModuleDef_HEAD_INIT,
    "unified_tree.room",
    NULL, /* docstring */
};
CPy_TRASHCAN_BEGIN(self, room_dealloc)
"""
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("", ""), None),
        (("PyDoc_STR(", "DOC("), "1 docstrings find no place in the C of mypy .*, such as room___wide's"),
        (("NULL, /* docstring */", "nothing"), "1 docstrings find no place in the C of mypy .*, such as roommodule's"),
        (("CPy_TRASHCAN_BEGIN(", "TRASH("), "is not what dealloc.h mends"),
    ],
)
def test_c_that_the_patches_do_not_know_is_refused(
    change: tuple[str, str],
    said: str | None,
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The build says which C it takes, and what it puts there; a mypy that writes another is a reason not to compile."""
    pytest.importorskip("mypyc")
    docs = [(("roommodule",), "A room."), (("room___wide", "room_get_wide"), "How wide.")]
    monkeypatch.setattr(script, "HOT", ("room",))
    monkeypatch.setattr(script, "docstrings", lambda _: docs)
    codes = {name: code.replace(*change) if change[0] else code for name, code in MYPYC_C.items()}
    if said:
        with pytest.raises(script.NotCompiledError, match=said):
            script.patched(codes)
        return
    [written] = script.patched(codes).values()
    assert 'PyDoc_STR("wide()\\n--\\n\\n" "How wide.")' in written
    assert '"A room.", /* docstring */' in written
    assert "2 docstrings" in capsys.readouterr().err
