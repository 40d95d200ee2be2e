"""What the routers of a fleet tell each other: each its own ledger, so that no work is unseen.

Pure but for its own state: time is an argument. `service.py` hands `mine` to the others, `peers.py`
brings theirs.
"""

import secrets
from dataclasses import replace

from diptych.core.ids import Incarnation
from diptych.router.dispatcher import Dispatcher
from diptych.router.ledger import Expected, Share


def new_life() -> Incarnation:
    """Names one start of a router."""
    return Incarnation(secrets.randbits(64) | 1)


class Sharing:
    """This router's share, and the others' in its ledger."""

    def __init__(self, dispatcher: Dispatcher, life: Incarnation | None = None) -> None:
        self.life = life or new_life()
        self.num_peers = 0
        self._num_stale = 0
        self._ledger = dispatcher.ledger
        self._chooser = dispatcher.chooser
        self._blocked = dispatcher.blocked

    @property
    def version(self) -> int:
        """Moves when `mine` does."""
        return self._ledger.version

    @property
    def num_stale(self) -> int:
        """Peers that were not heard lately."""
        return self._num_stale

    def mine(self, now_s: float) -> Share:
        """What this router itself carries; work is what is left of it now."""
        own_ms = self._chooser.candidates.own_ms
        carried = {
            worker: replace(own, work_us=round(1000 * own_ms(worker, now_s)))
            for worker, own in self._ledger.own()
        }
        expected = dict(self._chooser.estimates.expected)
        blocked = self._blocked.own(now_s)
        return Share(self.life, carried, self._ledger.own_pending(), expected, blocked)

    def heard(self, share: Share, now_s: float) -> None:
        """Another router told its share."""
        known = self._ledger.shares.get(share.router)
        if known is not None:
            for worker, expected in share.expected.items():
                new = expected.since(known.expected.get(worker, Expected()))
                self._chooser.estimates.others_expect(worker, new)
        for fingerprint, left_s in share.blocked.items():
            self._blocked.learn(fingerprint, left_s, now_s)
        self._ledger.take_share(share)
        self._chooser.candidates.shared(share.router, now_s)

    def lost(self, router: Incarnation) -> None:
        """It is silent or gone: from now on only reports show its work."""
        self._ledger.drop_share(router)
        self._chooser.candidates.forget_router(router)

    def count(self, num_peers: int, num_stale: int) -> None:
        """How many there are, and are not heard: with one of those, choices are less sure."""
        self.num_peers, self._num_stale = num_peers, num_stale
        self._chooser.is_stale = num_stale > 0
