"""Format version 1 had the folded state in the metadata of each segment; such logs stay readable."""

from __future__ import annotations

import binascii
import json
import zlib


def unpack_state(text: str) -> dict[str, bytes]:
    """The payloads of a state by name, as `LogState.load` takes them."""
    payloads = json.loads(zlib.decompress(binascii.a2b_base64(text)))
    return {name: payload.encode() for name, payload in payloads.items()}
