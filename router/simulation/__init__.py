"""Fleets in virtual time under recorded traffic, placed by the router's own code or by rivals."""
