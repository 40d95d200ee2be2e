"""The operator's console: a page at `/` of the admin port that shows what the watch streams.

The page is open, as it knows nothing; all that it shows and does goes through the admin API.
"""

from collections.abc import Sequence
from importlib import resources

from starlette.routing import Route

from diptych.gateway import pages

PREFIX = "/console/"  # of every file but the page itself

_SHARED = ("element.js", "http.js", "icon.svg")  # with the playground


def routes() -> Sequence[Route]:
    """GET and HEAD of the page and of each of its files."""
    gateway = resources.files("diptych.gateway")
    own = (gateway / "admin" / "page").iterdir()
    shared = (gateway / "page" / name for name in _SHARED)
    return pages.routes([*own, *shared], PREFIX)
