"""Kernels run under Triton's interpreter, which must be on before triton is imported.

So these tests are collected only in a process started with TRITON_INTERPRET=1, or by `-m gpu`.
"""

import os
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if INTERPRETED or config.option.markexpr == "gpu" or collection_path.suffix != ".py":
        return None
    return collection_path.name.startswith("test_") or None
