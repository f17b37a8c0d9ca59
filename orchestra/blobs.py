"""Big bodies of a tape beside it, once each, by content: pictures and sound in base64, and whatever
is no text.
"""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path

from orchestra.secrets import scrub_bytes, scrub_json

BASE64_RUN = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{4096,}={0,2}")
BLOB = re.compile(r"blob:(raw:)?((?:raw:)*(text|bytes):([0-9a-f]{64}))")


class Blobs:
    """`pack` and `unpack` are each other's inverse, but for secrets. Not writable: names only."""

    def __init__(self, folder: Path, writable: bool) -> None:
        self.folder, self.writable = folder, writable

    def pack(self, body: bytes) -> str:
        """The body as text, with base64 runs and binary bodies in files. Text that looks like a
        reference to a file is marked as raw. Raises OSError.
        """
        try:
            text = BLOB.sub(r"blob:raw:\1\2", body.decode())
        except UnicodeDecodeError:
            return self._store("bytes", scrub_bytes(body))
        return scrub_json(BASE64_RUN.sub(lambda run: self._store("text", run[0].encode()), text))

    def unpack(self, text: str) -> bytes:
        """Raises FileNotFoundError."""
        whole = BLOB.fullmatch(text)
        if whole and whole[3] == "bytes" and not whole[1]:
            return self._read(whole[4])
        return BLOB.sub(
            lambda m: f"blob:{m[2]}" if m[1] else self._read(m[4]).decode(), text
        ).encode()

    def _read(self, digest: str) -> bytes:
        return (self.folder / digest).read_bytes()

    def _store(self, kind: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        blob = self.folder / digest
        if self.writable and not blob.exists():
            self.folder.mkdir(exist_ok=True)
            part = self.folder / f"{digest}.{threading.get_ident()}"
            part.write_bytes(data)
            part.rename(blob)
        return f"blob:{kind}:{digest}"
