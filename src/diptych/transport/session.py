"""Gateway side of a worker's Session: one long-lived stream, demultiplexed by request."""


class SessionPool:
    """Sessions by worker address: opened on demand, closed when unused or dead."""

    def __init__(self, gateway_id: str, *, silence_s: float = 5.0) -> None:
        self._gateway_id = gateway_id
        self._silence_s = silence_s

    async def close(self) -> None:
        """End every session; their conversations raise Lost."""
        raise NotImplementedError
