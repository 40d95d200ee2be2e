"""The links that make root folders importable."""

from pathlib import Path

import pytest

import diptych

PACKAGE = Path(diptych.__file__).parent
FOLDERS = (
    "gateway",
    "router",
    "prefill_service",
    "decode_service",
    "vision_encoder",
    "kvcache_store",
    "kernels",
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_root_folder_is_linked_relatively_into_the_package(folder: str) -> None:
    link = PACKAGE / folder
    if not link.is_symlink():
        assert (link / "__init__.py").is_file()  # an installed wheel holds copies
        return
    assert link.readlink() == Path("../..") / folder
    assert (link / "__init__.py").is_file()
