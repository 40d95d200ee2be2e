"""Tenants of a store: their key group, their encryption key, the receipt of their deletion.

A file a tenant, mode 0600: its name and, if segments are encrypted, its key. Segments of a tenant
without a file are nobody's: deletion removes the file first, so that a crash in between finishes
the deletion instead of undoing it.
"""

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from diptych.core.errors import Misconfigured

KEY_BYTES = 32
GROUP_BYTES = 16


@dataclass(frozen=True, slots=True)
class Admission:
    """A tenant's right to store, until it is deleted."""

    tenant: str
    group: bytes
    life: int  # of the tenant in this store; a deletion ends it


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a deletion did. `seal` is an HMAC over the rest under the platform's master key."""

    receipt_id: str
    tenant: str
    node: str
    deleted_s: int
    key_destroyed: bool
    segments: int
    parts: int
    disk_bytes: int
    memory_bytes: int
    seal: str = ""

    def sealed(self, master_key: bytes) -> "Receipt":
        fields = asdict(self) | {"seal": ""}
        text = json.dumps(fields, sort_keys=True).encode()
        mac = hmac.new(master_key, b"receipt/v1" + text, hashlib.sha256).hexdigest()
        return Receipt(**(fields | {"seal": mac}))

    def is_genuine(self, master_key: bytes) -> bool:
        return hmac.compare_digest(self.sealed(master_key).seal, self.seal)


class Tenants:
    """The files of one store."""

    def __init__(self, folder: Path, master_key: bytes, *, encrypt: bool) -> None:
        self._folder = folder
        self._master_key = master_key
        self._encrypt = encrypt
        self._names: dict[bytes, str] = {}
        self._keys: dict[bytes, bytes] = {}
        self._lives: dict[bytes, int] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.glob("*.json"):
            self._load(path)

    def group_of(self, tenant: str) -> bytes:
        """The same on every node that has the master key; says nothing without it."""
        mac = hmac.new(self._master_key, b"group/v1" + tenant.encode(), hashlib.sha256)
        return mac.digest()[:GROUP_BYTES]

    def admit(self, tenant: str) -> Admission:
        """Know a tenant from now on, with a key of its own if segments are encrypted."""
        group = self.group_of(tenant)
        lacks_key = self._encrypt and group not in self._keys
        if group not in self._names or lacks_key:
            key = secrets.token_bytes(KEY_BYTES) if self._encrypt else None
            record = {"tenant": tenant, "key": key.hex() if key else ""}
            _write(self._path(group), json.dumps(record))
            self._names[group] = tenant
            if key is not None:
                self._keys[group] = key
        return Admission(tenant, group, self._lives.get(group, 0))

    def is_current(self, admission: Admission) -> bool:
        """Whether the tenant has not been deleted since."""
        return self._lives.get(admission.group, 0) == admission.life

    def current(self, group: bytes) -> Admission:
        """Of a tenant that was admitted."""
        return Admission(self._names.get(group, ""), group, self._lives.get(group, 0))

    def is_known(self, group: bytes) -> bool:
        return group in self._names

    def key_of(self, group: bytes) -> bytes | None:
        """None: its segments are plain. Of a tenant that has gone, a key that nobody keeps: what
        was on its way to disk when it went is unreadable, too."""
        key = self._keys.get(group)
        return secrets.token_bytes(KEY_BYTES) if key is None and self._encrypt else key

    def name_of(self, group: bytes) -> str:
        return self._names.get(group, "")

    def forget(self, tenant: str) -> bool:
        """Destroy a tenant's key and record, for good; whether there was a key."""
        group = self.group_of(tenant)
        self._lives[group] = self._lives.get(group, 0) + 1
        self._names.pop(group, None)
        had_key = self._keys.pop(group, None) is not None
        path = self._path(group)
        if path.exists():
            with path.open("r+b") as file:  # over the key itself, before the name goes
                file.write(bytes(path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            _sync(self._folder)
        return had_key

    def file_receipt(self, receipt: Receipt) -> Receipt:
        """Seal a receipt and keep a copy."""
        sealed = receipt.sealed(self._master_key)
        path = self._folder / "receipts.jsonl"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(json.dumps(asdict(sealed)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return sealed

    def _path(self, group: bytes) -> Path:
        return self._folder / f"{group.hex()}.json"

    def _load(self, path: Path) -> None:
        try:
            record = json.loads(path.read_text())
            group, key = bytes.fromhex(path.stem), bytes.fromhex(record["key"])
            tenant = str(record["tenant"])
        except (ValueError, KeyError, TypeError):
            raise Misconfigured(
                f"{path} is damaged; expected a tenant's record. Removing it deletes that "
                "tenant's blocks"
            ) from None
        if self.group_of(tenant) != group:
            raise Misconfigured(f"{path} was made under another master key")
        self._names[group] = tenant
        if key:
            self._keys[group] = key


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
