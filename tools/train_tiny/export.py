"""Write a training state as a checkpoint: `python -m train_tiny.export --state FILE --model DIR`.

The folder has the configuration and the tokenizer already; tensors are stored in the released
formats, exactly the values that the end of the training saw. Of several states the mean is taken;
with `--keep SHARE` so much of what the folder holds stays: what a refinement forgot comes back
before what it learnt is lost (weight interpolation, Wortsman et al., 2022).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from diptych.model.checkpoint import SINGLE_FILE
from diptych.model.inventory import inventory
from diptych.model.manifest import write_sums
from diptych.model.noise import store
from diptych.model.spec import ModelSpec
from train_tiny.parameters import stored as stored_parameters


def stored(spec: ModelSpec, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a checkpoint, quantised."""
    tensors: dict[str, Tensor] = {}
    for name, entry in inventory(spec).items():
        if entry.loaded:
            tensors |= store(name, entry, parameters[name].detach().float().cpu())
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def mean(several: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The middle of models that began as one."""
    return {
        name: torch.stack([parameters[name].float() for parameters in several]).mean(0)
        for name in several[0]
    }


def between(old: dict[str, Tensor], new: dict[str, Tensor], keep: float) -> dict[str, Tensor]:
    """So much of the old parameters, the rest of the new."""
    return {name: old[name].float() * keep + value * (1 - keep) for name, value in new.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, nargs="+", required=True, help="training's ends")
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--keep", type=float, default=0.0, help="share of the old weights, 0 to 1")
    options = parser.parse_args()
    if not 0 <= options.keep < 1:
        parser.error(f"--keep {options.keep:g}: expected a share from 0 up to, not including, 1")
    spec, file = ModelSpec.load(options.model), options.model / SINGLE_FILE
    states = [torch.load(p, map_location="cpu", weights_only=True) for p in options.state]
    parameters = mean([state["parameters"] for state in states])
    if options.keep:
        parameters = between(stored_parameters(spec, options.model), parameters, options.keep)
    tensors = stored(spec, parameters)
    save_file(
        tensors, file, metadata={"format": "pt", "steps": str(max(s["step"] for s in states))}
    )
    file.chmod(0o644)
    write_sums(options.model)
    print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
