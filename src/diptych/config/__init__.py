"""Settings of every process."""

from diptych.config.commands import (
    CacheSettings,
    ChatSettings,
    DoctorSettings,
    DrainSettings,
    KeysSettings,
    UpSettings,
)
from diptych.config.fields import addresses_of, routes_of
from diptych.config.front import ApiSettings, GatewaySettings, Public
from diptych.config.secret_files import secrets_of
from diptych.config.shared import Observed, ServingSettings, Stationed, Traced
from diptych.config.sources import Common
from diptych.config.stations import CacheFolder, RouterSettings, StoreSettings, WorkerSettings

__all__ = [
    "ApiSettings",
    "CacheFolder",
    "CacheSettings",
    "ChatSettings",
    "Common",
    "DoctorSettings",
    "DrainSettings",
    "GatewaySettings",
    "KeysSettings",
    "Observed",
    "Public",
    "RouterSettings",
    "ServingSettings",
    "Stationed",
    "StoreSettings",
    "Traced",
    "UpSettings",
    "WorkerSettings",
    "addresses_of",
    "routes_of",
    "secrets_of",
]
