"""What the operator decides, as configured."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from diptych.config import ApiSettings, GatewaySettings
from diptych.core.errors import Misconfigured
from diptych.gateway.policy import Alias, Policy, policy_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "gateway-options.md"


def settings(tmp_path: Path, **flags: object) -> GatewaySettings:
    (tmp_path / "config.json").write_text("{}")
    return GatewaySettings.load({"checkpoint": str(tmp_path), **flags})


def test_nothing_configured_is_the_documented_default(tmp_path: Path) -> None:
    assert policy_of(settings(tmp_path)) == Policy()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("sampling_policy", "deepseek", "deepseek"),
        ("reasoning_field", "both", "both"),
        ("stream_usage_style", "deepseek", "deepseek"),
        ("keepalive_style", "chunk", "chunk"),
        ("nonstream_keepalive_s", "2.5", 2.5),
        ("queue_timeout_s", "30", 30.0),
        ("map_user_to_user_id", "true", True),
        ("allow_raw_special", "false", False),
        ("messages_default_thinking", "false", False),
        ("clip_explicit_max_tokens", "true", True),
        ("strict_reasoning_passback", "true", True),
        ("deepseek_compat_errors", "true", True),
        ("max_n", "3", 3),
        ("allow_tasks", "true", True),
        ("allow_render", "true", True),
        ("allow_openapi", "false", False),
        ("git_commit", "0123abc", "0123abc"),
    ],
)
def test_each_variable_reaches_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: object
) -> None:
    monkeypatch.setenv(f"DIPTYCH_{name.upper()}", value)
    assert getattr(policy_of(settings(tmp_path)), name) == expected


def test_every_setting_of_the_api_is_an_option() -> None:
    configured = ApiSettings.model_fields.keys() - ApiSettings.__mro__[1].model_fields.keys()
    names = {field.name for field in fields(Policy)} - {"aliases"} | {"model_aliases"}
    assert names == configured


def test_every_option_is_documented_with_its_default() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", DOCUMENT.read_text(), re.M))
    known = ApiSettings.model_fields
    assert documented.keys() == known.keys() - ApiSettings.__mro__[1].model_fields.keys()
    for name, told in documented.items():
        default = known[name].default
        text = str(default).lower() if isinstance(default, bool) else str(default or "")
        assert told.strip() in (f"`{text}`", "" if text else "none"), name


def test_aliases_are_names_patterns_and_defaults(tmp_path: Path) -> None:
    text = "deepseek-chat=plain, deepseek-reasoner=thinking,claude-*"
    policy = policy_of(settings(tmp_path, model_aliases=text))
    assert policy.aliases == (
        Alias("deepseek-chat", thinks=False),
        Alias("deepseek-reasoner", thinks=True),
        Alias("claude-*"),
    )
    assert policy.alias("claude-sonnet-5") == Alias("claude-*")
    assert policy.alias("xclaude-1") is None
    assert not policy.thinks("deepseek-chat")
    assert policy.thinks("deepseek-reasoner", default=False)
    assert policy.thinks("claude-1") and not policy.thinks("claude-1", default=False)


@pytest.mark.parametrize("text", ["a b", "name=maybe", "=plain", "na[me]"])
def test_an_alias_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured, match="model-aliases"):
        settings(tmp_path, model_aliases=text)
