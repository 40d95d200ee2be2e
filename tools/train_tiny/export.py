"""Write a training state as a checkpoint: `python -m train_tiny.export --state FILE --model DIR`.

The folder has the configuration and the tokenizer already; tensors are stored in the released
formats, exactly the values that the end of the training saw.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from diptych.model.checkpoint import SINGLE_FILE
from diptych.model.inventory import inventory
from diptych.model.manifest import write_sums
from diptych.model.noise import store
from diptych.model.spec import ModelSpec


def stored(spec: ModelSpec, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a checkpoint, quantised."""
    tensors: dict[str, Tensor] = {}
    for name, entry in inventory(spec).items():
        if entry.loaded:
            tensors |= store(name, entry, parameters[name].detach().float().cpu())
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="what the training left")
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    options = parser.parse_args()
    state = torch.load(options.state, map_location="cpu", weights_only=True)
    file = options.model / SINGLE_FILE
    tensors = stored(ModelSpec.load(options.model), state["parameters"])
    save_file(tensors, file, metadata={"format": "pt", "steps": str(state["step"])})
    file.chmod(0o644)
    write_sums(options.model)
    print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
