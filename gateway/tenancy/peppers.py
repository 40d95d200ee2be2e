"""The peppers under which secrets are hashed: given, or made once in the data folder.

Newest first; a key names the pepper of its hash by fingerprint. To rotate, put a new one first and
keep the old ones until every key was rotated.
"""

import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy import privatefile

PEPPER_BYTES = 32
MIN_CHARS = 16
FILE = "key_pepper"


@dataclass(frozen=True, slots=True)
class Peppers:
    """All that are in use. Their repr shows fingerprints only."""

    _all: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"Peppers({', '.join(map(fingerprint, self._all))})"

    @property
    def newest(self) -> bytes:
        return self._all[0]

    def find(self, name: str) -> bytes | None:
        """By fingerprint."""
        return next((pepper for pepper in self._all if fingerprint(pepper) == name), None)


def fingerprint(pepper: bytes) -> str:
    """Names a pepper and tells nothing about it."""
    return hmac.digest(pepper, b"diptych pepper v1", "sha256")[:4].hex()


def load(given: str | None, data_dir: Path) -> Peppers:
    """From the setting (comma-separated, newest first), else from the file, else made now."""
    if given is not None:
        return _checked(given.split(","), "DIPTYCH_KEY_PEPPER")
    path = data_dir / FILE
    privatefile.make(path, secrets.token_hex(PEPPER_BYTES) + "\n")
    return _checked(privatefile.read(path).splitlines(), str(path))


def _checked(texts: list[str], where: str) -> Peppers:
    peppers = [text.strip() for text in texts if text.strip()]
    if not peppers or min(map(len, peppers)) < MIN_CHARS:
        raise Misconfigured(
            f"{where}: expected one or more peppers of {MIN_CHARS} characters or more, newest first"
        )
    return Peppers(tuple(pepper.encode() for pepper in peppers))
