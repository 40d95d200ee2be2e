"""What deploy/ says fits what there is: metric names, labels, files, the compose schema."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.telemetry import metrics as m

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = ROOT / "docker-compose.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "diptych.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
INSTALL = "docker-compose is not installed; this test needs it: apt-get install docker-compose"
OF_PROMETHEUS = {"role", "instance", "job", "le"}
SUFFIXES = {m.Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), m.Kind.COUNTER: ("",)}
KNOWN = {
    metric.name + suffix: metric for metric in m.ALL for suffix in SUFFIXES.get(metric.kind, ("",))
}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Of dashboard and alerts, each with its title."""
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_every_metric_in_a_query_exists_with_its_labels(title: str, expression: str) -> None:
    names = set(re.findall(r"\bllm_\w+", expression))
    assert names <= KNOWN.keys(), names - KNOWN.keys()
    allowed = OF_PROMETHEUS.union(*(KNOWN[name].labels for name in names))
    for name, selector in re.findall(r"\b(llm_\w+)\{(.*?)\}", expression):
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert used <= OF_PROMETHEUS | set(KNOWN[name].labels)
    for grouped in re.findall(r"\bby \((.*?)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= allowed
    for name in re.findall(r"(?:rate|increase)\((llm_\w+)", expression):
        assert KNOWN[name].kind is not m.Kind.GAUGE, "only what grows has a rate"
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_has_its_parts_and_no_two_panels_in_one_place() -> None:
    assert [panel["title"] for panel in panels() if panel["type"] == "row"] == [
        "Users", "Prefill and decode", "Cache economics", "Faults", "Scaling and routing",
    ]  # fmt: skip
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells = [
        (x, y)
        for panel in panels()
        for box in [panel["gridPos"]]
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"]
            assert f"`{rule['alert']}`" in (ROOT / "docs" / "operations.md").read_text()


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    [source] = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )["datasources"]
    used = {p["datasource"]["uid"] for p in panels() if "datasource" in p}
    assert used == {source["uid"]}
    [provider] = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/diptych.yml").read_text()
    )["providers"]
    mounts = yaml.safe_load(COMPOSE.read_text())["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts


def test_the_compose_file_is_one() -> None:
    binary = shutil.which("docker-compose")
    assert binary is not None, INSTALL
    done = subprocess.run(
        [binary, "-f", str(COMPOSE), "config", "-q"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_compose_mounts_exists_and_only_loopback_is_published() -> None:
    for name, service in yaml.safe_load(COMPOSE.read_text())["services"].items():
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (ROOT / volume.partition(":")[0]).is_dir(), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


def test_the_image_holds_every_folder_that_is_imported() -> None:
    copied = re.findall(r"^COPY (\w+) \1$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    linked = [path.name for path in (ROOT / "src" / "diptych").iterdir() if path.is_symlink()]
    assert set(copied) == {"src", *linked}
