"""What the doctor says of machines and platforms that are ill in one way each."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from diptych.config import DoctorSettings
from diptych.supervisor import checkup, doctor, findings, machine
from diptych.supervisor.findings import Finding, State
from diptych.supervisor.probe import Gateway
from diptych.testing.papers import Papers
from diptych.testing.redis import redis_server

MIB = 1 << 20


def join(name: str, **more: Any) -> dict[str, Any]:
    fields = {"member_id": name, "num_slots": 4, "layout_hash": "aa", "namespace": "bb"}
    return {"join": fields | more}


def process(name: str, **more: Any) -> dict[str, Any]:
    fields = {"id": name, "role": name.partition("-")[0], "alive": True, "restarts": 0}
    return fields | {"address": "", "metrics_address": ""} | more


def test_memory_and_files_are_judged_by_how_much_there_is() -> None:
    assert machine.memory(100 * MIB).state is State.BAD
    assert machine.memory(1000 * MIB).state is State.WARNING
    assert machine.memory(8000 * MIB).state is State.OK
    assert machine.memory(None).state is State.SKIPPED
    assert machine.files(256, 4096).state is State.BAD
    assert machine.files(2048, 65536).fix == "ulimit -n 65536"
    assert machine.files(8192, 8192).state is State.OK
    assert machine.files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).state is State.OK


def test_a_container_may_have_less_memory_than_its_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert machine.free_memory_bytes(meminfo, tmp_path) == 8_192_000
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert machine.free_memory_bytes(meminfo, tmp_path) == 4_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.free_memory_bytes(meminfo, tmp_path) == 8_192_000
    assert machine.free_memory_bytes(tmp_path / "none", tmp_path) is None


def test_a_secret_that_others_can_read_is_bad(tmp_path: Path) -> None:
    (tmp_path / "master_key").write_text("x" * 40)
    (tmp_path / "master_key").chmod(0o644)
    found = machine.folder(tmp_path)
    assert (found.state, found.fix) == (State.BAD, f"chmod 600 {tmp_path / 'master_key'}")
    (tmp_path / "master_key").chmod(0o600)
    assert machine.folder(tmp_path).state is State.OK
    assert machine.folder(tmp_path / "new" / "er").state is State.OK


def test_dead_processes_and_restarts_are_named_with_their_log(tmp_path: Path) -> None:
    dead = {"data_dir": str(tmp_path), "processes": [process("decode-1", alive=False)]}
    found = checkup.processes(dead)
    assert found.state is State.BAD and "decode-1.log" in found.fix
    again = {"data_dir": str(tmp_path), "processes": [process("decode-1", restarts=3)]}
    assert "decode-1 (3)" in checkup.processes(again).said


def test_a_port_on_which_nobody_listens_is_named() -> None:
    found = checkup.ports({"processes": [process("router-1", address="127.0.0.1:1")]})
    assert (found.state, found.said) == (State.BAD, "nobody listens: router-1 at 127.0.0.1:1")


@pytest.mark.parametrize(
    ("field", "said"), [("layout_hash", "cache layout"), ("namespace", "weights or numerics")]
)
def test_workers_that_may_not_be_paired_are_told_apart(field: str, said: str) -> None:
    assert checkup.pairing([join("prefill-1"), join("decode-1")]).state is State.OK
    found = checkup.pairing([join("prefill-1"), join("decode-1", **{field: "cc"})])
    assert found.state is State.BAD
    assert said in found.said
    assert "decode-1 cc" in found.said


def test_a_gateway_that_is_away_fails_clock_and_canary() -> None:
    gateway = Gateway("http://127.0.0.1:1", "canary")
    assert checkup.clock(gateway).state is State.BAD
    found = checkup.canary({"processes": [], "model": "m"}, gateway)
    assert (found.state, found.what) == (State.BAD, "canary")


def router(address: str, **fields: object) -> dict[str, object]:
    fleet = {"router_id": f"r-{address}", "error": "", "peers": 1, "stale_peers": 0}
    return {"address": address, **fleet, **fields}


def test_routers_that_are_away_or_do_not_hear_each_other_are_named() -> None:
    def looked_at(*routers: object) -> list[tuple[State, str]]:
        return [(f.state, f.said) for f in checkup.routers({"routers": routers})]

    assert looked_at(router("a", peers=0)) == []  # alone, it hears nobody
    assert looked_at(router("a"), router("b")) == [(State.OK, "all 2 answer and hear each other")]
    assert looked_at(router("a"), router("b", error="gone"), router("c", stale_peers=1)) == [
        (State.BAD, "b does not answer: gone"),
        (State.WARNING, "r-c does not hear 1 of 1 others"),
    ]


def test_a_store_that_is_away_is_named() -> None:
    (found,) = checkup.stores({"processes": [process("store-1", address="127.0.0.1:1")]})
    assert found.state is State.BAD
    assert found.said.startswith("store-1: ")


def test_redis_is_asked_if_there_should_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> Finding:
        found = doctor.look(DoctorSettings.load({"data_dir": str(tmp_path)}))
        return next(finding for finding in found if finding.what == "Redis")

    assert ask().state is State.SKIPPED
    with redis_server(tmp_path) as server:
        monkeypatch.setenv("DIPTYCH_REDIS_URL", server.url)
        assert ask().state is State.OK
    monkeypatch.setenv("DIPTYCH_REDIS_URL", "redis://:geheim@127.0.0.1:1/0")
    found = ask()
    assert found.state is State.BAD
    assert "geheim" not in found.said


def test_the_verdict_is_the_exit_code(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    warned = [findings.ok("a", "fine"), findings.warning("b", "hm", "do this")]
    assert findings.exit_code(warned) == 0
    assert findings.exit_code([*warned, findings.bad("c", "no", "do that")]) == 1
    findings.show([*warned, findings.bad("c", "no", "do that")])
    shown = capsys.readouterr().out
    assert "→ do this" in shown and "→ do that" in shown
    assert "1 bad, 1 warnings, 1 fine" in shown
    doctor.run(DoctorSettings.load({"data_dir": str(tmp_path)}), as_json=True)
    assert {"versions", "disk", "memory", "platform"} <= {
        finding["what"] for finding in json.loads(capsys.readouterr().out)
    }


def test_certificates_that_are_nearly_over_are_bad(tmp_path: Path) -> None:
    assert checkup.certificates({"certificates": ""}).state is State.SKIPPED
    status = {"certificates": str(tmp_path)}
    papers = Papers(tmp_path)
    papers.issue("store/store-1", days=30)
    found = checkup.certificates(status)
    assert found.state is State.OK
    assert "2 are there; the first, store-1.crt, ends in 29 days" in found.said
    papers.issue("decode/decode-1", days=5)
    found = checkup.certificates(status)
    assert (found.state, found.fix) == (State.BAD, f"diptych certs --renew --out {tmp_path}")
    (tmp_path / "store-1.crt").write_text("?")
    assert checkup.certificates(status).state is State.BAD
