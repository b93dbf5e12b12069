"""Name the add-ons' providers, collectors, settings and commands, and load one on demand.

The core imports no add-on: it finds them here, as `module:name`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

PROVIDERS: Final = {
    "local": "slipform.providers.embedded:ADD_ON",
    "transformers": "slipform.providers.transformers:ADD_ON",
}
"""Records of `ProviderAddOn`, by the provider's name."""
EVIDENCE: Final = "slipform.evidence.collect:COLLECTOR"
"""The `Collector` of evidence."""
BLOCKS: Final = {
    "server": "slipform.proxy.settings:ServerSettings",
    "cache": "slipform.proxy.settings:Cache",
    "ledger": "slipform.proxy.settings:LedgerSettings",
    "signatures": "slipform.proxy.settings:Signatures",
    "stored_responses": "slipform.proxy.settings:StoredResponses",
    "fetch": "slipform.proxy.settings:FetchSettings",
}
"""The add-ons' blocks of slipform.yaml, in the order of `slipform init`."""
COMMANDS: Final = {
    "ask": "slipform.cli.ask:ask",
    "fix": "slipform.cli.fix:fix",
    "check": "slipform.cli.schema:check",
    "ground": "slipform.cli.ground:ground",
    "schema": "slipform.cli.schema:schema",
    "models": "slipform.cli.models:models",
    "init": "slipform.cli.settings:init",
    "doctor": "slipform.cli.doctor:doctor",
    "serve": "slipform.cli.serve:serve",
    "console": "slipform.cli.serve:console",
    "keys": "slipform.cli.serve:app",
    "spend": "slipform.cli.spend:spend",
    "import": "slipform.cli.import_config:app",
    "run": "slipform.cli.batch:run",
    "batch": "slipform.cli.batch:batch",
    "extract": "slipform.addons.records.command:extract",
    "review": "slipform.cli.review:review",
    "eval": "slipform.cli.evaluate:evaluate",
}
"""All commands, in the order of `slipform --help`."""


def load(target: str) -> Any:
    """Import what `module:name` names.

    >>> load("slipform.errors:ConfigError").__name__
    'ConfigError'
    """
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
