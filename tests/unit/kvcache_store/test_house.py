"""The store's folder."""

from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.kvcache_store.house import House, address_in, is_secure_in


def test_a_house_says_where_its_store_answers_while_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    assert address_in(path) is None
    with House(path) as house:
        house.announce("127.0.0.1:7100")
        assert address_in(path) == "127.0.0.1:7100"
        house.announce("10.0.0.1:7100")
        assert address_in(path) == "10.0.0.1:7100"
    assert address_in(path) is None
    with House(path) as house:
        house.announce("10.0.0.1:7100", is_secure=True)
        assert (address_in(path), is_secure_in(path)) == ("10.0.0.1:7100", True)
        house.announce("10.0.0.1:7100")
        assert not is_secure_in(path)


def test_a_house_has_one_user(tmp_path: Path) -> None:
    with (
        House(tmp_path),
        pytest.raises(Misconfigured, match="in use by another store"),
        House(tmp_path),
    ):
        pass
    with House(tmp_path):
        pass


def test_another_format_is_refused_and_the_lock_let_go(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text("2")
    for _ in range(2):
        with pytest.raises(Misconfigured, match="has format '2'; expected 1"), House(tmp_path):
            pass
    (tmp_path / "FORMAT").unlink()
    with House(tmp_path):
        assert (tmp_path / "FORMAT").read_text() == "1\n"


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(Misconfigured, match="expected a writable folder"),
        House(tmp_path / "file" / "cache"),
    ):
        pass
