"""What `diptych doctor` asks of a running platform: processes, pairing, tier, a real request."""

import asyncio
import datetime
import email.utils
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from diptych.core.errors import DiptychError
from diptych.kvcache_store import client as kvcache
from diptych.supervisor.findings import Finding, bad, ok, skipped, warning
from diptych.supervisor.probe import CANARY, CANARY_TIMEOUT_S, Gateway
from diptych.telemetry import metrics as m
from diptych.transport import authority
from diptych.transport.channel import Dial, connect

ANSWER_S = 3.0
CANARY_TOKENS = 4
SKEW_S = 2.0
LEAST_DAYS = 7


def look(status: dict[str, Any], gateway: Gateway, dial: Dial = connect) -> Iterator[Finding]:
    """All of it; `status` is what `diptych status` shows."""
    yield processes(status)
    yield ports(status)
    yield ready(status)
    yield from routers(status)
    yield pairing(status["members"])
    yield from stores(status, dial)
    yield certificates(status)
    yield clock(gateway)
    yield canary(status, gateway)


def processes(status: dict[str, Any]) -> Finding:
    """Whether all live, and none was started again and again."""
    logs = Path(status["data_dir"]) / "logs"
    dead = [p["id"] for p in status["processes"] if not p["alive"]]
    if dead:
        fix = f"read {logs / dead[0]}.log"
        return bad("processes", f"not running: {', '.join(dead)}", fix)
    again = [f"{p['id']} ({p['restarts']})" for p in status["processes"] if p["restarts"]]
    if again:
        fix = f"read {logs / again[0].split()[0]}.log for why"
        return warning("processes", f"started again: {', '.join(again)}", fix)
    return ok("processes", f"{len(status['processes'])} run, none was started again")


def ports(status: dict[str, Any]) -> Finding:
    """Whether everybody can be reached where it should be."""
    places = [
        (p["id"], re.sub(r"^https?://", "", address))
        for p in status["processes"]
        for address in (p["address"], p["metrics_address"])
        if address
    ]
    silent = [f"{name} at {address}" for name, address in places if not _listens(address)]
    if silent:
        return bad("ports", f"nobody listens: {', '.join(silent)}", "wait, or restart diptych up")
    return ok("ports", f"all {len(places)} are listened on")


def routers(status: dict[str, Any]) -> Iterator[Finding]:
    """Whether each answers and hears all others; how one serves is `ready`'s business."""
    every = status["routers"]
    for router in every:
        if router["error"]:
            where = router["address"]
            yield bad("routers", f"{where} does not answer: {router['error']}", "read its log")
        elif router["stale_peers"]:
            name = router["router_id"] or router["address"]
            said = f"{name} does not hear {router['stale_peers']} of {router['peers']} others"
            yield warning("routers", said, "see that each one's --peers names the others")
    if len(every) > 1 and not any(each["error"] or each["stale_peers"] for each in every):
        yield ok("routers", f"all {len(every)} answer and hear each other")


def ready(status: dict[str, Any]) -> Finding:
    """Whether a router knows a way for requests."""
    if not status["ready"]:
        said = "; ".join(status["reasons"])
        return bad("router", said, "see which worker is missing in `diptych status`")
    return ok("router", f"knows {len(status['members'])} members and a complete path")


def pairing(members: list[dict[str, Any]]) -> Finding:
    """Whether every worker may take over from every other: same weights, layout, numerics."""
    workers = [m["join"] for m in members if m["join"]["num_slots"]]
    if not workers:
        return skipped("pairing", "no worker is there")
    for name, meaning in (("layout_hash", "cache layout"), ("namespace", "weights or numerics")):
        kinds = {str(w[name]) for w in workers}
        if len(kinds) > 1:
            each = ", ".join(f"{w['member_id']} {str(w[name])[:8]}" for w in workers)
            fix = "give all workers the same checkpoint, --numerics and --block-tokens"
            return bad("pairing", f"workers differ in {meaning}: {each}", fix)
    first = workers[0]
    layout, namespace = str(first["layout_hash"])[:8], str(first["namespace"])[:8]
    return ok("pairing", f"{len(workers)} workers agree (layout {layout}, namespace {namespace})")


def stores(status: dict[str, Any], dial: Dial = connect) -> Iterator[Finding]:
    """Whether each node of the tier answers, and writes to its disk."""
    nodes = [p for p in status["processes"] if p["role"] == "store"]
    if not nodes:
        yield skipped("store", "this platform has none")
    for node in nodes:
        try:
            stats = asyncio.run(kvcache.stats(node["address"], ANSWER_S, dial=dial))
        except DiptychError as error:
            yield bad("store", f"{node['id']}: {error.message}", f"read its log: {node['id']}.log")
            continue
        failed = stats.counters.get("dropped_error", 0)
        if failed:
            said = f"{node['id']} could not write {failed} parts"
            yield warning("store", said, "look at the disk of the cache folder")
        else:
            parts = stats.memory_parts + stats.disk_parts
            yield ok("store", f"{node['id']} answers and holds {parts} parts")


def certificates(status: dict[str, Any]) -> Finding:
    """Whether those that stations show each other will last."""
    if not status["certificates"]:
        return skipped("certificates", "stations talk without TLS (--station-tls)")
    folder = Path(status["certificates"])
    try:
        ends = [(authority.ends_at(path), path.name) for path in folder.glob("*.crt")]
    except (OSError, ValueError) as error:
        return bad("certificates", f"{folder}: {error}", "restart diptych up --station-tls")
    first, name = min(ends)
    left_days = (first - datetime.datetime.now(datetime.UTC)).days
    said = f"{len(ends)} are there; the first, {name}, ends in {left_days} days"
    if left_days < LEAST_DAYS:
        return bad("certificates", said, f"diptych certs --renew --out {folder}")
    return ok("certificates", said)


def clock(gateway: Gateway) -> Finding:
    """Whether the gateway's time is ours."""
    try:
        with closing(gateway.connect(ANSWER_S)) as connection:
            connection.request("GET", "/livez")
            reply = connection.getresponse()
            reply.read()
    except (OSError, HTTPException) as error:
        return bad("clock", f"the gateway does not answer: {error}", "see `diptych status`")
    theirs = email.utils.parsedate_to_datetime(reply.headers["date"]).timestamp()
    skew_s = abs(time.time() - theirs)  # the header has whole seconds
    if skew_s > SKEW_S:
        return bad("clock", f"{skew_s:.0f} s from the gateway's", "let NTP set both clocks")
    return ok("clock", "agrees with the gateway's")


def canary(status: dict[str, Any], gateway: Gateway) -> Finding:
    """A real request: its length and usage are known before, and its KV must have moved."""
    fix = "run `diptych status`, and read the logs of prefill and decode workers"
    decoders = [p for p in status["processes"] if p["role"] == "decode"]
    try:
        before = sum(_moved_bytes(p["metrics_address"]) for p in decoders)
        began_s = time.monotonic()
        code, said = _ask(gateway, status["model"])
        took_s = time.monotonic() - began_s
        moved = sum(_moved_bytes(p["metrics_address"]) for p in decoders) - before
    except (OSError, HTTPException) as error:
        return bad("canary", f"no answer: {error or type(error).__name__}", fix)
    if code != 200:
        return bad("canary", f"answered with {code}: {said[:200]}", fix)
    answer = json.loads(said)
    usage, choice = answer["usage"], answer["choices"][0]
    got, finish = usage["completion_tokens"], choice["finish_reason"]
    if (got, finish) != (CANARY_TOKENS, "length") or usage["prompt_tokens"] < 1:
        what = f"{CANARY_TOKENS} tokens were due, {got} came and it ended by {finish}"
        return bad("canary", what, fix)
    told = f"{CANARY_TOKENS} tokens in {took_s:.2f} s"
    if not decoders:
        return ok("canary", f"{told}; hybrid workers move no KV")
    if moved <= 0:
        return bad("canary", f"{told}, but no KV moved from prefill to decode", fix)
    return ok("canary", f"{told}; {moved:,.0f} bytes of KV moved from prefill to decode")


def _ask(gateway: Gateway, model: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {gateway.canary}", "Content-Type": "application/json"}
    body = json.dumps({"model": model, **CANARY, "max_tokens": CANARY_TOKENS})
    with closing(gateway.connect(CANARY_TIMEOUT_S)) as connection:
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(errors="replace")


def _moved_bytes(address: str) -> float:
    """What a decode worker has fetched since it lives."""
    with closing(HTTPConnection(address, timeout=ANSWER_S)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.findall(rf"^{m.KV_TRANSFER_BYTES.name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S):
            return True
    except OSError:
        return False
