"""The table of who may call what."""

import re
from pathlib import Path

import pytest

from diptych.core.errors import BadRequest, Refused
from diptych.core.phases import Role
from diptych.transport.roles import CALLERS, ROLE_REFUSED, Holder, Station, callers, check

ROOT = Path(__file__).parents[3]
WORKERS = {Station.PREFILL, Station.DECODE}


def full(method: str) -> str:
    return f"/diptych.contract.{method}"


def test_the_page_for_operators_shows_the_table() -> None:
    lines = (ROOT / "docs" / "operations.md").read_text().splitlines()
    start = lines.index("| at | method | callers |") + 2
    shown: dict[str, dict[str, set[str]]] = {}
    for line in lines[start : lines.index("", start)]:
        at, methods, who = (cell.strip() for cell in line.strip("|").split("|"))
        service, _, names = methods.replace("`", "").partition(".")
        for station in at.split(", "):
            for name in names.split(", "):
                shown.setdefault(station, {})[f"{service}/{name}"] = set(who.split(", "))
    table = {at: {m: set(who) for m, who in methods.items()} for at, methods in CALLERS.items()}
    assert shown == table


def test_every_threat_on_that_page_is_held_by_tests_that_exist() -> None:
    files = (ROOT / "tests" / "contract").glob("test_station_*.py")
    tests = "\n".join(path.read_text() for path in files)
    lines = (ROOT / "docs" / "operations.md").read_text().splitlines()
    start = lines.index("| threat | what stands against it | held by |") + 2
    for line in lines[start : lines.index("", start)]:
        named = re.findall(r"`(\w+)…?`", line.rpartition("|")[0].rpartition("|")[2])
        assert named, line
        for name in named:
            assert f"def test_{name}" in tests, name


def test_kv_is_for_decode_workers_and_the_tier_for_workers() -> None:
    assert callers(full("Blocks/GetBlocks"), Station.PREFILL) == {Station.DECODE}
    for method in ("Blocks/GetBlocks", "Store/PutBlocks", "Store/ShareBlocks", "Store/Lookup"):
        assert callers(full(method), Station.STORE) == WORKERS
    of_vision = {m for methods in CALLERS.values() for m, who in methods.items() if "vision" in who}
    assert of_vision == {"Router/Report"}


def test_an_operator_looks_and_orders_and_touches_no_request() -> None:
    may = {m for methods in CALLERS.values() for m, who in methods.items() if "operator" in who}
    assert may == {
        "Router/Status", "Router/Watch", "Router/Drain",
        "Store/Stats", "Store/List", "Store/Verify", "Store/Collect", "Store/Remove",
    }  # fmt: skip


@pytest.mark.parametrize("station", list(Station))
def test_what_is_not_in_the_table_is_refused_to_everybody(station: Station) -> None:
    for method, at in (
        ("/diptych.contract.Router/Forget", Station.ROUTER),
        ("/diptych.contract.Router/Place", Station.STORE),
        ("/grpc.health.v1.Health/Check", Station.ROUTER),
        ("/Router/Place", Station.ROUTER),
        ("", Station.GATEWAY),
    ):
        with pytest.raises(Refused, match="allowed to nobody: it is not in the table of roles"):
            check(method, Holder(station, "x"), at)


def test_a_refusal_names_the_method_the_caller_and_who_may() -> None:
    method = full("Blocks/Renew")
    check(method, Holder(Station.GATEWAY, "g"), Station.PREFILL)
    with pytest.raises(Refused) as caught:
        check(method, Holder(Station.VISION, "v-1"), Station.PREFILL)
    assert caught.value.code == ROLE_REFUSED
    assert caught.value.message == (
        "Blocks.Renew of prefill: called by vision/v-1; allowed to decode, gateway"
    )
    with pytest.raises(Refused, match="called by a certificate of no station"):
        check(method, None, Station.PREFILL)


def test_a_holder_is_written_as_a_uri_and_read_from_it() -> None:
    holder = Holder(Station.PREFILL, "prefill-1.example_x")
    assert holder.uri == "spiffe://diptych/prefill/prefill-1.example_x"
    assert Holder.parse(holder.uri) == holder == Holder.read(str(holder))


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://diptych/prefill",
        "spiffe://diptych/prefill/",
        "spiffe://diptych/prefill/a/b",
        "spiffe://diptych/prefill/a\n",
        "spiffe://diptych/prefill/a b",
        "spiffe://Diptych/prefill/a",
        "spiffe://diptych.example/prefill/a",
        "https://diptych/prefill/a",
        "spiffe://diptych/hybrid/a",
        "spiffe://diptych/PREFILL/a",
        f"spiffe://diptych/prefill/{'a' * 129}",
        "",
    ],
)
def test_nothing_else_names_a_station(uri: str) -> None:
    assert Holder.parse(uri) is None


def test_a_wish_that_names_no_station_is_told_what_was_expected() -> None:
    with pytest.raises(BadRequest, match=r"prefill-1: expected ROLE/NAME, with a role of gateway"):
        Holder.read("prefill-1")


def test_every_process_is_a_station_and_hybrid_workers_are_decode_workers() -> None:
    stations = {role: Station.of(role) for role in Role}
    assert stations[Role.HYBRID] is Station.DECODE
    assert all(str(station) == role for role, station in stations.items() if role != "hybrid")
