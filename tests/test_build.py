"""What is built is compiled, and what is not compiled says why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from slipform.build_info import build_of

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources as somebody who fetched them has them, with nothing built."""
    return copied_sources(tmp_path)


def copied_sources(folder: Path) -> Path:
    """Copy what a build needs of this checkout, with nothing built."""
    copied = folder / "tree"
    unbuilt = shutil.ignore_patterns("*.so", "*.pyd", "*.egg-info", "__pycache__", "build.json")
    shutil.copytree(ROOT / "src", copied / "src", ignore=unbuilt)
    for name in NEEDED:
        shutil.copy(ROOT / name, copied)
    return copied


def in_setup_py(tree: Path, code: str, *, command: str = "", **variables: str) -> str:
    """What `code` prints after setup.py has run where nothing is being built.

    In a process of its own: setuptools replaces distutils when it is first imported,
    and can not where a test that ran before has imported the standard library's.
    """
    script = f"""
import runpy, sys, setuptools
setuptools.setup = lambda **_: None
sys.argv = ["setup.py"]
setup_py = runpy.run_path("setup.py")
sys.argv = ["setup.py", {command!r}]
{textwrap.dedent(code)}
"""
    environment = {name: value for name, value in os.environ.items() if name != "SLIPFORM_PURE"} | variables
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def recorded(package: Path) -> str:
    return build_of("strict.py", package / "build.json").reason


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_built_in_isolation_is_compiled_and_says_so(tree: Path, tmp_path: Path) -> None:
    ours = {"PYTHONPATH", "SLIPFORM_PURE", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    low_priority = [found] if (found := shutil.which("nice")) else []
    command = [*low_priority, sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--wheel-dir", str(tmp_path)]
    made = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = tmp_path.glob("slipform-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    package = tmp_path / "installed" / "slipform"
    names = set(re.findall(r'^    "src/slipform/(.+)\.py",$', (tree / "setup.py").read_text(), re.MULTILINE))
    built = {each.relative_to(package).as_posix().partition(".")[0] for each in package.rglob("*.so")}
    assert names
    assert names <= built
    assert json.loads((package / "build.json").read_text()) == {"plain_because": None}
    ask = [sys.executable, "-m", "slipform", "--version"]
    there = {**environment, "PYTHONPATH": str(package.parent)}
    said = subprocess.run(ask, cwd=tmp_path, env=there, capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("(compiled)")


def recipe(folder: Path, target: str) -> str:
    """What `make` would do for a target, with a `.venv` of this folder."""
    command = ["make", "--dry-run", f"VENV={folder}", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_make_builds_once_for_all_its_targets_and_again_when_a_source_changed(tmp_path: Path) -> None:
    build = "install --quiet --constraint constraints.txt --no-deps --editable ."
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    for target in ("run", "docs", "test", "bench"):
        assert recipe(tmp_path, target).count(build) == 1
    (tmp_path / ".built").touch()
    for target in ("run", "docs", "test", "bench"):
        assert build not in recipe(tmp_path, target)
        assert ".ci/requirements.py" in recipe(tmp_path, target)
    os.utime(tmp_path / ".built", (0, 0))
    assert build in recipe(tmp_path, "docs")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not here")
def test_make_run_says_what_it_does_before_each_step(tmp_path: Path) -> None:
    printed = recipe(tmp_path / "none", "run").splitlines()
    lines = [line for line in printed if not line.startswith("make[")]  # which a make inside another says of itself
    steps = [index for index, line in enumerate(lines) if line.startswith('echo "')]
    first_words = [lines[index].split()[1].strip('"') for index in steps]
    assert first_words == ["Creating", "Installing", "Installing", "Starting"]
    assert steps[0] == 0
    assert "make compile" in lines[steps[1]]
    assert "Compiling" in recipe(tmp_path / "none", "compile")


def test_what_make_installs_is_what_the_extras_name() -> None:
    command = [sys.executable, ".ci/requirements.py", "ray", "server"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {re.split(r"[\[<>=;]", line)[0] for line in listed}
    assert {"pydantic", "pyarrow", "ray", "prometheus-client"} <= names
    assert "slipform" not in names
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"plain_because": "built with SLIPFORM_PURE=1"}', "built with SLIPFORM_PURE=1"),
        ('{"plain_because": null}', "the compiled modules were deleted after the build"),
        ('{"plain_because"', "never built"),
        ("[]", "never built"),
        (None, "never built"),
    ],
)
def test_the_module_is_believed_before_the_record(tmp_path: Path, record: str | None, reason: str) -> None:
    file = tmp_path / "build.json"
    if record is not None:
        file.write_text(record)
    plain = build_of("/somewhere/strict.py", file)
    assert not plain.compiled
    assert reason in str(plain)
    assert str(build_of("/somewhere/strict.abi3.so", file)) == "compiled"


def test_a_build_that_was_told_not_to_compile_says_so(tree: Path) -> None:
    code = "print(setup_py['translated']())"
    assert in_setup_py(tree, code, command="bdist_wheel", SLIPFORM_PURE="1") == "([], 'built with SLIPFORM_PURE=1')"


def test_a_build_without_mypyc_says_so(tree: Path) -> None:
    code = """
    setup_py["translated"].__globals__["compiler_failure"] = lambda: None
    sys.modules["mypyc.build"] = None
    print(setup_py["translated"]())
    """
    assert in_setup_py(tree, code, command="editable_wheel").startswith(
        "([], 'mypyc failed: import of mypyc.build halted"
    )


def test_without_a_c_compiler_no_c_is_generated(tree: Path) -> None:
    code = """
    sys.modules["mypyc.build"] = None
    print(setup_py["translated"]())
    """
    failed = in_setup_py(tree, code, command="bdist_wheel", CC="no-such-compiler")
    assert failed.startswith("([], ")
    assert "no C compiler works here: " in failed
    assert "no-such-compiler" in failed
    assert not (tree / "build").exists()


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder; setuptools writes its own metadata and `build` wherever it builds."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    relative = {each.relative_to(folder).as_posix(): each for each in files}
    return {
        name: file.read_bytes()
        for name, file in relative.items()
        if not name.startswith("build/") and ".egg-info/" not in name and "__pycache__" not in name
    }


def as_an_editable_install(tree: Path) -> None:
    """Put into the checkout what an editable install leaves there."""
    package = tree / "src" / "slipform"
    (package / "build.json").write_text('{"plain_because": null}\n')
    (package / "text" / "scanner.cpython-399-any.so").write_bytes(b"compiled")


RUN_BUILD_PY = """
distribution = setuptools.Distribution({{"packages": ["slipform"], "package_dir": {{"": "src"}}}})
distribution.script_name = "setup.py"
setup_py["RecordedBuild"].plain_because = "a reason"
command = setup_py["RecordedBuild"](distribution)
command.build_lib = "copied"
command.ensure_finalized()
command.editable_mode = {editable}
command.run()
"""


def test_a_wheel_is_recorded_beside_its_copies_and_an_editable_install_in_the_checkout(tree: Path) -> None:
    as_an_editable_install(tree)
    before = contents(tree / "src")
    in_setup_py(tree, RUN_BUILD_PY.format(editable=False))
    assert contents(tree / "src") == before
    assert recorded(tree / "copied" / "slipform") == "a reason"
    in_setup_py(tree, RUN_BUILD_PY.format(editable=True))
    assert recorded(tree / "src" / "slipform") == "a reason"
    assert list(tree.rglob("*.so")) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_without_a_c_compiler_fits_every_platform_and_leaves_the_checkout(tree: Path, tmp_path: Path) -> None:
    as_an_editable_install(tree)
    before = contents(tree)
    ours = {"CC", "PYTHONPATH", "SLIPFORM_PURE", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    folder = tmp_path / "no_compiler"
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--wheel-dir", str(tmp_path)]
    environment["PATH"] = str(folder)
    made = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert contents(tree) == before
    (wheel,) = tmp_path.glob("slipform-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        reason = json.loads(archive.read("slipform/build.json"))["plain_because"]
        names = archive.namelist()
    assert reason.startswith("no C compiler works here: ")
    assert [name for name in names if name.endswith((".so", ".c"))] == []
    assert list((tree / "build").rglob("*.c")) == []


def test_no_compiled_module_defines_records_that_would_not_be_frozen(tree: Path) -> None:
    compiled = [tree / name for name in in_setup_py(tree, "print(*setup_py['COMPILED'], sep='\\n')").splitlines()]
    assert compiled
    assert [path.name for path in compiled if "(msgspec.Struct" in path.read_text(encoding="utf-8")] == []


def test_a_compiler_is_named_without_its_command_line(tree: Path) -> None:
    code = """
    import subprocess
    error = OSError("Command '['cc', '-I/some/where'...]' returned 1")
    error.__cause__ = subprocess.CalledProcessError(1, ["cc", "-I/some/where"])
    print(setup_py["in_few_words"](error))
    """
    assert in_setup_py(tree, code) == "cc ended with 1"


def test_a_compiler_that_fails_leaves_a_plain_wheel_and_the_checkout_alone(tree: Path) -> None:
    as_an_editable_install(tree)
    before = contents(tree / "src")
    (tree / "one.c").write_text("int one;\n")
    package = tree / "build" / "slipform"
    package.mkdir(parents=True)
    code = """
    distribution = setuptools.Distribution({"ext_modules": [setuptools.Extension("one", ["one.c"])]})
    command = setup_py["AllOrNothing"](distribution)
    command.build_lib, command.build_temp = "build", "temporary"
    command.ensure_finalized()
    command.run()
    print(bool(distribution.has_ext_modules()))
    """
    assert in_setup_py(tree, code, CC="no-such-compiler").endswith("False")
    assert recorded(package).startswith("the compiler failed: ")
    assert "no-such-compiler" in recorded(package)
    assert contents(tree / "src") == before


def test_an_editable_install_whose_compiler_fails_is_recorded_in_the_checkout(tree: Path) -> None:
    as_an_editable_install(tree)
    (tree / "one.c").write_text("int one;\n")
    code = """
    distribution = setuptools.Distribution({"ext_modules": [setuptools.Extension("one", ["one.c"])]})
    command = setup_py["AllOrNothing"](distribution)
    command.build_lib, command.build_temp, command.inplace = "build", "temporary", True
    command.ensure_finalized()
    command.run()
    """
    in_setup_py(tree, code, CC="no-such-compiler")
    assert recorded(tree / "src" / "slipform").startswith("the compiler failed: ")
    assert list(tree.rglob("*.so")) == []
