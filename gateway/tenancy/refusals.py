"""What a caller is told who may not, or not now (api.md 2.2)."""

from diptych.core.errors import OverQuota
from diptych.gateway.errors import HttpError
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.meters import Meter, Places, Quota, Taken

BAD_KEY = "Incorrect API key provided, or none. Send it as `Authorization: Bearer sk-…`."

_DIMENSIONS = {
    "rpm": "requests per minute",
    "tpm": "tokens per minute",
    "places": "requests at a time",
    "day": "tokens per day",
    "month": "tokens per month",
}

_LIMITS = {
    "rpm": "requests_per_min",
    "tpm": "tokens_per_min",
    "places": "concurrency",
    "day": "tokens_per_day",
    "month": "tokens_per_month",
}


def bad_key() -> HttpError:
    """One text, whatever is wrong with the key."""
    return HttpError(401, "invalid_api_key", BAD_KEY, {"www-authenticate": "Bearer"})


def bad_keys_too_often(wait_s: float) -> OverQuota:
    text = "Too many attempts with an incorrect API key from this address."
    return OverQuota(text, retry_after_s=wait_s)


def no_scope(scope: Scope) -> HttpError:
    text = f"This API key lacks the scope `{scope.value}`."
    return HttpError(403, "insufficient_permissions", text)


def no_model(model: str) -> HttpError:
    text = f"This API key may not use the model `{model[:128]}`."
    return HttpError(403, "insufficient_permissions", text)


def over_limit(taken: Taken, units: int) -> HttpError | OverQuota:
    """Which limit, and when to come back."""
    meter = taken.refused
    assert meter is not None
    dimension, owner = _DIMENSIONS[kind_of(meter)], owner_of(meter)
    if isinstance(meter, Quota):
        text = f"This {owner} has used up its {meter.limit} {dimension}."
        return HttpError(402, "insufficient_quota", text, {"x-should-retry": "false"})
    if isinstance(meter, Places):
        text = f"This {owner} may have {meter.limit} {dimension}."
    elif meter.can_ever(units):
        text = f"This {owner} may use {meter.limit} {dimension}; this request needs {units}."
    else:
        text = f"This request needs {units} of {meter.limit} {dimension} of this {owner}: too large"
        return HttpError(429, "rate_limit_exceeded", text, {"x-should-retry": "false"})
    return OverQuota(text, retry_after_s=taken.wait_us / 1e6)


def aborted() -> HttpError:
    text = "An operator ended this request."
    return HttpError(503, "aborted", text, {"x-should-retry": "false"})


def kind_of(meter: Meter) -> str:
    """`rpm`, `tpm`, `places`, `day` or `month`; meters are named so in admission.py."""
    return meter.name.split(":")[4]


def limit_of(meter: Meter) -> str:
    """Which limit, as keys have them."""
    return _LIMITS[kind_of(meter)]


def owner_of(meter: Meter) -> str:
    """`key` or `tenant`."""
    return meter.name.split(":")[2]
