"""The seams: every name leads to an add-on, and none is loaded before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

from slipform import seams
from slipform.enforce.plan import Collector
from slipform.providers.base import ProviderAddOn

ADD_ONS = (
    "slipform.addons",
    "slipform.evidence",
    "slipform.runner",
)


def modules_after(program: str) -> set[str]:
    script = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_seam_leads_to_what_it_names() -> None:
    assert all(isinstance(seams.load(target), ProviderAddOn) for target in seams.PROVIDERS.values())
    assert isinstance(seams.load(seams.EVIDENCE), Collector)
    for target in (*seams.BLOCKS.values(), *seams.COMMANDS.values()):
        assert callable(seams.load(target)), target


def test_importing_slipform_and_printing_its_version_load_no_add_on_and_no_heavy_library() -> None:
    version = "import sys; sys.argv = ['slipform', '--version']; from slipform.cli import main; main()"
    for program in ("import slipform", version):
        modules = modules_after(program)
        assert not modules & {"pydantic", "typer", "yaml", "msgspec"}
        assert not [name for name in modules if name.startswith(ADD_ONS)]


def test_a_schema_and_the_text_tools_load_no_add_on() -> None:
    modules = modules_after("import slipform; slipform.loads('{}'); slipform.Schema.of({'type': 'object'})")
    assert not [name for name in modules if name.startswith(ADD_ONS)]
