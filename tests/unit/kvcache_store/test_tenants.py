"""Tenants' keys and what is left when they are deleted."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.kvcache_store.tenants import Receipt, Tenants

KEY = b"master key"


def test_a_tenant_keeps_its_group_and_key_over_restarts(tmp_path: Path) -> None:
    first = Tenants(tmp_path, KEY, encrypt=True)
    admission = first.admit("alice")
    again = Tenants(tmp_path, KEY, encrypt=True)
    assert again.admit("alice").group == admission.group
    assert again.key_of(admission.group) == first.key_of(admission.group) is not None
    assert again.name_of(admission.group) == "alice"
    (path,) = tmp_path.glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_group_says_nothing_without_the_master_key(tmp_path: Path) -> None:
    one = Tenants(tmp_path / "1", KEY, encrypt=False)
    other = Tenants(tmp_path / "2", b"another", encrypt=False)
    assert one.group_of("alice") != other.group_of("alice")
    assert one.group_of("alice") != one.group_of("bob")


def test_a_deleted_tenants_key_is_gone_from_memory_and_disk(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path, KEY, encrypt=True)
    admission = tenants.admit("alice")
    key = tenants.key_of(admission.group)
    assert key is not None
    assert tenants.forget("alice")
    assert tenants.key_of(admission.group) != key
    assert not tenants.is_current(admission)
    assert not tenants.is_known(admission.group)
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.hex().encode() not in left
    new = tenants.admit("alice")
    assert new.group == admission.group
    assert tenants.key_of(new.group) != key
    assert tenants.is_current(new)
    assert not tenants.is_current(admission)  # what was begun before stays refused


def test_without_encryption_there_are_records_and_no_keys(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path, KEY, encrypt=False)
    admission = tenants.admit("alice")
    assert tenants.key_of(admission.group) is None
    assert not tenants.forget("alice")
    assert not Tenants(tmp_path, KEY, encrypt=False).is_known(admission.group)


def test_encryption_that_is_switched_on_later_holds_for_known_tenants(tmp_path: Path) -> None:
    group = Tenants(tmp_path, KEY, encrypt=False).admit("alice").group
    tenants = Tenants(tmp_path, KEY, encrypt=True)
    tenants.admit("alice")
    key = tenants.key_of(group)
    assert key is not None
    assert Tenants(tmp_path, KEY, encrypt=True).key_of(group) == key


def test_a_receipt_cannot_be_altered(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path, KEY, encrypt=True)
    receipt = tenants.file_receipt(Receipt("r-1", "alice", "store-1", 1, True, 2, 3, 4, 5))
    assert receipt.is_genuine(KEY)
    assert not receipt.is_genuine(b"another")
    assert not replace(receipt, parts=0).is_genuine(KEY)
    (line,) = (tmp_path / "receipts.jsonl").read_text().splitlines()
    assert Receipt(**json.loads(line)) == receipt


@pytest.mark.parametrize("text", ["", "{}", '{"tenant": "alice", "key": "xyz"}', "[]"])
def test_a_damaged_record_stops_the_start_and_names_itself(tmp_path: Path, text: str) -> None:
    tenants = Tenants(tmp_path, KEY, encrypt=False)
    path = tmp_path / f"{tenants.group_of('alice').hex()}.json"
    path.write_text(text)
    with pytest.raises(Misconfigured, match=f"{path.name} is damaged"):
        Tenants(tmp_path, KEY, encrypt=False)


def test_records_of_another_master_key_are_refused(tmp_path: Path) -> None:
    Tenants(tmp_path, KEY, encrypt=False).admit("alice")
    with pytest.raises(Misconfigured, match="another master key"):
        Tenants(tmp_path, b"another", encrypt=False)
