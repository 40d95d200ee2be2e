"""Building CUDA C++ at first use, with a compiler that only writes a file."""

from pathlib import Path

import pytest

from diptych.kernels import nvcc

COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo built >> "$HOME/runs"
echo library > "$2"
"""


def test_a_library_is_built_again_when_its_source_or_a_header_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    folder = tmp_path / "code"
    folder.mkdir()
    source, header = folder / "a.cu", folder / "b.cuh"
    source.write_text("source")
    header.write_text("header")
    libraries = [nvcc.build(source), nvcc.build(source)]
    header.write_text("another header")
    libraries.append(nvcc.build(source))
    source.write_text("another source")
    libraries.append(nvcc.build(source))
    assert libraries[0] == libraries[1]
    assert len(set(libraries)) == 3
    assert all(library.read_text() == "library\n" for library in libraries)
    assert (tmp_path / "runs").read_text().count("built") == 3
