"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """Jobs that a script starts in the background ignore SIGINT, and so would all they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
