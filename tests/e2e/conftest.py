"""One platform as `diptych up` starts it without a flag, for all files that need no other."""

from collections.abc import Iterator

import pytest

from diptych.testing.platform import Platform, platform


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Who changes it changes it back."""
    with platform(tmp_path_factory.mktemp("running")) as started:
        yield started
