"""Sparse attention: kernels against the reference, over the case list the benchmark walks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diptych.kernels import nvcc
from diptych.kernels.sparse_attention import cases, launch, native, reference


def error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("case", cases.SMALL, ids=str)
def test_kernels_match_the_reference(case: cases.Case, shares: int) -> None:
    inputs = case.make()
    out = torch.full_like(inputs[0], torch.nan)
    got = launch.sparse_attention(*inputs, launch.Settings(shares, block=16, asm=False), out)
    assert error(got, reference.sparse_attention(*inputs, dtype=torch.float64)) < 2.5e-3


def test_index_lists_must_fill_blocks() -> None:
    inputs = list(cases.SMALL[0].make())
    inputs[2] = inputs[2][:, :30]
    with pytest.raises(ValueError, match="multiple of 16"):
        launch.sparse_attention(*inputs, launch.Settings(1, block=16, asm=False))


def test_the_form_follows_rows_records_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(native, "is_available", lambda: True)
    few, many = torch.empty(8, 64, 512), torch.empty(2048, 64, 512)
    assert launch.settings_for(few, 40960).explicit
    assert launch.settings_for(many, 40960).native
    assert not launch.settings_for(many, 10**6).native  # widening them all would cost more
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert launch.settings_for(many, 40960).widened
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert launch.settings_for(many, 40960) == launch.Settings(1)


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases.DECODE, ids=str)
def test_kernels_match_at_released_sizes(case: cases.Case) -> None:
    inputs = case.make("cuda")
    out = torch.full_like(inputs[0], torch.nan)
    got = launch.sparse_attention(*inputs, out=out)
    assert error(got, reference.sparse_attention(*inputs, dtype=torch.float64)) < 2.5e-3


def test_a_missing_compiler_is_said_once_and_survived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(nvcc.shutil, "which", lambda _: None)
    native.library.cache_clear()
    native.is_available.cache_clear()
    try:
        assert not native.is_available()
        assert not native.is_available()
    finally:
        native.is_available.cache_clear()
    assert caplog.text.count("no nvcc on PATH") == 1
    with pytest.raises(RuntimeError, match="no nvcc on PATH"):
        native.library()


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho no such target >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(RuntimeError, match=r"nvcc failed on prefill\.cu: no such target"):
        nvcc.build(native.SOURCE)
    assert not list((tmp_path / ".cache" / "diptych").iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["gluon", "cuda"])
def test_the_prefill_forms_match_the_reference(compiled: bool) -> None:
    name = "prefill-301"
    case = replace(cases.PREFILL[0], name=name, rows=301, absent=0.2, empty=True)
    inputs = case.make("cuda")
    out = torch.full_like(inputs[0], torch.nan)
    settings = launch.Settings(1, explicit=True, widened=True, native=compiled, block=64)
    got = launch.sparse_attention(*inputs, settings, out)
    assert error(got, reference.sparse_attention(*inputs, dtype=torch.float64)) < 2.5e-3


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_any_prefill_batch() -> None:
    case = replace(cases.PREFILL[0], name="prefill-bits", rows=300, absent=0.1)
    q, window, window_index, entries, entry_index, sink = case.make("cuda")
    settings = launch.Settings(1, native=True, block=64)

    def attend(rows: slice) -> Tensor:
        return launch.sparse_attention(
            q[rows], window, window_index[rows], entries, entry_index[rows], sink, settings
        )

    whole = attend(slice(None))
    assert torch.equal(whole, attend(slice(None)))
    assert torch.equal(whole[130:140], attend(slice(130, 140)))
