"""Start the gateway inside TensorZero's wheel: `python -P bench/_tensorzero.py CONFIG FILE`.

For `bench.proxy`. It is run by the Python that has `tensorzero`; the gateway chooses its port, which FILE gets.
"""

import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tensorzero.tensorzero import _start_http_gateway

config, written = sys.argv[1:]
gateway = _start_http_gateway(
    config_file=config, clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
Path(written).write_text(str(urlsplit(gateway.base_url).port))
signal.pause()
