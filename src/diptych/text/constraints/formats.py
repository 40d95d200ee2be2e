"""The `format` names we enforce, each as a regular expression for the whole string."""

_HOUR_MINUTE = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = _HOUR_MINUTE + r":[0-5]\d(\.\d{1,9})?(Z|[+\-]" + _HOUR_MINUTE + ")"
_DATE = (
    r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"  # 29 February depends on the year: not offered
)
_OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_GROUP = r"[0-9A-Fa-f]{1,4}"

STRING_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": _DATE + "T" + _TIME,
    "duration": r"P(\d{1,4}W|\d{1,4}D|\d{1,4}M(\d{1,4}D)?|\d{1,4}Y(\d{1,4}M(\d{1,4}D)?)?"
    r"|(\d{1,4}D)?T(\d{1,4}S|\d{1,4}M(\d{1,4}S)?|\d{1,4}H(\d{1,4}M(\d{1,4}S)?)?))",
    "email": rf"[A-Za-z0-9_%+\-]+(\.[A-Za-z0-9_%+\-]+)*@{_LABEL}(\.{_LABEL})+",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": rf"({_GROUP}:){{7}}{_GROUP}|::|::1",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": r"[A-Za-z][A-Za-z0-9+.\-]*:(//[A-Za-z0-9.\-]+(:\d{1,5})?)?"
    r"(/?[A-Za-z0-9\-._~!$&'()*+,;=:@%])*/?",
}

NUMBER_FORMATS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float": None,
    "double": None,
}
