"""Settings: where they come from, and how they are refused."""

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from diptych.config import (
    Common,
    GatewaySettings,
    RouterSettings,
    UpSettings,
    WorkerSettings,
    secrets_of,
)
from diptych.config.sources import kinds_of
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("DIPTYCH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def refusal(settings: type[Common], **flags: object) -> str:
    with pytest.raises(Misconfigured) as error:
        settings.load(flags)
    return error.value.message


def test_flag_beats_variable_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "diptych.toml"
    file.write_text("port = 9001\nprefill = 3\ndecode = 4\n")
    monkeypatch.setenv("DIPTYCH_PORT", "9002")
    monkeypatch.setenv("DIPTYCH_PREFILL", "5")
    settings = UpSettings.load({"port": "9003", "prefill": None}, file)
    assert (settings.port, settings.prefill, settings.decode) == (9003, 5, 4)
    assert settings.numerics == "served"


def test_the_file_may_be_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "diptych.toml").write_text("port = 9001\n")
    monkeypatch.setenv("DIPTYCH_CONFIG", str(tmp_path / "diptych.toml"))
    assert UpSettings.load({}).port == 9001


def test_one_environment_serves_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPTYCH_MAX_NUM_SEQS", "8")  # a worker's setting, not the router's
    assert RouterSettings.load({}).listen == "127.0.0.1:7000"


def test_an_unknown_variable_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIPTYCH_PROT", "8001")
    assert refusal(UpSettings) == "DIPTYCH_PROT='8001': no such setting; did you mean DIPTYCH_PORT?"


def test_an_unknown_variable_that_looks_secret_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIPTYCH_CLUSTER_SECRETS", "hush hush hush hush")
    message = refusal(UpSettings)
    assert "hush" not in message
    assert "DIPTYCH_CLUSTER_SECRET?" in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", "abc", "valid integer"),
        ("port", "70000", "less than 65536"),
        ("port", "", "valid integer"),
        ("decode", "-1", "greater than or equal to 0"),
        ("numerics", "fp3", "'served', 'cache', 'exact' or 'exact64'"),
        ("hybrid", "perhaps", "valid boolean"),
        ("max_model_len", "3", "greater than or equal to 16"),
        ("checkpoint", "/nowhere", "expected a folder with a config.json"),
        ("model_name", "a b", "match pattern"),
        ("log_level", "loud", "'debug', 'info'"),
    ],
)
def test_a_malformed_value_is_refused_with_its_source_and_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, words: str
) -> None:
    flag = refusal(UpSettings, **{name: value})
    assert flag.startswith(f"--{name.replace('_', '-')} '{value}': ")
    assert words in flag
    monkeypatch.setenv(f"DIPTYCH_{name.upper()}", value)
    variable = refusal(UpSettings)
    assert variable.startswith(f"DIPTYCH_{name.upper()}='{value}': ")
    monkeypatch.delenv(f"DIPTYCH_{name.upper()}")
    file = tmp_path / "diptych.toml"
    file.write_text(f"{name} = '{value}'\n")
    with pytest.raises(Misconfigured) as error:
        UpSettings.load({}, file)
    assert error.value.message.startswith(f"{file}: {name} = '{value}': ")


def test_a_short_secret_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPTYCH_CLUSTER_SECRET", "hush")
    message = refusal(RouterSettings)
    assert message.startswith("DIPTYCH_CLUSTER_SECRET=…: expected at least 16 characters")


def test_a_missing_setting_names_its_flag_and_its_variable() -> None:
    message = refusal(GatewaySettings)
    assert message.startswith("--checkpoint is missing")
    assert "DIPTYCH_CHECKPOINT" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "not TOML"),
        ("prot = 3", "prot: no such setting; did you mean port?"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "diptych.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Misconfigured) as error:
        UpSettings.load({}, file)
    assert str(file) in error.value.message
    assert words in error.value.message


@pytest.mark.parametrize("listen", ["7000", "host:", ":7000", "host:x", "host:65536"])
def test_an_address_is_host_and_port(listen: str) -> None:
    assert "expected host:port" in refusal(RouterSettings, listen=listen)


def test_a_worker_is_named_after_its_role(checkpoint: Path) -> None:
    settings = WorkerSettings.load({"role": "prefill", "checkpoint": str(checkpoint)})
    assert settings.role is Role.PREFILL
    assert settings.worker_id.startswith("prefill-")
    assert "expected prefill" in refusal(WorkerSettings, role="router", checkpoint=str(checkpoint))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("admin_listen", "nonsense", "expected host:port"),
        ("tls_certificate", "/nowhere", "expected a file"),
        ("tls_key", "/nowhere", "expected a file"),
        ("station_ca", "/nowhere", "expected a file"),
        ("station_key", "/nowhere", "expected a file"),
        ("trusted_proxies", "10.0.0.0/8,nonsense", "does not appear to be an IPv4 or IPv6"),
        ("route_retention", "*/messages=forever", "expected patterns of paths, each with =CLASS"),
        ("log_format", "xml", "'text' or 'json'"),
        ("metrics_alias", "sglang", "'off' or 'vllm'"),
        ("usage_days", "0", "greater than or equal to 1"),
        ("allow_anonymous", "perhaps", "valid boolean"),
    ],
)
def test_a_malformed_setting_of_the_gateway_is_refused(
    checkpoint: Path, name: str, value: str, words: str
) -> None:
    message = refusal(GatewaySettings, checkpoint=str(checkpoint), **{name: value})
    assert message.startswith(f"--{name.replace('_', '-')} '{value}': ")
    assert words in message


@pytest.mark.parametrize("value", ["127.0.0.1:4317", "http://user:word@collector:4318"])
def test_a_collector_is_a_url_without_a_password_and_is_not_shown(
    checkpoint: Path, value: str
) -> None:
    message = refusal(GatewaySettings, checkpoint=str(checkpoint), otlp_endpoint=value)
    assert message.startswith("--otlp-endpoint …: expected http://host:port or https://host:port")
    assert value not in message


def test_where_redis_is_may_hold_a_password_and_is_not_shown(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIPTYCH_REDIS_URL", "http://:hush@somewhere")
    message = refusal(GatewaySettings, checkpoint=str(checkpoint))
    assert message.startswith("DIPTYCH_REDIS_URL=…: expected redis://")
    assert "hush" not in message


def test_settings_are_frozen() -> None:
    settings = RouterSettings.load({})
    with pytest.raises(ValidationError):
        settings.listen = "127.0.0.1:1"  # type: ignore[misc]


def test_every_setting_says_what_it_is() -> None:
    for settings in kinds_of(Common):
        for name, field in settings.model_fields.items():
            assert field.description, name


def test_secrets_are_made_once_and_for_the_owner_only(tmp_path: Path) -> None:
    common = Common.load({"data_dir": str(tmp_path / "new")})
    first = secrets_of(common)
    assert first == secrets_of(common)
    assert first[0] != first[1]
    assert all(len(secret) >= 32 for secret in first)
    files = sorted(path for path in (tmp_path / "new").iterdir())
    assert [path.name for path in files] == ["cluster_secret", "master_key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_given_secrets_are_used_and_not_written(tmp_path: Path) -> None:
    common = Common.load(
        {"data_dir": str(tmp_path), "cluster_secret": "s" * 16, "master_key": "k" * 16}
    )
    assert secrets_of(common) == (b"s" * 16, b"k" * 16)
    assert list(tmp_path.iterdir()) == []
    assert "s" * 16 not in repr(common)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    common = Common.load({"data_dir": str(tmp_path)})
    secrets_of(common)
    (tmp_path / "master_key").chmod(0o644)
    with pytest.raises(Misconfigured, match="master_key can be read by others"):
        secrets_of(common)


def test_the_default_data_folder_follows_xdg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Common.load({}).data_dir == tmp_path / "diptych"
