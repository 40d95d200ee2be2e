"""`diptych certs`, and what `diptych up --station-tls` gives to its processes."""

import asyncio
import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from diptych.config import UpSettings
from diptych.core.errors import BadRequest, Misconfigured
from diptych.core.phases import Role
from diptych.supervisor.certificates import Keeper, make
from diptych.supervisor.folder import Lock, State
from diptych.supervisor.plan import Process, make_plan
from diptych.testing.platform import environment
from diptych.transport.authority import LOOPBACK, hosts_of
from diptych.transport.roles import OPERATOR, Holder, Station
from diptych.transport.tls import Credentials

STORE = Holder(Station.STORE, "store-1")


class Desk:
    """Makes certificates in a folder and keeps what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def make(
        self, *stations: str, hosts: tuple[str, ...] = (), days: float = 30, renews: bool = False
    ) -> None:
        make(self.folder, stations, hosts=hosts, days=days, renews=renews, tell=self.said.append)

    def serial(self, name: str) -> int:
        pem = (self.folder / f"{name}.crt").read_bytes()
        return x509.load_pem_x509_certificate(pem).serial_number


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "certificates")


def test_each_station_gets_its_pair_of_one_ca(desk: Desk) -> None:
    desk.make("store/store-1", "operator/operator")
    ca = desk.serial("ca")
    desk.make("decode/decode-1", hosts=("decode-1.example", "10.0.0.7"))
    assert desk.serial("ca") == ca
    assert hosts_of(desk.folder / "store-1.crt") == (STORE, ["store-1", *LOOPBACK])
    assert hosts_of(desk.folder / "decode-1.crt")[1] == ["decode-1.example", "10.0.0.7"]
    assert f"{desk.folder}/store-1.crt: store/store-1, for store-1, localhost" in desk.said[0]
    assert "keep ca.key" in desk.said[-1]


def test_what_is_there_is_replaced_only_when_asked(desk: Desk) -> None:
    desk.make("store/store-1", hosts=("store-1.example",))
    before = desk.serial("store-1")
    with pytest.raises(Misconfigured, match=r"store-1.crt: there already; --renew makes it anew"):
        desk.make("decode/decode-1", "store/store-1")
    assert not (desk.folder / "decode-1.crt").exists()  # all or none
    assert desk.serial("store-1") == before
    desk.make("store/store-1", "decode/decode-1", renews=True)
    assert desk.serial("store-1") != before
    assert hosts_of(desk.folder / "store-1.crt")[1] == ["store-1.example"]  # as before
    assert (desk.folder / "decode-1.crt").exists()
    desk.make("store/store-1", hosts=("10.0.0.7",), renews=True)
    assert hosts_of(desk.folder / "store-1.crt")[1] == ["10.0.0.7"]


def test_a_folder_is_renewed_as_a_whole_but_for_its_ca(desk: Desk) -> None:
    desk.make("store/store-1", "decode/decode-1")
    names = ("store-1", "decode-1", "ca")
    before = {name: desk.serial(name) for name in names}
    desk.make(renews=True, days=7)
    same = {name: desk.serial(name) == before[name] for name in names}
    assert same == {"store-1": False, "decode-1": False, "ca": True}


@pytest.mark.parametrize(
    ("stations", "more", "words"),
    [
        (["store-1"], {}, "store-1: expected ROLE/NAME"),
        (["hybrid/hybrid-1"], {}, "with a role of gateway, router, prefill, decode, store"),
        ([], {}, "name the stations, each as ROLE/NAME; or --renew"),
        (["store/a"], {"days": 0.0}, "--days 0: expected more than 0"),
        (["store/a"], {"hosts": ("store-1:7100",)}, "--host store-1:7100: expected the name or"),
        ([], {"renews": True}, "holds no certificates that could be renewed"),
    ],
)
def test_a_wrong_wish_makes_nothing(
    desk: Desk, stations: list[str], more: dict[str, object], words: str
) -> None:
    with pytest.raises((BadRequest, Misconfigured), match=words):
        desk.make(*stations, **more)  # type: ignore[arg-type]
    assert not desk.folder.exists()


def test_a_foreign_certificate_in_the_folder_is_named(desk: Desk) -> None:
    desk.make("store/store-1")
    (desk.folder / "web.crt").write_bytes((desk.folder / "ca.crt").read_bytes())
    with pytest.raises(Misconfigured, match=r"web.crt names nobody; expected what `diptych certs`"):
        desk.make(renews=True)


def test_the_command_makes_files_that_a_process_takes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diptych.cli", "certs", "store/store-1", "--days", "2"]
    run = [*command, "--host", "10.0.0.7", "--data-dir", str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(), check=True)
    keeper = Keeper(tmp_path)  # in the same folder, with the same CA
    files = keeper.certify(Role.STORE, "store-1")
    assert str(files.certificate) in done.stdout
    assert hosts_of(files.certificate) == (STORE, ["10.0.0.7"])
    assert Credentials(files).holder == STORE
    again = subprocess.run(run, capture_output=True, text=True, env=environment(), check=False)
    assert again.returncode == 2
    assert again.stderr.startswith("diptych: ") and "--renew" in again.stderr


def flag(process: Process, name: str) -> Path:
    return Path(process.command[process.command.index(name) + 1])


@pytest.mark.parametrize("hybrid", [False, True])
def test_every_process_of_a_platform_shows_its_own_certificate(
    tmp_path: Path, hybrid: bool
) -> None:
    ports = iter(range(7001, 8000))
    settings = UpSettings(data_dir=tmp_path, decode=2, hybrid=hybrid, station_tls=True)
    plan = make_plan(
        settings,
        checkpoint=tmp_path,
        port=8123,
        free_port=lambda: next(ports),
        certify=Keeper(tmp_path).certify,
    )
    more = plan.one_more(Role.HYBRID if hybrid else Role.DECODE, 7)
    for process in (*plan.processes, more):
        holder, hosts = hosts_of(flag(process, "--station-certificate"))
        assert holder == Holder(Station.of(Role(process.role)), process.id)
        assert hosts == list(LOOPBACK)
        assert flag(process, "--station-key").is_file()
        assert flag(process, "--station-ca") == tmp_path / "certificates" / "ca.crt"
    assert plan.certificates == tmp_path / "certificates"
    assert hosts_of(tmp_path / "certificates" / "operator.crt")[0] == OPERATOR


def test_without_it_nobody_has_one(tmp_path: Path) -> None:
    ports = iter(range(7001, 8000))
    settings = UpSettings(data_dir=tmp_path)
    plan = make_plan(settings, checkpoint=tmp_path, port=1, free_port=lambda: next(ports))
    assert plan.certificates is None
    assert not [p for p in plan.processes if any("--station" in word for word in p.command)]


async def test_what_is_nearly_over_is_renewed_while_the_platform_runs(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    files = keeper.certify(Role.STORE, "store-1")
    make(
        tmp_path / "certificates", ["store/store-1"],
        hosts=(), days=0.0005, renews=True, tell=lambda line: None,
    )  # fmt: skip
    said: list[str] = []
    renewing = asyncio.create_task(keeper.run(said.append, period_s=0.001))
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=300)
    async with asyncio.timeout(5):
        while ends_at(files.certificate) < soon:  # noqa: ASYNC110 - files announce nothing
            await asyncio.sleep(0.001)
    kept = files.certificate.read_bytes()
    files.certificate.unlink()
    files.certificate.mkdir()  # and it cannot be written any more
    async with asyncio.timeout(5):
        while not said:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.001)
    assert "certificates are not renewed: " in said[0]
    files.certificate.rmdir()
    files.certificate.write_bytes(kept)
    renewing.cancel()


def ends_at(path: Path) -> datetime.datetime:
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def test_the_state_file_says_where_an_operators_certificate_is(tmp_path: Path) -> None:
    with Lock(tmp_path):
        for certificates in ("", str(tmp_path / "certificates")):
            State(1, "u", "r", "m", (), certificates=certificates).write(tmp_path)
            state = State.read(tmp_path)
            assert state is not None
            assert state.certificates_folder == (Path(certificates) if certificates else None)
