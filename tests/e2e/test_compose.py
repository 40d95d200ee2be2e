"""What docker-compose.yml starts, as processes on this machine with a real Redis."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis
import yaml

from diptych.core.errors import Lost
from diptych.router.client import status
from diptych.supervisor.ports import FreePorts
from diptych.testing.compose import Translation, run_again, running, services
from diptych.testing.redis import RedisServer, redis_server
from diptych.transport.tls import operator_dial

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
READY_S = 240.0
PORTS = {"router": "7000", "store": "7100"}

pytestmark = pytest.mark.timeout(400)  # nine processes start, on whatever machine


@dataclass(frozen=True)
class Site:
    translation: Translation
    redis: RedisServer
    logs: dict[str, Path]

    def url(self, service: str, port: str) -> str:
        return f"http://{self.translation.address(service, service, port)}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("compose")
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        translation = Translation(folder, FreePorts(), server.url)
        with running(COMPOSE, folder, translation) as logs:
            started = Site(translation, server, logs)
            wait_until_ready(started)
            yield started


def wait_until_ready(site: Site) -> None:
    """All pools whole at both routers: a path exists much earlier."""
    url = site.url("router-1", "9100")
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        joined = sum(log.read_text().count("joined the fleet") for log in site.logs.values())
        if joined == 2 * 5:
            reply = httpx.get(f"{site.url('gateway-1', '8000')}/readyz", timeout=5)
            if reply.status_code == 200:
                return
        time.sleep(0.2)
    tails = {name: log.read_text()[-500:] for name, log in site.logs.items()}
    raise AssertionError(f"not ready; router's metrics at {url}\n{tails}")


def test_there_are_two_of_each_pool_and_two_routers() -> None:
    names = [service.name for service in services(COMPOSE) if not service.is_once]
    assert names == [
        "router-1", "router-2", "store-1", "store-2",
        "prefill-1", "prefill-2", "decode-1", "decode-2", "gateway-1",
    ]  # fmt: skip


def test_requests_are_served_by_all_workers_and_kept_in_both_stores(site: Site) -> None:
    with httpx.Client(base_url=site.url("gateway-1", "8000"), timeout=60) as http:
        for number in range(8):
            ask(http, f"{number} " * 150)
    for name in ("prefill-1", "prefill-2", "decode-1", "decode-2"):
        assert total(site, name, "llm_generation_tokens_total") > 0
    moved = [total(site, name, "llm_kv_transfer_bytes_total") for name in ("decode-1", "decode-2")]
    assert min(moved) > 0
    assert sum(total(site, name, "llm_tier_parts") for name in ("store-1", "store-2")) > 0


def test_routers_hear_each_other_and_redis_names_them_and_the_stores(site: Site) -> None:
    for name in ("router-1", "router-2"):
        assert total(site, name, "llm_router_peers") == 1
        assert "router is heard" in site.logs[name].read_text()
    with redis.Redis.from_url(site.redis.url, decode_responses=True) as client:
        for role in ("router", "store"):
            [key] = client.keys(f"diptych:members:*:{role}")
            assert set(client.hkeys(key)) == {
                site.translation.address("", f"{role}-{number}", port)
                for number, port in ((1, PORTS[role]), (2, PORTS[role]))
            }


def ask(http: httpx.Client, text: str) -> None:
    body = {
        "model": "tiny-noise",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "ignore_eos": True,
        "thinking": {"type": "disabled"},
    }
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 4


def test_stations_talk_tls_and_take_over_renewed_certificates(site: Site) -> None:
    folder = site.logs["router-1"].parent
    router = site.translation.address("router-1", "router-1", "7000")
    with pytest.raises(Lost, match="does it ask for a certificate"):
        asyncio.run(status(router, 10.0))
    run_again(COMPOSE, "certificates", folder, site.translation)
    operator = operator_dial(None, folder / "certificates")
    assert asyncio.run(status(router, 10.0, dial=operator)).ready
    with httpx.Client(base_url=site.url("gateway-1", "8000"), timeout=60) as http:
        ask(http, "again " * 150)
    reloaded = {n for n, log in site.logs.items() if "certificate reloaded" in log.read_text()}
    assert "router-1" in reloaded  # by a new connection
    assert reloaded & {"decode-1", "decode-2"}  # by a new call: one pulled the prompt's KV


def test_what_was_used_is_in_redis(site: Site) -> None:
    with redis.Redis.from_url(site.redis.url) as client:
        assert client.dbsize() > 0


def test_prometheus_asks_every_process_and_gets_metrics(site: Site) -> None:
    [job] = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    [static] = job["static_configs"]
    ours = [service.name for service in services(COMPOSE) if not service.is_once]
    assert static["targets"] == [f"{name}:9100" for name in ours]
    for name in ours:
        text = httpx.get(f"{site.url(name, '9100')}/metrics", timeout=10).text
        assert 'process_start_time_seconds{role="' in text


def total(site: Site, service: str, metric: str) -> float:
    text = httpx.get(f"{site.url(service, '9100')}/metrics", timeout=10).text
    lines = [line for line in text.splitlines() if line.startswith((f"{metric}{{", f"{metric} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
