"""The playground: a chat page at `/`, and the few files it is made of."""

from collections.abc import Sequence
from importlib import resources

from starlette.routing import Route

from diptych.gateway import pages

PREFIX = "/playground/"  # of every file but the page itself


def routes() -> Sequence[Route]:
    """GET and HEAD of the page and of each of its files."""
    return pages.routes((resources.files("diptych.gateway") / "page").iterdir(), PREFIX)
