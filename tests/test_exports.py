"""The public surface: exactly `__all__`, each name there, and free until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import doubletime

SOURCE = Path(doubletime.__file__)


@pytest.mark.parametrize("name", doubletime.__all__)
def test_every_public_name_is_there(name):
    assert getattr(doubletime, name) is not None


def test_public_names_are_sorted_and_are_what_dir_shows():
    assert doubletime.__all__ == sorted(doubletime.__all__)
    assert dir(doubletime) == doubletime.__all__


def test_type_checkers_and_python_see_the_same_names():
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    typed = {
        alias.asname: node.module.removeprefix("doubletime.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == doubletime._HOME
    assert sorted([*typed, "__version__"]) == doubletime.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = doubletime.nope


def test_floors_export_nothing():
    for floor in SOURCE.parent.glob("*/__init__.py"):
        body = ast.parse(floor.read_text()).body
        assert len(body) == 1, f"{floor} holds more than its one sentence"
        assert ast.get_docstring(ast.parse(floor.read_text()))


def test_the_version_is_the_package_s():
    from importlib.metadata import version

    assert doubletime.__version__ == version("doubletime")


HEAVY = ("torch", "mpi4py", "rich", "typer", "numpy")


def _loaded_by(statement: str) -> set[str]:
    """Which heavy modules a fresh interpreter has after this statement."""
    show = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{show}"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    return set(ast.literal_eval(output))


def test_importing_doubletime_loads_nothing_heavy():
    assert _loaded_by("import doubletime, doubletime.errors, doubletime.units") == set()


def test_launchers_run_where_torch_is_not_installed():
    modules = sorted((SOURCE.parent / "cluster").glob("*.py"))
    names = ", ".join(
        f"doubletime.cluster.{module.stem}" for module in modules if module.stem != "__init__"
    )
    assert names
    blocked = "import sys; sys.modules['torch'] = sys.modules['mpi4py'] = None"
    _loaded_by(f"{blocked}\nimport {names}")  # raises where one of them is imported


def test_importing_torch_loads_no_mpi():
    assert "mpi4py" not in _loaded_by("import torch")
