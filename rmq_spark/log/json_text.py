"""JSON of the file format (docs/format.md): by orjson where that is installed, else by json, with the same bytes.

Every commit has a metadata document. orjson (the extra `fast`) writes that of one message in a tenth of the time.
Documents hold texts, whole numbers, lists and objects; of anything else, floats for one, the two would not write the
same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

__all__ = ["json_text"]

_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_DELETE: Final = b"\x7f"


def plain_text(doc: dict[str, Any]) -> bytes:
    """`doc` as the standard library writes it: compact, with everything escaped that is not printable ASCII."""
    return _JSON.encode(doc).encode()


def _choose() -> Callable[[dict[str, Any]], bytes]:
    try:
        import orjson  # an extra: the core works without it
    except ImportError:
        return plain_text

    def text(doc: dict[str, Any]) -> bytes:
        try:
            data = orjson.dumps(doc)
        except orjson.JSONEncodeError:  # half a surrogate pair, or a number of over 64 bits
            return plain_text(doc)
        # orjson escapes fewer characters than json; few documents hold any of these.
        return data if data.isascii() and _DELETE not in data else plain_text(doc)

    return text


json_text: Final = _choose()
"""A document as it stands in a file."""
