"""Keys, limits, accounts and TLS of a whole platform, by the command line and official clients."""

import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import trustme

from diptych.testing.platform import CLI, MODEL, Platform, environment, free_port, platform

USER = [{"role": "user", "content": "Hello, who are you? " * 40}]
ANSWER = {"thinking": {"type": "disabled"}, "ignore_eos": True}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("tenancy")) as running:
        yield running


def keys(data_dir: Path, *arguments: str) -> Any:
    """What `diptych keys … --json` prints."""
    command = [*CLI, "keys", *arguments, "--json", "--data-dir", str(data_dir)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def client(running: Platform, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.base_url}/v1", api_key=key, max_retries=0, timeout=60)


def ask(running: Platform, key: str, **fields: Any) -> Any:
    wish = {"model": MODEL, "messages": USER, "max_tokens": 4, "extra_body": ANSWER, **fields}
    with client(running, key) as opened:
        return opened.chat.completions.create(**wish)


def admin(running: Platform, key: str, method: str, path: str, **fields: Any) -> Any:
    url = f"{running.state['admin_url']}/admin/v1{path}"
    reply = httpx.request(method, url, headers={"authorization": f"Bearer {key}"}, **fields)
    assert reply.status_code < 400, reply.text
    return reply.json()


@pytest.fixture(scope="module")
def operator(running: Platform) -> str:
    """The first key: from now on nobody comes in without one."""
    assert ask(running, "anything").usage.completion_tokens == 4
    with httpx.Client(base_url=running.state["admin_url"]) as open_admin:
        assert open_admin.get("/admin/v1/status").json()["ready"]
        assert open_admin.post("/admin/v1/gateway/drain").status_code == 401
    made = keys(running.data_dir, "create", "--name", "operator", "--scope", "admin:write")
    key: str = made["key"]
    return key


def test_the_classes_of_the_official_client_are_met(running: Platform, operator: str) -> None:
    with pytest.raises(openai.AuthenticationError) as unknown:
        ask(running, "anything")
    assert unknown.value.code == "invalid_api_key"
    assert unknown.value.response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.PermissionDeniedError) as forbidden:
        ask(running, operator)
    assert forbidden.value.code == "insufficient_permissions"

    limited = keys(running.data_dir, "create", "--name", "a", "--requests-per-min", "2")["key"]
    for _ in range(2):
        assert ask(running, limited).usage.completion_tokens == 4
    with pytest.raises(openai.RateLimitError) as caught:
        ask(running, limited)
    assert caught.value.code == "rate_limit_exceeded"
    headers = caught.value.response.headers
    assert 25_000 < int(headers["retry-after-ms"]) <= 45_000
    assert 25 < int(headers["retry-after"]) <= 46
    assert headers["x-ratelimit-remaining-requests"] == "0"

    poor = keys(running.data_dir, "create", "--name", "b", "--tokens-per-day", "5")["key"]
    with pytest.raises(openai.APIStatusError) as paid:
        ask(running, poor)
    assert (paid.value.status_code, paid.value.code) == (402, "insufficient_quota")
    assert paid.value.response.headers["x-should-retry"] == "false"


def test_a_client_that_waits_as_told_gets_its_answer(running: Platform, operator: str) -> None:
    key = keys(running.data_dir, "create", "--name", "patient", "--requests-per-min", "30")["key"]
    with client(running, key).with_options(max_retries=2) as patient:
        for _ in range(31):  # the last one has to wait two seconds
            patient.models.list()


def test_usage_adds_up_over_every_ending(running: Platform, operator: str) -> None:
    made = keys(running.data_dir, "create", "--name", "counted", "--tenant", "acme")
    whole = ask(running, made["key"]).usage
    with client(running, made["key"]) as opened:
        stream = opened.chat.completions.create(
            model=MODEL,
            messages=USER,
            max_tokens=4,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=ANSWER,
        )
        streamed = list(stream)[-1].usage
    assert streamed is not None
    with pytest.raises(openai.BadRequestError):
        ask(running, made["key"], temperature=9)
    with client(running, made["key"]) as leaving:
        wish = {"model": MODEL, "messages": USER, "max_tokens": 2000, "extra_body": ANSWER}
        aborted = leaving.chat.completions.create(**wish, stream=True)
        for _ in range(3):
            next(aborted)
        aborted.close()
    running.wait_for_baseline()

    def total() -> Any:
        totals = admin(running, operator, "GET", "/usage")["data"]
        return next(total for total in totals if total["group"] == made["id"])

    deadline = time.monotonic() + 5
    while (seen := total())["requests"] < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (seen["requests"], seen["errors"]) == (4, 2)
    told = whole.prompt_tokens + streamed.prompt_tokens
    assert seen["prompt_tokens"] == told + whole.prompt_tokens
    made_at_most = seen["completion_tokens"] - whole.completion_tokens - streamed.completion_tokens
    assert 1 <= made_at_most < 2000
    tenants = admin(running, operator, "GET", "/usage?group_by=tenant")["data"]
    assert {"acme", "default"} <= {total["group"] for total in tenants}


def test_two_tenants_never_share_a_cache(running: Platform, operator: str) -> None:
    a, again, b = (
        keys(running.data_dir, "create", "--name", name, "--tenant", tenant)["key"]
        for name, tenant in (("a1", "one"), ("a2", "one"), ("b", "two"))
    )

    def cached(key: str, **fields: Any) -> int:
        extra = {"extra_body": {**ANSWER, **fields}}
        details = ask(running, key, **extra).usage.prompt_tokens_details
        return 0 if details is None else details.cached_tokens

    assert cached(a) == 0
    assert cached(b) == 0
    assert cached(again, cache_salt="s") == 0
    assert cached(again, user_id="u") == 0


def test_a_key_can_be_rotated_and_revoked_while_it_is_used(
    running: Platform, operator: str
) -> None:
    made = keys(running.data_dir, "create", "--name", "turning")
    rotated = keys(running.data_dir, "rotate", made["id"], "--overlap-s", "600")
    for key in (made["key"], rotated["key"]):
        with client(running, key) as opened:
            assert opened.models.list().data
    assert keys(running.data_dir, "revoke", made["id"])["state"] == "revoked"
    for key in (made["key"], rotated["key"]):
        with pytest.raises(openai.AuthenticationError), client(running, key) as opened:
            opened.models.list()
    listed = {key["id"]: key for key in keys(running.data_dir, "list")}
    assert listed[made["id"]]["state"] == "revoked"
    assert "key" not in listed[made["id"]]


def test_the_operator_drains_and_sees_the_fleet(running: Platform, operator: str) -> None:
    status = admin(running, operator, "GET", "/status")
    assert status["pools"].keys() == {"gateway", "prefill", "decode"}
    admin(running, operator, "POST", "/gateway/drain")
    key = keys(running.data_dir, "create", "--name", "late")["key"]
    with pytest.raises(openai.InternalServerError) as caught:
        ask(running, key)
    assert (caught.value.status_code, caught.value.code) == (503, "draining")
    assert httpx.get(f"{running.base_url}/readyz").status_code == 503
    admin(running, operator, "POST", "/gateway/undrain")
    assert ask(running, key).choices


def test_the_audit_log_tells_it_all_and_no_secret_is_anywhere(
    running: Platform, operator: str
) -> None:
    made = keys(running.data_dir, "create", "--name", "hidden")
    ask(running, made["key"])
    audit = admin(running, operator, "GET", "/audit")
    assert audit["first_broken"] is None
    actions = {entry["action"] for entry in audit["data"]}
    assert {"key.create", "auth.failed"} <= actions
    secrets = [made["key"], operator]
    for path in running.data_dir.rglob("*"):
        if path.is_file() and "checkpoints" not in path.parts:
            content = path.read_bytes()
            assert not any(secret[16:].encode() in content for secret in secrets), path
    running.wait_for_baseline()


def test_a_public_port_without_keys_refuses_to_start(tmp_path: Path) -> None:
    command = [*CLI, "up", "--host", "0.0.0.0", "--port", str(free_port())]
    done = subprocess.run(
        [*command, "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode != 0
    assert re.search(r"--host 0\.0\.0\.0 can be reached .*--allow-anonymous", done.stderr)


def test_https_is_served_and_the_platform_knows_itself(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    flags = ["--hybrid", "--tls-certificate", str(certificate), "--tls-key", str(key)]
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    secret = keys(data_dir, "create", "--name", "n")["key"]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with platform(data_dir, *flags, verify=context) as secure:
        assert secure.base_url.startswith("https://")
        headers = {"authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=secure.base_url, verify=context, headers=headers) as http:
            body = {"model": "m", "messages": USER, "max_tokens": 2, **ANSWER}
            [model] = http.get("/v1/models").json()["data"]
            body["model"] = model["id"]
            assert http.post("/v1/chat/completions", json=body, timeout=60).status_code == 200
            reissued = authority.issue_cert("127.0.0.1")
            key.write_bytes(reissued.private_key_pem.bytes())
            certificate.write_bytes(b"".join(b.bytes() for b in reissued.cert_chain_pems))
        port = int(secure.base_url.rpartition(":")[2])
        shown = ssl.get_server_certificate(("127.0.0.1", port))
        assert shown.encode().strip() in certificate.read_bytes()
