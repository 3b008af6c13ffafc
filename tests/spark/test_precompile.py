"""The archive of pyspark with compiled modules in it: what Spark's Python processes import, without compiling it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from rmq_spark.spark import precompile as module
from rmq_spark.spark.precompile import compile_own, main, precompile

_SOURCES = {
    "pkg/__init__.py": "",
    "pkg/part.py": "VALUE = 41 + 1\n\n\ndef fail():\n    raise ValueError('here')\n",
    "pkg/data.json": "{}",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w") as new:
        for name, text in _SOURCES.items():
            new.writestr(name, text)
    path.chmod(0o640)
    return path


def _run(archive: Path, code: str, zone: str = "UTC") -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(archive), "TZ": zone},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_modules_come_from_what_was_compiled(archive: Path) -> None:
    assert precompile(archive) == 2
    for zone in ("UTC", "Asia/Tokyo"):
        assert _run(archive, "import pkg.part as p; print(p.VALUE, p.__file__[-4:])", zone) == "42 .pyc"


def test_the_rest_is_as_it_was(archive: Path) -> None:
    precompile(archive)
    with zipfile.ZipFile(archive) as found:
        assert {name: found.read(name).decode() for name in _SOURCES} == _SOURCES
    assert archive.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in archive.parent.iterdir()] == ["some.zip"]


def test_tests_are_left_out(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("pkg/tests/__init__.py", "")
        more.writestr("pkg/tests/test_part.py", "def :")
    assert precompile(archive) == 2
    with zipfile.ZipFile(archive) as found:
        assert not [name for name in found.namelist() if "tests" in name]
        assert found.read("pkg/data.json") == b"{}"


def test_an_archive_compiled_with_its_tests_is_made_smaller(archive: Path) -> None:
    precompile(archive)
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("pkg/tests/test_part.py", "")
        more.writestr("pkg/tests/test_part.pyc", importlib.util.MAGIC_NUMBER)
    assert precompile(archive) == 2
    assert precompile(archive) == 0


def test_a_second_time_does_nothing(archive: Path) -> None:
    precompile(archive)
    before = archive.stat()
    assert precompile(archive) == 0
    assert archive.stat().st_ino == before.st_ino


def test_another_python_compiles_anew(archive: Path) -> None:
    precompile(archive)
    with zipfile.ZipFile(archive) as found:
        contents = {name: found.read(name) for name in found.namelist()}
    contents["pkg/part.pyc"] = b"old!" + contents["pkg/part.pyc"][4:]
    with zipfile.ZipFile(archive, "w") as new:
        for name, data in contents.items():
            new.writestr(name, data)
    assert precompile(archive) == 2
    assert _run(archive, "import pkg.part as p; print(p.__file__[-4:])") == ".pyc"


def test_a_source_that_does_not_compile_changes_nothing(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("pkg/bad.py", "def :")
    before = archive.read_bytes()
    with pytest.raises(Exception, match="invalid syntax"):
        precompile(archive)
    assert archive.read_bytes() == before
    assert [path.name for path in archive.parent.iterdir()] == ["some.zip"]


def test_tracebacks_name_the_module(archive: Path) -> None:
    precompile(archive)
    code = "import traceback, pkg.part\ntry: pkg.part.fail()\nexcept ValueError: print(traceback.format_exc())"
    assert "pkg/part.py" in _run(archive, code)


_PYSPARK = {
    "pyspark/__init__.py": '"""Doc."""\nfrom __future__ import annotations\nimport pyspark.part as part\n',
    "pyspark/part.py": "WHERE = 'archive'\n",
}


def _pyspark(folder: Path) -> Path:
    """An archive of a package named pyspark, as pip puts it into the installed package."""
    (folder / "python" / "lib").mkdir(parents=True)
    archive = folder / "python" / "lib" / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as new:
        for name, text in _PYSPARK.items():
            new.writestr(name, text)
    return archive


def test_the_parts_come_from_the_installed_package_around_the_archive(tmp_path: Path) -> None:
    installed = tmp_path / "pyspark"
    archive = _pyspark(installed)
    (installed / "sql").mkdir()
    assert precompile(archive) == 2
    code = "import pyspark; print(pyspark.__doc__, pyspark.part.WHERE)"
    assert _run(archive, code) == "Doc. archive"  # what is installed is not compiled
    (installed / "sql" / "__pycache__").mkdir()
    (installed / "__init__.py").write_text(_PYSPARK["pyspark/__init__.py"])
    (installed / "part.py").write_text("WHERE = 'installed'\n")
    assert _run(archive, code) == "Doc. installed"
    assert precompile(archive) == 0


def test_a_shipped_archive_needs_nothing_else(tmp_path: Path) -> None:
    archive = _pyspark(tmp_path / "pyspark")
    assert precompile(archive) == 2
    assert _run(archive, "import pyspark; print(pyspark.__doc__, pyspark.part.WHERE)") == "Doc. archive"


def test_an_archive_that_was_only_compiled_is_sent_on_too(tmp_path: Path) -> None:
    archive = _pyspark(tmp_path / "pyspark")
    precompile(archive)
    with zipfile.ZipFile(archive) as found:
        contents = {name: found.read(name) for name in found.namelist()}
    contents["pyspark/__init__.py"] = _PYSPARK["pyspark/__init__.py"].encode()
    with zipfile.ZipFile(archive, "w") as new:
        for name, data in contents.items():
            new.writestr(name, data)
    assert precompile(archive) == 2
    assert precompile(archive) == 0


def test_the_installed_pyspark_starts_from_its_directory() -> None:
    """The real one, which `make setup` has treated."""
    home = Path(pyspark.__file__).parent
    code = "import pyspark, pyspark.worker_util as part; print(pyspark.__version__, part.__file__)"
    assert _run(home / "python" / "lib" / "pyspark.zip", code) == f"{pyspark.__version__} {home}/worker_util.py"


def _own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "some_own_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_OWN", ("some_own_package",))
    return package


def test_the_projects_own_modules_are_compiled_although_python_is_told_to_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = _own_package(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    compiled = Path(importlib.util.cache_from_source(str(package / "inner" / "part.py")))
    assert compile_own()
    before = compiled.read_bytes()
    assert compile_own()
    assert compiled.read_bytes() == before
    (package / "inner" / "part.py").write_text("VALUE = 'another'\n")
    os.utime(package / "inner" / "part.py", (0, 0))  # another second: Python looks no closer
    assert compile_own()
    assert compiled.read_bytes() != before


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _own_package(tmp_path, monkeypatch)
    (package / "inner" / "__pycache__").write_text("in the way")
    assert not compile_own()
    assert list((package / "__pycache__").iterdir())  # the others are compiled


def test_the_command_compiles_every_archive_that_spark_puts_on_the_path(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _own_package(tmp_path, monkeypatch)
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "installed" / "__init__.py"))
    assert main() == 0
    assert "nothing to do" in capsys.readouterr().out
    place = tmp_path / "installed" / "python" / "lib"
    place.mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-1.2-src.zip"):
        shutil.copy(archive, place / name)
    assert main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "compiled 2 modules of py4j-1.2-src.zip",
        "compiled 2 modules of pyspark.zip",
    ]
    for name in ("pyspark.zip", "py4j-1.2-src.zip"):
        assert _run(place / name, "import pkg.part as p; print(p.__file__[-4:])") == ".pyc"
    assert main() == 0
    assert "nothing to compile in pyspark.zip" in capsys.readouterr().out
