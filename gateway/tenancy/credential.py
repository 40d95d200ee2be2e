"""The spelling of an API key, `sk-<id>-<secret><checksum>`, and what is kept of it. Pure.

The id is public: logs and the admin API show it. The secret has 256 bits, so a fast keyed hash
under a pepper is all that is stored; the checksum turns typing errors away without a look-up.
"""

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
ID_CHARS = 12
SECRET_CHARS = 43
CHECK_CHARS = 6
LAST_CHARS = 4

_FORM = re.compile(rf"sk-([0-9A-Za-z]{{{ID_CHARS}}})-([0-9A-Za-z]{{{SECRET_CHARS + CHECK_CHARS}}})")


@dataclass(frozen=True, slots=True)
class Credential:
    """A key as its owner holds it."""

    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Credential({self.key_id})"  # whatever logs it, the secret is not there

    @property
    def text(self) -> str:
        """What a client sends."""
        return f"sk-{self.key_id}-{self.secret}{_checksum(self.key_id, self.secret)}"

    @property
    def last(self) -> str:
        """The end of the text, by which an owner recognises it."""
        return self.text[-LAST_CHARS:]

    def digest(self, pepper: bytes) -> bytes:
        """What is stored in the secret's place."""
        return hmac.digest(pepper, self.secret.encode(), "sha256")


def issue(key_id: str | None = None) -> Credential:
    """A new secret; for a new key unless an id is given."""
    return Credential(key_id or _draw(ID_CHARS), _draw(SECRET_CHARS))


def parse(text: str) -> Credential | None:
    """None unless the text can be a key of ours."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    key_id, tail = match.groups()
    secret, check = tail[:SECRET_CHARS], tail[SECRET_CHARS:]
    is_right = hmac.compare_digest(check, _checksum(key_id, secret))
    return Credential(key_id, secret) if is_right else None


def _checksum(key_id: str, secret: str) -> str:
    digest = hashlib.sha256(f"sk-{key_id}-{secret}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    chars = []
    for _ in range(CHECK_CHARS):
        number, digit = divmod(number, len(ALPHABET))
        chars.append(ALPHABET[digit])
    return "".join(chars)


def _draw(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))
