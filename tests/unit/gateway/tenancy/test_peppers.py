"""Where peppers come from."""

import stat
from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy.peppers import fingerprint, load

LONG = "p" * 16


def test_a_pepper_is_made_once_for_the_owner_only(tmp_path: Path) -> None:
    peppers = load(None, tmp_path / "new")
    path = tmp_path / "new" / "key_pepper"
    assert load(None, tmp_path / "new") == peppers
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(peppers.newest) == 64
    assert peppers.newest.decode() not in repr(peppers)


def test_a_new_pepper_goes_first_and_the_old_one_still_counts(tmp_path: Path) -> None:
    old = load(None, tmp_path).newest
    path = tmp_path / "key_pepper"
    path.write_text(f"{LONG}\n{path.read_text()}")
    peppers = load(None, tmp_path)
    assert peppers.newest == LONG.encode()
    assert peppers.find(fingerprint(old)) == old
    assert peppers.find("00000000") is None


def test_given_peppers_are_not_written(tmp_path: Path) -> None:
    assert load(f"{LONG}, {'q' * 20}", tmp_path).newest == LONG.encode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["", "short", f"{LONG},short"])
def test_a_short_pepper_is_refused_by_name(tmp_path: Path, given: str) -> None:
    with pytest.raises(Misconfigured, match="DIPTYCH_KEY_PEPPER"):
        load(given, tmp_path)


def test_a_pepper_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load(None, tmp_path)
    (tmp_path / "key_pepper").chmod(0o640)
    with pytest.raises(Misconfigured, match="chmod 600"):
        load(None, tmp_path)
