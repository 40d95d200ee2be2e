"""Settings that several processes have."""

from pydantic import Field

from diptych.config.fields import Address, File, HttpUrl, MetricsAlias
from diptych.config.sources import Common

ROUTERS = "the routers' addresses, comma-separated"
MEMBERSHIP = "Redis by which routers and stores are found; default: by flags alone"


class Observed(Common):
    """How running processes are watched: passed on by `diptych up`."""

    metrics_alias: MetricsAlias = Field(
        "off", description="show the metrics a second time under the names of vLLM"
    )


class Stationed(Common):
    """Who talks to stations: with all three by mutual TLS, with none plainly."""

    station_ca: File | None = Field(
        None, description="CA whose certificates stations show each other (PEM); default: no TLS"
    )
    station_certificate: File | None = Field(
        None, description="our certificate chain between stations (PEM), as of `diptych certs`"
    )
    station_key: File | None = Field(None, description="its key (PEM, not encrypted)")


class Traced(Common):
    """Who tells traces: passed on by `diptych up`."""

    otlp_endpoint: HttpUrl | None = Field(
        None, description="OpenTelemetry collector (OTLP over HTTP) for traces; default: none"
    )


class ServingSettings(Observed, Stationed):
    """What every process but the supervisor knows."""

    metrics_listen: Address | None = Field(
        None, description="where /metrics is served (and /trace, by workers); default: nowhere"
    )
