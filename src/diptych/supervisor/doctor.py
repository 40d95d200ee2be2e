"""`diptych doctor`: the machine, then the platform that runs on it, then Redis if there is one."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import redis

from diptych.config import DoctorSettings, UpSettings, secrets_of
from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy.authentication import canary_token
from diptych.supervisor import checkup, findings, machine
from diptych.supervisor.findings import Finding, bad, ok, skipped
from diptych.supervisor.folder import State
from diptych.supervisor.ports import claim
from diptych.supervisor.probe import Gateway
from diptych.supervisor.status import gather
from diptych.transport import tls

REDIS_S = 3.0


def run(settings: DoctorSettings, *, as_json: bool) -> int:
    """Look at everything and say what was found; the exit code."""
    found = list(look(settings))
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in found], indent=1) + "\n")
    else:
        findings.show(found)
    return findings.exit_code(found)


def look(settings: DoctorSettings) -> Iterator[Finding]:
    """One finding after the other."""
    yield from machine.look(settings.data_dir)
    yield _redis(settings)
    given = tls.load(settings)
    status, state = gather(settings.data_dir, given), State.read(settings.data_dir)
    if status is None or state is None:
        yield _port()
        yield skipped("platform", f"nothing runs on {settings.data_dir}; `diptych up` starts it")
        return
    cluster_secret, _ = secrets_of(settings)
    certificate = Path(state.certificate) if state.certificate else None
    gateway = Gateway(state.base_url, canary_token(cluster_secret), certificate)
    dial = tls.operator_dial(given, state.certificates_folder)
    yield from checkup.look(status, gateway, dial)


def _port() -> Finding:
    """Whether `diptych up` could listen where it would."""
    host, port = "127.0.0.1", int(UpSettings.model_fields["port"].default)
    try:
        claim(host, port)
    except Misconfigured as error:
        return findings.warning("ports", error.message, "diptych up --port 0 takes any free one")
    return ok("ports", f"{port} is free for `diptych up`")


def _redis(settings: DoctorSettings) -> Finding:
    """Whether it answers, and its clock is ours: limits and leases live by it."""
    if settings.redis_url is None:
        return skipped("Redis", "not used (DIPTYCH_REDIS_URL)")
    url = settings.redis_url.get_secret_value()
    fix = "start it, or correct DIPTYCH_REDIS_URL"
    try:
        with redis.Redis.from_url(url, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S) as r:
            seconds, micros = r.time()
            version = r.info("server")["redis_version"]
    except redis.RedisError as error:
        return bad("Redis", f"no answer: {type(error).__name__}", fix)  # its text may hold the URL
    skew_s = abs(time.time() - seconds - micros / 1e6)
    if skew_s > checkup.SKEW_S:
        return bad("Redis", f"its clock is {skew_s:.0f} s away from ours", "let NTP set both")
    return ok("Redis", f"version {version} answers, clocks agree")
