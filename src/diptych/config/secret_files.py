"""Secrets of a platform: given, or made once in its data folder."""

import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from diptych.config.fields import MIN_SECRET_CHARS
from diptych.config.sources import Common
from diptych.core.errors import Misconfigured

SECRET_BYTES = 32


def secrets_of(common: Common) -> tuple[bytes, bytes]:
    """(cluster secret, master key): given, or read from the data folder, or made there once."""
    common.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return (
        _secret(common.cluster_secret, common.data_dir / "cluster_secret"),
        _secret(common.master_key, common.data_dir / "master_key"),
    )


def _secret(given: SecretStr | None, path: Path) -> bytes:
    if given is not None:
        return given.get_secret_value().encode()
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
        try:
            os.link(draft, path)  # whoever links first wins; the others read
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if path.stat().st_mode & 0o077:
        raise Misconfigured(f"{path} can be read by others; expected mode 0600: chmod 600 {path}")
    text = path.read_text().strip()
    if len(text) < MIN_SECRET_CHARS:
        raise Misconfigured(f"{path} holds {len(text)} characters; {MIN_SECRET_CHARS} are needed")
    return text.encode()
