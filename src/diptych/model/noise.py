"""A tiny checkpoint of random weights in the released format, until a trained one exists.

Its configuration and tokenizer come from `assets/noise`; its text is noise. Every tensor is drawn
on its own, from independent normals with the mean and spread that `RULES` gives for its name.
"""

import fnmatch
import hashlib
import json
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from diptych.model.checkpoint import INDEX_FILE
from diptych.model.inventory import Entry, Storage, inventory
from diptych.model.manifest import write_sums
from diptych.model.quant import FP8_G32, MXFP4_G32, encode_fp8_blocks
from diptych.model.spec import CONFIG_FILE, ModelSpec
from diptych.model.weights import scale_name

NUM_SHARDS = 2

# The first pattern that fits a name gives (mean, spread). A spread below is the standard deviation;
# for the matrices of GAINS it is divided by the square root of the input width.
RULES = {
    "*norm*.weight": (1.0, 0.15),
    "*.[qk]_weight": (1.0, 0.2),
    "*hc_*_scale": (0.85, 0.15),
    "*hc_*_base": (0.0, 0.4),
    "*.attn_sink": (0.0, 0.6),
    "*.gate.bias": (0.0, 0.2),
    "*.gate.bias_vl": (0.0, 0.4),
    "*.bias": (0.0, 0.1),
    "*embed.weight": (0.0, 1.0),
    "image_*": (0.0, 1.0),
}
GAINS = {
    "head.weight": 2.5,
    "*.wo_b.weight": 0.3,
    "*.wo_a.weight": 1.5,
    "*.indexer.wq_b.weight": 1.0,
    "*.wq_b.weight": 1.6,
    "*.wgate.weight": 1.5,
    "*.weights_proj.weight": 2.0,
    "*.gate.weight": 1.5,
    "*.markov_head.head.weight": 1.5,
    "*": 1.0,
}


def write(folder: Path | str, seed: int = 0) -> Path:
    """Make the checkpoint folder: all of it or nothing, and the same bytes for the same seed.

    It appears under its name only when it is complete. A folder that is already there is kept.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for asset in (resources.files("diptych") / "assets" / "noise").iterdir():
            (draft / asset.name).write_bytes(asset.read_bytes())
        _write_shards(draft, draw(ModelSpec.load(draft), seed))
        write_sums(draft)
        draft.chmod(0o755)
        for file in draft.iterdir():
            file.chmod(0o644)
        os.rename(draft, folder)
    except OSError:
        if not (folder / CONFIG_FILE).exists():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def draw(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """All stored tensors of a model, drawn from `seed`."""
    stored: dict[str, Tensor] = {}
    for name, entry in inventory(spec).items():
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
        normals = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        mean, spread = _distribution(name, entry.shape)
        values = normals.standard_normal(entry.shape, dtype=np.float32) * spread + mean
        stored |= store(name, entry, torch.from_numpy(values))
    return stored


def store(name: str, entry: Entry, values: Tensor) -> dict[str, Tensor]:
    """A tensor, and its scales if it has some, in the released format."""
    if entry.storage is Storage.F32:
        return {name: values.float()}
    if entry.storage is Storage.BF16:
        return {name: values.to(torch.bfloat16)}
    if entry.storage is Storage.FP8:
        data, scales = encode_fp8_blocks(values)
    else:
        rows = MXFP4_G32 if entry.storage is Storage.FP4 else FP8_G32
        data, scales = rows.encode(values)
    dtype = torch.int8 if entry.storage is Storage.FP4 else torch.float8_e4m3fn
    return {name: data.view(dtype), scale_name(name): scales.view(torch.float8_e8m0fnu)}


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    for pattern, rule in RULES.items():
        if fnmatch.fnmatchcase(name, pattern):
            return rule
    gain = next(g for pattern, g in GAINS.items() if fnmatch.fnmatchcase(name, pattern))
    return 0.0, gain * shape[-1] ** -0.5


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Shards of about equal size, and the index that says what lies where."""
    total = sum(t.nbytes for t in tensors.values())
    shards: list[dict[str, Tensor]] = [{} for _ in range(NUM_SHARDS)]
    weight_map, written = {}, 0
    for name, tensor in tensors.items():
        number = min(written * NUM_SHARDS // total, NUM_SHARDS - 1)
        shards[number][name] = tensor.contiguous()
        weight_map[name] = f"model-{number + 1:05}-of-{NUM_SHARDS:05}.safetensors"
        written += tensor.nbytes
    for number, shard in enumerate(shards):
        file = folder / f"model-{number + 1:05}-of-{NUM_SHARDS:05}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1, sort_keys=True))
