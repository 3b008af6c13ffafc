"""The shape of the code: imports only point down, the log asks a clock, files and functions stay short."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "rmq_spark"
REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / PACKAGE

# fmt: off
LAYERS = {
    "errors": 0, "clock": 0, "lazy_names": 0, "json_log": 0, "model": 0,
    "filter": 1,
    "storage": 2, "log": 2,
    "rules": 3,
    "client": 4, "services": 4, "tables": 4, "query": 4, "metrics": 4,
    "spark": 5, "proxy": 5, "cli": 5, "demo": 5,
    "demo_spark": 6, "jobs": 6,
}
# fmt: on
"""Part of the package -> its layer; a part may import lower layers. CONTRIBUTING.md says the same."""

SAME_LAYER = {
    ("model", "errors"),
    ("model", "clock"),
    ("json_log", "errors"),
    ("log", "storage"),
    ("tables", "client"),
    ("query", "client"),
    ("services", "client"),
    ("metrics", "client"),
    ("query", "tables"),
    ("services", "tables"),
    ("cli", "proxy"),
}
"""Imports within a layer that are meant: model and log lines stand on errors and clock, the log on the storage
protocol, tables, queries, services and metrics on an open store, queries and services on tables, `rmq proxy` on the
proxy."""

CORE = {"numpy", "pyarrow"}
MAY_IMPORT = {
    "errors": set[str](),
    "clock": set[str](),
    "lazy_names": set[str](),
    "json_log": set[str](),
    "model": CORE,
    "filter": CORE,
    "storage": {"fsspec", "hdfs_native", "obstore", "pyarrow"},  # of Arrow its memory pool only
    "log": CORE | {"isal", "orjson"},
    "rules": CORE,
    "client": CORE,
    "services": CORE | {"prometheus_client"},
    "metrics": {"prometheus_client"},
    "tables": CORE,
    "query": CORE,
    "spark": CORE | {"pyspark"},
    "proxy": {"google", "grpc", "grpc_health", "grpc_reflection", "prometheus_client"},
    "cli": CORE | {"typer", "rich", "click"},
    "demo": CORE | {"rich"},
    "demo_spark": {"pyspark"},
    "jobs": {"pyspark"},
}
"""Packages from outside, by part. Only the Spark source imports pyspark, only the proxy grpc."""

PLAIN_MODEL_EXCEPT = {"model/java_hash.py"}
"""The model is plain Python; only the column form of Java's hash works on arrays."""

RULES_MAY = {
    "rmq_spark.log.fold", "rmq_spark.log.message_batch", "rmq_spark.log.request", "rmq_spark.log.schema",
    "rmq_spark.log.state", "rmq_spark.log.undo",
}  # fmt: skip
"""What rules may know of layer 2: values, nothing that opens a file."""
RULES_NEVER = {
    "asyncio", "datetime", "io", "logging", "os", "pathlib", "random", "secrets", "shutil", "socket", "subprocess",
    "tempfile", "time", "uuid",
}  # fmt: skip
"""Rules get times and random numbers as arguments, so that a simulation can give them."""

LOG_NEVER = {"time", "random", "uuid", "secrets", "datetime"}
LOG_MAY = {("log/expire.py", "datetime")}
"""expire needs the hour of the day, computed from the clock's own milliseconds."""

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS: dict[str, str] = {}
"""`file:function` -> why it may be longer."""
LONG_FILES: dict[str, str] = {}
"""`file` -> why it may be longer."""
VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def sources() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path, *, at_import: bool = False) -> Iterator[tuple[int, str]]:
    """Every (line, module) that a file imports; `at_import`: only what runs when it is imported itself."""
    tree = parse(path)
    for node in _running(tree) if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def _running(tree: ast.Module) -> Iterator[ast.AST]:
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from ast.walk(node)


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_imports_only_point_down(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "testing"):
        return
    for line, module in imports(path):
        if not module.startswith(f"{PACKAGE}."):
            continue
        if module == f"{PACKAGE}.__version__" and LAYERS[part] >= LAYERS["cli"]:
            continue
        other = module.split(".")[1]
        where = f"{name_of(path)}:{line} imports {module}"
        assert other in LAYERS, (
            f"{where}: import the module that defines it, not the package's front or the tests' part"
        )
        if other == part or (part, other) in SAME_LAYER:
            continue
        assert LAYERS[other] < LAYERS[part], f"{where}: layer {LAYERS[part]} must not know layer {LAYERS[other]}"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_only_the_packages_that_a_part_may_use_are_imported(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "testing"):
        return
    allowed = MAY_IMPORT[part]
    if part == "model" and name_of(path) not in PLAIN_MODEL_EXCEPT:
        allowed = set()
    for line, module in imports(path):
        top = module.split(".")[0]
        if top == PACKAGE or top in sys.stdlib_module_names:
            continue
        assert top in allowed, f"{name_of(path)}:{line} imports {top}; {part} may import {sorted(allowed)}"


@pytest.mark.parametrize("path", sorted((SOURCE / "log").glob("*.py")), ids=name_of)
def test_the_log_takes_time_and_randomness_from_its_clock(path: Path) -> None:
    for line, module in imports(path):
        top = module.split(".")[0]
        if (name_of(path), top) not in LOG_MAY:
            assert top not in LOG_NEVER, f"{name_of(path)}:{line} imports {module}; take a Clock instead"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today", "urandom"):
            pytest.fail(f"{name_of(path)}:{node.lineno} asks for {node.attr}; take a Clock instead")


@pytest.mark.parametrize("path", sorted((SOURCE / "rules").glob("*.py")), ids=name_of)
def test_rules_decide_and_never_touch_files_or_clocks(path: Path) -> None:
    for line, module in imports(path):
        where = f"{name_of(path)}:{line} imports {module}"
        assert module.split(".")[0] not in RULES_NEVER, f"{where}; take what is needed as an argument"
        if module.startswith((f"{PACKAGE}.log", f"{PACKAGE}.storage")):
            assert any(module == known or module.startswith(f"{known}.") for known in RULES_MAY), where
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input"), f"{name_of(path)}:{node.lineno} does I/O"


def test_the_table_in_contributing_is_true() -> None:
    told: dict[str, int] = {}
    packages: dict[str, str] = {}
    for line in (REPOSITORY / "CONTRIBUTING.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0].isdigit():
            for part in re.findall(r"`(\w+)`", cells[1]):
                told[part], packages[part] = int(cells[0]), cells[2]
    assert told == LAYERS
    for part, allowed in MAY_IMPORT.items():
        missing = [package for package in allowed if package not in packages[part]]
        assert not missing, f"CONTRIBUTING.md does not say that {part} may import {missing}"


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if not path.name.startswith(("_", "."))}
    parts.discard("py.typed")
    assert parts - {"testing"} == set(LAYERS)


def test_no_module_imports_itself_through_others() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources():
        module = ".".join((PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        graph[module] = {name for _, name in imports(path, at_import=True) if name.startswith(PACKAGE)}
    edges = {
        module: {name if name in graph else name.rpartition(".")[0] for name in names} & graph.keys() - {module}
        for module, names in graph.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for after in sorted(edges[module]):
                visit(after, (*trail, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


def all_files() -> list[Path]:
    files = []
    for top in (PACKAGE, "benchmarks", "datasource", "jobs"):
        files += sorted((REPOSITORY / top).rglob("*.py"))
    return files


def test_files_are_at_most_500_lines_long() -> None:
    for path in all_files():
        name = path.relative_to(REPOSITORY).as_posix()
        lines = len(path.read_text().splitlines())
        assert lines <= FILE_LINES_MAX or name in LONG_FILES, f"{name} has {lines} lines; split it"


def test_functions_are_at_most_70_lines_long() -> None:
    for path in sources():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                name = f"{name_of(path)}:{node.name}"
                assert lines <= FUNCTION_LINES_MAX or name in LONG_FUNCTIONS, f"{name} has {lines} lines; split it"


def test_files_are_named_after_what_they_do() -> None:
    assert [path for path in sources() if path.name in VAGUE_NAMES] == []


def test_the_front_of_a_package_only_names_things() -> None:
    for path in sources():
        if path.name == "__init__.py":
            defined = [node for node in parse(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            assert not defined, f"{name_of(path)} defines {defined[0].name}; only re-export there"


@pytest.mark.parametrize("module", ["rmq_spark", "rmq_spark.storage.open", "rmq_spark.log.verify"])
def test_importing_the_library_loads_no_optional_package(module: str) -> None:
    optional = "pyspark grpc typer rich click hdfs_native obstore deltalake duckdb polars boto3 moto pytest hypothesis"
    code = f"import sys, {module}; print(sorted(set({optional.split()!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"
