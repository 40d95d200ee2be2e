"""Where settings come from: flag over environment over file, read once, frozen.

The only reader of the environment. A setting `max_model_len` is the flag `--max-model-len`, the
variable `DIPTYCH_MAX_MODEL_LEN` and the key `max_model_len` of the TOML file given by `--config`.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from diptych.config.fields import Folder, LogFormat, LogLevel, Secret
from diptych.core.errors import Misconfigured

PREFIX = "DIPTYCH_"
CONFIG_VARIABLE = "DIPTYCH_CONFIG"  # the file, when no --config names it


def default_data_dir() -> Path:
    """${XDG_CACHE_HOME:-~/.cache}/diptych."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "diptych"


class Common(BaseSettings):
    """What every process knows."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Folder = Field(
        default_factory=default_data_dir,
        description="folder for secrets, logs, state and made checkpoints",
    )
    log_level: LogLevel = Field("info", description="least severe level that is logged")
    log_format: LogFormat = Field("text", description="lines for people, or JSON for programs")
    cluster_secret: Secret = Field(
        None, description="signs tickets between stations; default: made once in the data folder"
    )
    master_key: Secret = Field(
        None, description="separates tenants' caches; default: made once in the data folder"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment. `load` adds the file below both."""
        return init_settings, env_settings

    @classmethod
    def load(cls, flags: Mapping[str, Any], config: Path | None = None) -> Self:
        """Read all sources; Misconfigured names the flag, variable or key that is wrong.

        A flag that is None was not given.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        variables = _known_variables()
        config = config or (Path(v) if (v := os.environ.get(CONFIG_VARIABLE)) else None)
        file = _read_file(config) if config else {}
        below = {
            name: value
            for name, value in file.items()
            if name in cls.model_fields and name not in given and name not in variables
        }
        try:
            return cls(**below, **given)
        except ValidationError as error:
            raise _explain(cls, error, given, variables, file, config) from None


def known_names() -> frozenset[str]:
    """Every setting of every process: one environment serves them all."""
    return frozenset(name for each in kinds_of(Common) for name in each.model_fields)


def kinds_of(settings: type[Common]) -> Iterator[type[Common]]:
    """Those and all that build on them."""
    yield settings
    for kind in settings.__subclasses__():
        yield from kinds_of(kind)


def _known_variables() -> dict[str, str]:
    """The DIPTYCH_* variables that are set, by setting; Misconfigured if one is unknown."""
    known = known_names()
    found: dict[str, str] = {}
    for variable, value in os.environ.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in known or variable != variable.upper():
            shown = "…" if _is_secret(name) else repr(value)
            near = _nearest(name, known)
            hint = f"; did you mean {PREFIX}{near.upper()}?" if near else ""
            raise Misconfigured(f"{variable}={shown}: no such setting{hint}")
        found[name] = value
    return found


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise Misconfigured(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"--config {path}: not TOML: {error}") from None
    known = known_names()
    for name in content:
        if name not in known:
            near = _nearest(name, known)
            hint = f"; did you mean {near}?" if near else ""
            raise Misconfigured(f"{path}: {name}: no such setting{hint}")
    return content


def _explain(
    cls: type[Common],
    error: ValidationError,
    flags: Mapping[str, Any],
    variables: Mapping[str, str],
    file: Mapping[str, Any],
    config: Path | None,
) -> Misconfigured:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    dashed = name.replace("_", "-")
    field = cls.model_fields.get(name)
    wanted = f" ({field.description})" if field else ""
    problem = first["msg"].removeprefix("Value error, ")
    problem = problem[:1].lower() + problem[1:]
    if first["type"] == "missing":
        hint = f"give --{dashed} or {PREFIX}{name.upper()}"
        return Misconfigured(f"--{dashed} is missing{wanted}: {hint}")
    if name in flags:
        where, value = f"--{dashed} ", flags[name]
    elif name in variables:
        where, value = f"{PREFIX}{name.upper()}=", variables[name]
    else:
        where, value = f"{config}: {name} = ", file.get(name)
    shown = "…" if _is_secret(name) else repr(str(value))
    return Misconfigured(f"{where}{shown}: {problem}{wanted}")


def _nearest(name: str, known: frozenset[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower(), sorted(known), n=1)), None)


def _is_secret(name: str) -> bool:
    words = ("secret", "key", "token", "password", "redis", "otlp")
    paths = ("tls_key", "station_key")
    return name not in paths and any(word in name for word in words)
