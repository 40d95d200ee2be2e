"""A checkpoint folder on disk: `config.json`, safetensors shards, their headers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diptych.core.errors import Misconfigured

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000  # of a shard; the format's own limit


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as its shard's header describes it."""

    file: Path
    dtype: str  # as safetensors spells it: "F8_E4M3", "BF16", …
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a folder, by name. Opening one maps it; nothing is read before it is used."""

    folder: Path
    tensors: Mapping[str, Stored]

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Read the index and every header; Misconfigured if they are damaged or disagree."""
        folder = Path(folder)
        tensors: dict[str, Stored] = {}
        weight_map = _weight_map(folder)
        for file in _shards(folder, weight_map):
            for name, stored in _parse(_header(file), file).items():
                if name in tensors:
                    raise Misconfigured(f"{file}: {name}: also stored in {tensors[name].file}")
                if weight_map is not None and weight_map.get(name) != file.name:
                    raise Misconfigured(
                        f"{folder / INDEX_FILE}: {name}: expected {file.name}, where it is stored, "
                        f"found {weight_map.get(name)!r}"
                    )
                tensors[name] = stored
        for name, shard in (weight_map or {}).items():
            if name not in tensors:
                raise Misconfigured(f"{folder / shard}: {name}: the index promises it; not found")
        return cls(folder, tensors)

    def read(self, name: str) -> Tensor:
        """A tensor as stored, mapped from its file. FP8 values and scales come as uint8."""
        stored = self.tensors[name]
        try:
            with safe_open(stored.file, "pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise Misconfigured(f"{stored.file}: {name}: {error}") from error
        return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


def weight_files(folder: Path) -> list[Path]:
    """The shards of a folder; Misconfigured if one is missing."""
    return _shards(folder, _weight_map(folder))


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name -> shard name, or None for a folder without an index."""
    path = folder / INDEX_FILE
    if not path.exists():
        return None
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        return {str(name): str(shard) for name, shard in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misconfigured(f"{path}: expected an object `weight_map`: {error!r}") from error


def _shards(folder: Path, weight_map: dict[str, str] | None) -> list[Path]:
    names = [SINGLE_FILE] if weight_map is None else sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise Misconfigured(f"{folder / INDEX_FILE}: {name}: expected a file of this folder")
        if not (folder / name).is_file():
            raise Misconfigured(f"{folder / name}: no such file")
    return [folder / name for name in names]


def _header(file: Path) -> bytes:
    """The raw JSON header of a safetensors file."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        size = int.from_bytes(prefix, "little")
        header = stream.read(size) if len(prefix) == 8 and size <= MAX_HEADER_BYTES else b""
    if not header or len(header) != size:
        raise Misconfigured(f"{file}: not a whole safetensors file")
    return header


def _parse(header: bytes, file: Path) -> dict[str, Stored]:
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        return {
            name: Stored(file, str(entry["dtype"]), tuple(map(int, entry["shape"])))
            for name, entry in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misconfigured(f"{file}: damaged header: {error!r}") from error
