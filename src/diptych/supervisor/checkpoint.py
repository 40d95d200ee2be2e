"""The bundled model: a checkpoint folder inside the package."""

from importlib import resources
from pathlib import Path

EMBEDDED_MODEL = "diptych-tiny"  # its name in the API


def embedded_folder() -> Path:
    """Where it lies."""
    return Path(str(resources.files("diptych") / "assets" / "tiny"))
