"""What a log line looks like."""

import json
import logging
import sys
from datetime import datetime
from pathlib import Path

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


def json_line(capsys: pytest.CaptureFixture) -> dict:
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return json.loads(text)


def test_a_json_line_has_what_a_text_line_has_and_fields(capsys: pytest.CaptureFixture) -> None:
    logs.setup("decode-1", "info", "json", "decode")
    token = logs.request_id_var.set("req-7")
    logging.getLogger("diptych.engine.loop").info("step rows=%d took=%.3f of=%s", 3, 0.25, "all")
    logs.request_id_var.reset(token)
    line = json_line(capsys)
    assert (
        abs(datetime.fromisoformat(line.pop("time")).timestamp() - datetime.now().timestamp()) < 60
    )
    assert line == {
        "level": "info",
        "logger": "diptych.engine.loop",
        "message": "step rows=3 took=0.250 of=all",
        "role": "decode",
        "process": "decode-1",
        "request_id": "req-7",
        "fields": {"rows": 3, "took": 0.25, "of": "all"},
    }


def test_fields_are_found_by_their_place_not_in_the_text(capsys: pytest.CaptureFixture) -> None:
    logs.setup("router", "info", "json")
    logging.getLogger("diptych.x").info("%d%% of %s size=%-8d why=%s", 5, "a=b", 7, "c=d e=f")
    line = json_line(capsys)
    assert line["fields"] == {"size": 7, "why": "c=d e=f"}
    assert "request_id" not in line


def test_what_json_cannot_hold_is_a_fields_text(capsys: pytest.CaptureFixture) -> None:
    logs.setup("router", "info", "json")
    values = Path("/x"), OSError("y"), None, float("nan"), 2**70, "\ud800"
    logging.getLogger("diptych.x").info("path=%s e=%s none=%s nan=%f big=%d odd=%s", *values)
    assert json_line(capsys)["fields"] == {
        "path": "/x",
        "e": "y",
        "none": None,
        "nan": "nan",
        "big": 2**70,
        "odd": "\ud800",
    }


def test_a_traceback_stays_inside_its_json_line(capsys: pytest.CaptureFixture) -> None:
    logs.setup("router", "info", "json")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("diptych.router").exception("it broke")
    line = json_line(capsys)
    assert (line["level"], line["message"]) == ("error", "it broke")
    assert line["exception"].endswith("ValueError: two\nlines")
