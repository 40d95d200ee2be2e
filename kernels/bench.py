"""`make bench-kernels`: every operation against this GPU's ceilings and the marks of DESIGN 7."""

import argparse

import torch

from diptych.kernels.fp8_linear import bench as fp8_linear
from diptych.kernels.indexer import bench as indexer
from diptych.kernels.measure import HEADER, measure_ceilings
from diptych.kernels.moe import bench as moe
from diptych.kernels.sparse_attention import bench as sparse_attention

OPERATIONS = {
    "moe": moe,
    "sparse_attention": sparse_attention,
    "indexer": indexer,
    "fp8_linear": fp8_linear,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="|".join(OPERATIONS), default=OPERATIONS)
    wanted = parser.parse_args().operations
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    for name in wanted:
        if name not in OPERATIONS:
            parser.error(f"no operation {name!r}; choose from {', '.join(OPERATIONS)}")
    ceilings = measure_ceilings()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(
        f"ceilings: copy {ceilings.copy_gbs:.0f} GB/s, bf16 {ceilings.bf16_tflops:.0f} TFLOP/s, "
        f"FP8 {ceilings.fp8_tflops:.0f} TFLOP/s"
    )
    print(HEADER)
    for name in wanted:
        for row in OPERATIONS[name].run(ceilings):
            print(row, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
