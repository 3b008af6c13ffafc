"""A proxy in a process of its own, for tests: `python proxy_main.py STORE SETTINGS` (JSON); says where it listens."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_spark.client.store import Store
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.proxy import Proxy, ProxySettings, serve

PATHS = ("access_log", "tls_cert", "tls_key", "tls_client_ca")


def main(uri: str, options: dict[str, Any]) -> None:
    # Errors go to stderr, which the tests look at: a traceback there fails them.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    settings = ProxySettings(listen="127.0.0.1:0")
    changed = {name: Path(value) if name in PATHS else value for name, value in options.items()}
    changed = {name: tuple(value) if isinstance(value, list) else value for name, value in changed.items()}

    def ready(proxy: Proxy) -> None:
        print(json.dumps({"port": proxy.port, "metrics": proxy.metrics_port}), flush=True)

    with Store.open(uri, settings=LogSettings(flush=Flush.ASYNC), create=True) as store:
        serve(store, replace(settings, **changed), ready=ready)
    print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
