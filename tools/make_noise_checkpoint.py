"""Write the noise checkpoint: `python tools/make_noise_checkpoint.py FOLDER [--seed N]`."""

import argparse
from pathlib import Path

from diptych.model import noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(noise.write(arguments.folder, arguments.seed))


if __name__ == "__main__":
    main()
