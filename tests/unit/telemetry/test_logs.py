"""What a log line looks like."""

import logging
import sys

import pytest

from diptych.telemetry import logs


@pytest.fixture(autouse=True)
def restore_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    root.setLevel(level)


def test_a_line_names_level_role_request_and_module(capsys: pytest.CaptureFixture) -> None:
    logs.setup("decode", "info")
    token = logs.request_id_var.set("req-7")
    logging.getLogger("diptych.decode_service.service").info("started tokens=%d", 3)
    logs.request_id_var.reset(token)
    line = capsys.readouterr().err
    assert line.endswith(" INFO    decode req-7 decode_service.service: started tokens=3\n")
    assert line.count("\n") == 1


def test_levels_below_the_chosen_one_are_silent(capsys: pytest.CaptureFixture) -> None:
    logs.setup("router", "warning")
    logging.getLogger("diptych.router").info("nothing to see")
    logging.getLogger("httpx").info("nor here")
    assert capsys.readouterr().err == ""


def test_a_traceback_is_indented_below_its_event(capsys: pytest.CaptureFixture) -> None:
    logs.setup("router", "info")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("diptych.router").exception("it broke", exc_info=sys.exc_info())
    head, *rest = capsys.readouterr().err.splitlines()
    assert head.endswith("it broke")
    assert rest
    assert all(line.startswith("    ") for line in rest)
