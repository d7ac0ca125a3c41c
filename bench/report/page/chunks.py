"""Data in a page: JSON, deflated and in base64, which a browser unpacks when it is looked at.

Base64 has no character that means anything in HTML: whatever a model wrote, no tag begins in it.
The same data gives the same text.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

_LEVEL = 9


def pack(data: Any) -> str:
    """JSON data as the text of a chunk, which ``DecompressionStream("deflate")`` reads."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode("ascii")


def unpack(chunk: str) -> Any:
    """What `pack` was given."""
    return json.loads(zlib.decompress(base64.b64decode(chunk)))
