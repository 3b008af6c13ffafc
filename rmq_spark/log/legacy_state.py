"""Format version 1 had the folded state in the metadata of each segment; such logs stay readable.

Its payloads had no versions, and were named as their folds. A fold that came late was left out while it was empty.
"""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Final

_NOT_FOLDS: Final = ("core", "queues", "commits")
_EMPTY_IF_ABSENT: Final = ("table_leases",)


def unpack_state(text: str) -> dict[str, bytes]:
    """The payloads of a state by name, as `LogState.load` takes them."""
    payloads = json.loads(zlib.decompress(binascii.a2b_base64(text)))
    return upgrade({name: payload.encode() for name, payload in payloads.items()})


def upgrade(payloads: Mapping[str, bytes]) -> dict[str, bytes]:
    """Payloads of format version 1 as today's: those of folds with the version 0."""
    folds = dict.fromkeys(_EMPTY_IF_ABSENT, b"{}")
    folds.update({name: payload for name, payload in payloads.items() if name not in _NOT_FOLDS})
    upgraded = {name: payloads[name] for name in _NOT_FOLDS}
    upgraded.update({f"fold/{name}": b'{"version":0,"state":%b}' % payload for name, payload in folds.items()})
    return upgraded
