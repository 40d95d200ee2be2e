"""`diptych certs`, and the certificates that `diptych up --station-tls` gives to its processes."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from diptych.core.errors import BadRequest, Misconfigured
from diptych.core.phases import Role
from diptych.transport import authority
from diptych.transport.authority import FOLDER, LOOPBACK, Authority, Files
from diptych.transport.roles import OPERATOR, Holder, Station

DAY_S = 86_400.0

Tell = Callable[[str], None]


class Keeper:
    """Has a certificate for every process of a platform, and one for its operator."""

    def __init__(self, data_dir: Path) -> None:
        self._authority = Authority(data_dir / FOLDER)
        self._holders: dict[Holder, None] = {OPERATOR: None}
        self.renew()

    def certify(self, role: Role, name: str) -> Files:
        """The files of a process; a `plan.Certify`."""
        holder = Holder(Station.of(role), name)
        self._holders[holder] = None
        return self._authority.keep(holder, LOOPBACK)

    def renew(self) -> None:
        """Make anew what will soon be over."""
        for holder in self._holders:
            self._authority.keep(holder, LOOPBACK)

    async def run(self, say: Tell, period_s: float = DAY_S) -> None:
        """Renew for as long as the platform runs."""
        while True:
            await asyncio.sleep(period_s)
            try:
                self.renew()
            except OSError as error:
                say(f"certificates are not renewed: {error}")


def make(
    folder: Path,
    stations: Sequence[str],
    *,
    hosts: Sequence[str],
    days: float,
    renews: bool,
    tell: Tell,
) -> None:
    """Give certificates to stations, each a ROLE/NAME; to renew, none of them is all of the folder.

    Without hosts, a certificate names those that it named before, or the usual ones.
    """
    wished = list(dict.fromkeys(map(Holder.read, stations)))
    if days <= 0:
        raise BadRequest(f"--days {days:g}: expected more than 0")
    for host in hosts:
        try:
            authority.check_host(host)
        except ValueError as error:
            raise BadRequest(f"--host {error}") from None
    there = _there(folder)
    if not wished and not renews:
        raise BadRequest("name the stations, each as ROLE/NAME; or --renew, for all that are there")
    taken = [str(there[holder]) for holder in wished if holder in there]
    if taken and not renews:
        raise Misconfigured(f"{', '.join(taken)}: there already; --renew makes it anew")
    if not wished and not there:
        raise Misconfigured(f"{folder} holds no certificates that could be renewed")
    made = Authority(folder)
    for holder in wished or list(there):
        known = authority.hosts_of(there[holder])[1] if holder in there else None
        names = hosts or known or authority.usual_hosts(holder)
        files = made.issue(holder, names, days)
        tell(f"{files.certificate}: {holder}, for {', '.join(names)}")
    tell(f"of {folder / 'ca.crt'}; keep ca.key, which makes more of them, away from stations")


def _there(folder: Path) -> dict[Holder, Path]:
    """The certificates of a folder by whom they were given to."""
    files = [path for path in sorted(folder.glob("*.crt")) if path.name != "ca.crt"]
    try:
        return {authority.hosts_of(path)[0]: path for path in files}
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{folder}: {error}; expected what `diptych certs` made") from None
