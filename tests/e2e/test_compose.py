"""What docker-compose.yml starts, as processes on this machine with a real Redis."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis
import yaml

from diptych.supervisor.ports import FreePorts
from diptych.testing.compose import Translation, running, services
from diptych.testing.redis import RedisServer, redis_server

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
READY_S = 150.0


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
    """All pools whole: a path exists much earlier."""
    url = site.url("router-1", "9100")
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        joined = [name for name, log in site.logs.items() if "joined the fleet" in log.read_text()]
        if len(joined) == 5:
            reply = httpx.get(f"{site.url('gateway-1', '8000')}/readyz", timeout=5)
            if reply.status_code == 200:
                return
        time.sleep(0.2)
    tails = {name: log.read_text()[-500:] for name, log in site.logs.items()}
    raise AssertionError(f"not ready; router's metrics at {url}\n{tails}")


def test_there_are_two_of_each_pool_and_one_router() -> None:
    names = [service.name for service in services(COMPOSE) if not service.is_once]
    assert names == [
        "router-1", "store-1", "store-2",
        "prefill-1", "prefill-2", "decode-1", "decode-2", "gateway-1",
    ]  # fmt: skip


def test_requests_are_served_by_all_workers_and_kept_in_both_stores(site: Site) -> None:
    with httpx.Client(base_url=site.url("gateway-1", "8000"), timeout=60) as http:
        for number in range(8):
            body = {
                "model": "tiny-noise",
                "messages": [{"role": "user", "content": f"{number} " * 150}],
                "max_tokens": 4,
                "ignore_eos": True,
                "thinking": {"type": "disabled"},
            }
            reply = http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert reply.json()["usage"]["completion_tokens"] == 4
    for name in ("prefill-1", "prefill-2", "decode-1", "decode-2"):
        assert total(site, name, "llm_generation_tokens_total") > 0
    moved = [total(site, name, "llm_kv_transfer_bytes_total") for name in ("decode-1", "decode-2")]
    assert min(moved) > 0
    assert sum(total(site, name, "llm_tier_parts") for name in ("store-1", "store-2")) > 0


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
