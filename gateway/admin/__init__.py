"""The operator's API, on a port of its own: keys, usage, audit, the fleet, drain, log levels."""
