"""The repository's layout and the direction of its imports."""

import ast
import http
import http.client
import pathlib
import subprocess
import sys
import sysconfig

import pytest

import motet.http.app

ROOT = pathlib.Path(__file__).parents[1]
PARTS = ("actors", "channels", "engine", "http")
ALLOWED = {
    "engine": {"engine"},
    "channels": {"channels"},
    "actors": {"actors", "channels", "engine"},
    "http": {"http", "actors"},  # and the public API
}
FORBIDDEN = {
    "engine": {"trio", "quart", "hypercorn", "structlog"},
    "channels": {"mlx", "mlx_lm", "quart", "hypercorn"},
    "http": {"mlx", "mlx_lm"},
}


def test_stdlib_http_is_not_shadowed() -> None:
    assert http.client.OK == 200
    assert http.__file__ is not None
    assert pathlib.Path(http.__file__).is_relative_to(sysconfig.get_path("stdlib"))
    assert not (ROOT / "http" / "__init__.py").exists()
    code = "import http.client, actors; print(http.client.OK)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "200\n", run.stderr


def test_parts_are_links_into_the_package() -> None:
    for part in PARTS:
        assert (ROOT / "src" / "motet" / part).resolve() == ROOT / part


def test_one_copy_of_each_module() -> None:
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert loaded.isdisjoint({"actors", "channels", "engine"})
    assert motet.http.app.__name__ == "motet.http.app"


def imports(file: pathlib.Path) -> set[str]:
    """Dotted names that a module imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("part", PARTS)
def test_dependencies_point_one_way(part: str) -> None:
    """http -> actors -> channels, actors -> engine, and engine knows nobody."""
    files = list((ROOT / part).glob("**/*.py"))
    assert files
    for file in files:
        for name in imports(file):
            top, _, rest = name.partition(".")
            assert top not in FORBIDDEN.get(part, set()), (file, name)
            if top == "motet" and rest.partition(".")[0] in PARTS:
                assert rest.partition(".")[0] in ALLOWED[part], (file, name)


def test_no_module_is_called_what_says_nothing() -> None:
    for part in PARTS:
        for file in (ROOT / part).glob("**/*.py"):
            assert file.stem not in {"utils", "helpers", "common", "misc"}


def test_files_stay_small() -> None:
    for part in PARTS:
        for file in (ROOT / part).glob("**/*.py"):
            assert len(file.read_text().splitlines()) <= 400, file
