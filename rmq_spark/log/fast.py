"""Check-sums and JSON of the file format (docs/format.md): by the extra `fast` where that is installed.

Else by the standard library, with the same values and the same bytes.

Every byte is check-summed once when it is written and once when it is read. isal does so several times faster than
zlib: 2 MB in 0.17 ms instead of 0.68 ms on the machine of docs/benchmarks.md.

Every commit has a metadata document. orjson writes that of one message in a tenth of the time. Documents hold texts,
whole numbers, lists and objects; of anything else, floats for one, the two would not write the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

try:
    from isal.isal_zlib import crc32  # an extra: the core works without it
except ImportError:
    from zlib import crc32

__all__ = ["crc32", "json_text"]

_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_DELETE: Final = b"\x7f"


def plain_text(doc: dict[str, Any]) -> bytes:
    """`doc` as the standard library writes it: compact, with everything escaped that is not printable ASCII."""
    return _JSON.encode(doc).encode()


def _choose_json() -> Callable[[dict[str, Any]], bytes]:
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


json_text: Final = _choose_json()
"""A document as it stands in a file."""
