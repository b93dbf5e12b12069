"""Name the add-ons' providers, collectors, settings and commands, and load one on demand.

The core imports no add-on: it finds them here, as `module:name`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

PROVIDERS: Final = {
    "local": "slipform.addons.local:ADD_ON",
    "transformers": "slipform.addons.transformers:ADD_ON",
}
"""Records of `ProviderAddOn`, by the provider's name."""
EVIDENCE: Final = "slipform.addons.evidence.collect:COLLECTOR"
"""The `Collector` of evidence."""
LOGS: Final = "slipform.addons.server.observability.logs:set_up"
"""Sets up the redacted log on standard error."""
BLOCKS: Final = {
    "server": "slipform.addons.server.settings:ServerSettings",
    "cache": "slipform.addons.server.settings:Cache",
    "ledger": "slipform.addons.server.settings:LedgerSettings",
    "signatures": "slipform.addons.server.settings:Signatures",
    "stored_responses": "slipform.addons.server.settings:StoredResponses",
    "fetch": "slipform.addons.server.settings:FetchSettings",
}
"""The add-ons' blocks of slipform.yaml, in the order of `slipform init`."""
COMMANDS: Final = {
    "ask": "slipform.cli.ask:ask",
    "fix": "slipform.cli.fix:fix",
    "check": "slipform.cli.schema:check",
    "ground": "slipform.addons.evidence.command:ground",
    "schema": "slipform.cli.schema:schema",
    "models": "slipform.cli.models:models",
    "init": "slipform.cli.init:init",
    "doctor": "slipform.cli.doctor:doctor",
    "serve": "slipform.addons.server.commands.serve:serve",
    "console": "slipform.addons.server.commands.serve:console",
    "keys": "slipform.addons.server.commands.serve:app",
    "spend": "slipform.addons.server.commands.spend:spend",
    "import": "slipform.cli.import_config:app",
    "run": "slipform.addons.batch.command:run",
    "batch": "slipform.addons.batch.command:batch",
    "extract": "slipform.addons.records.command:extract",
    "review": "slipform.addons.evaluation.review_command:review",
    "eval": "slipform.addons.evaluation.command:evaluate",
}
"""All commands, in the order of `slipform --help`."""


def load(target: str) -> Any:
    """Import what `module:name` names.

    >>> load("slipform.errors:ConfigError").__name__
    'ConfigError'
    """
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
