"""One platform for all files that strike its processes: starting takes longer than most of them."""

from collections.abc import Iterator

import pytest

from diptych.testing.platform import Platform, platform


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Two prefill and three decode workers, whose blocks and snapshots are small."""
    folder = tmp_path_factory.mktemp("workers")
    config = folder / "small.toml"
    config.write_text("block_tokens = 16\nsnapshot_tokens = 16\n")
    with platform(folder, "--config", str(config), "--prefill", "2", "--decode", "3") as running:
        yield running
