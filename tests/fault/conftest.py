"""One platform for all files that strike its processes: starting takes longer than most of them."""

from collections.abc import Iterator

import pytest

from diptych.testing.platform import Platform, platform
from diptych.testing.wall import Wall


@pytest.fixture(scope="session")
def wall(tmp_path_factory: pytest.TempPathFactory) -> Wall:
    """The clock on the wall of `workers`."""
    return Wall(tmp_path_factory.mktemp("wall"))


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory, wall: Wall) -> Iterator[Platform]:
    """Two prefill and three decode workers, whose blocks and snapshots are small."""
    folder = tmp_path_factory.mktemp("workers")
    config = folder / "small.toml"
    config.write_text("block_tokens = 16\nsnapshot_tokens = 16\n")
    flags = ("--config", str(config), "--prefill", "2", "--decode", "3")
    with platform(folder, *flags, env=wall.env) as running:
        yield running
