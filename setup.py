"""Compiles the inner parts of a call when that is possible; without it the same sources run as plain Python.

`SLIPFORM_PURE=1` skips it. Everything else about the package is in pyproject.toml. A compiled module shadows its
source: after an edit build again (`pip install -e .`) or delete the `.so` files (`make clean`). Why a build is not
compiled goes into `build.json` inside the package, where `slipform --version` reads it (build_info.py).

Only an editable install writes into the checkout: a wheel is put together under `build/`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

COMPILED = [
    # The incremental parser and its resolver: a sixth of the time a chunk (`bench.text_stream`: 0.11 to 0.24).
    "src/slipform/text/parser.py",
    "src/slipform/text/resolve.py",
    "src/slipform/text/resolve_plan.py",
    "src/slipform/text/snapshots.py",
    "src/slipform/text/tree.py",
    # The scanner and the tracker of what may follow, which live streams share with the parser: an enforced stream
    # through the proxy takes 0.59 of the time with these, the parser and those below.
    "src/slipform/text/scanner.py",
    "src/slipform/text/scanner_lenient.py",
    # Follows the scanner, and so has to be compiled with it.
    "src/slipform/text/lifted.py",
    "src/slipform/text/tracker.py",
    "src/slipform/text/tracker_facts.py",
    "src/slipform/enforce/live_calls.py",
    "src/slipform/enforce/release.py",
    "src/slipform/enforce/stream.py",
    # The repair and `loads` (`bench.text_repair`): half the time for texts full of backslashes, 0.59 for open comments,
    # 0.85 for 100 KB in a fence, 0.92 to 1.0 for the rest, where regular expressions do the work. What finds the JSON:
    # 0.6 to 0.85 for 1 KB, 0.9 to 1.0 for 10 KB. `reasoning` is not here: mypyc writes C for it that gcc refuses.
    "src/slipform/text/candidates.py",
    "src/slipform/text/loads.py",
    "src/slipform/text/loads_search.py",
    "src/slipform/text/repair/fast_paths.py",
    "src/slipform/text/repair/machine.py",
    "src/slipform/text/repair/scalars.py",
    "src/slipform/text/repair/strings.py",
    "src/slipform/text/repair/structure.py",
    "src/slipform/text/repair/tokens.py",
    "src/slipform/text/repair/values.py",
    "src/slipform/text/strict.py",
    "src/slipform/text/surroundings.py",
    "src/slipform/text/work.py",
    # Events of Chat Completions, read and written: 0.82 of the time a chunk (`bench.codecs`).
    "src/slipform/codecs/answer.py",
    "src/slipform/codecs/framing.py",
    "src/slipform/codecs/openai_chat/decode.py",
    "src/slipform/codecs/openai_chat/serve_encode.py",
    "src/slipform/codecs/stream_decoder.py",
]
"""Only what a benchmark shows a gain for, compiled beside plain in the same run. Not worth it: the loop, endpoints and
the other codecs (calls that come whole: 1.07).

No module with a coroutine: compiled ones hand an exception on in three pieces, which not every awaitable takes.

And none that defines a `msgspec.Struct`: compiled, a class loses its arguments (`frozen=True`).
"""
PACKAGE = Path("src/slipform")
BUILDS = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}


def remove_compiled(root: Path) -> None:
    """Delete compiled modules under `root`: one of them alone, or one older than its source, would do harm."""
    for built in (*root.rglob("*.so"), *root.rglob("*.pyd")):
        built.unlink()


def record(package: Path, plain_because: str | None) -> None:
    """Write into the package why it is not compiled; None when it is."""
    (package / "build.json").write_text(json.dumps({"plain_because": plain_because}) + "\n", encoding="utf-8")


def go_on_plain(reason: str) -> str:
    """Tell whoever builds that it goes on without, and why, in one line; gives that line."""
    reason = " ".join(reason.split())[:300]
    print(f"slipform: not compiled, running as plain Python ({reason})", file=sys.stderr)  # noqa: T201
    return reason


def in_few_words(error: BaseException) -> str:
    """What went wrong, without the dozens of words of the command that did: those are in the build's output."""
    for each in (error, error.__cause__, error.__context__):
        if isinstance(each, CalledProcessError):
            return f"{each.cmd[0]} ended with {each.returncode}"
    return str(error)


def compiler_failure() -> str | None:
    """Return why no C compiler can build an extension here, or None: C is only generated where one can."""
    from distutils.ccompiler import new_compiler  # setuptools provides it
    from distutils.sysconfig import customize_compiler

    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe;\n", encoding="utf-8")
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.compile([str(source)], output_dir=folder, include_dirs=[include])
        except Exception as error:  # noqa: BLE001 — whatever went wrong, plain Python works
            return in_few_words(error)
    return None


def translated() -> tuple[list[Any], str | None]:
    """Return the modules in C, or why there are none; both are empty where nothing is being built."""
    if not BUILDS.intersection(sys.argv):
        return [], None
    if os.environ.get("SLIPFORM_PURE"):
        return [], go_on_plain("built with SLIPFORM_PURE=1")
    if sys.implementation.name != "cpython":
        return [], go_on_plain(f"built for {sys.implementation.name}, and only CPython takes compiled modules")
    if (failure := compiler_failure()) is not None:
        return [], go_on_plain(f"no C compiler works here: {failure}")
    printed = io.StringIO()
    try:
        from mypyc.build import mypycify

        with contextlib.redirect_stdout(printed):  # it prints its errors, and ends the process with a bare number
            options = ["--follow-imports=silent", *COMPILED]
            # -O1 runs as fast as -O3 (0.98 to 1.02 in one run) and takes 0.6 of the compile time.
            return list(mypycify(options, opt_level="1", debug_level="0", multi_file=True)), None
    except (Exception, SystemExit) as error:  # noqa: BLE001 — whatever went wrong, plain Python works
        print(printed.getvalue(), end="")  # noqa: T201
        said = next((line for line in printed.getvalue().splitlines() if ": error:" in line), str(error))
        return [], go_on_plain(f"mypyc failed: {said}")


class RecordedBuild(build_py):
    """Copies the modules, and records beside the copies why they are not compiled."""

    plain_because: str | None = None

    def run(self) -> None:
        """Copy and record; an editable install has no copies, so its record is in the checkout."""
        super().run()
        editable = getattr(self, "editable_mode", False)
        if editable:
            remove_compiled(PACKAGE)
        package = PACKAGE if editable else Path(self.build_lib, "slipform")
        package.mkdir(parents=True, exist_ok=True)
        record(package, self.plain_because)


class AllOrNothing(build_ext):
    """Builds all compiled modules or none, because they rely on each other; with all cores."""

    def finalize_options(self) -> None:
        """As many modules at a time as there are cores."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        """Build; the sources of one extension, too, are compiled at the same time."""
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], **given: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [each for made in pool.map(lambda one: compile_some([one], **given), sources) for each in made]

        self.compiler.compile = compile_all
        super().build_extensions()

    def run(self) -> None:
        """Build; on any failure go on without, as a package of plain Python."""
        package = PACKAGE if self.inplace else Path(self.build_lib, "slipform")
        try:
            super().run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 — whatever went wrong, plain Python works
            why = go_on_plain(f"the compiler failed: {in_few_words(error)}")
            for root in (package, Path(self.build_lib)):
                remove_compiled(root)
            self.extensions = []
            self.distribution.ext_modules = []
            wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
            if wheel is not None:
                wheel.root_is_pure = True
            if package.is_dir():
                record(package, why)


modules, RecordedBuild.plain_because = translated()
setup(ext_modules=modules, cmdclass={"build_ext": AllOrNothing, "build_py": RecordedBuild})
