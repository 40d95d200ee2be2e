"""Recorded traffic, in the form of Mooncake's traces or of Azure's.

Mooncake's have arrival, lengths, and one id for each 512 tokens of a prompt; equal ids are equal
beginnings. Azure's have arrival and lengths: no prompt begins like another.
"""

import csv
import json
import lzma
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from diptych.core.blocks import part_hash
from diptych.core.ids import BlockHash
from diptych.router.simulation.workers import Job

BLOCK_TOKENS = 512


def read(path: Path, limit: int | None = None) -> list[Job]:
    """The first requests of a trace, in order of arrival; the form goes by the name."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        rows = _mooncake(file) if ".jsonl" in path.name else _azure(file)
        jobs = [job for job, _ in zip(rows, range(limit or 10**9), strict=False)]
    return sorted(jobs, key=lambda job: job.at_s)


def _mooncake(lines: Iterator[str]) -> Iterator[Job]:
    for number, line in enumerate(lines):
        row = json.loads(line)
        full = row["input_length"] // BLOCK_TOKENS
        blocks = tuple(block(i) for i in row["hash_ids"][:full])
        at_s = row["timestamp"] / 1000
        yield Job(number, at_s, row["input_length"], row["output_length"], blocks)


def _azure(lines: Iterator[str]) -> Iterator[Job]:
    for number, row in enumerate(csv.DictReader(lines)):
        at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        tokens, new = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        blocks = tuple(
            part_hash(number.to_bytes(4, "little"), str(i)) for i in range(tokens // BLOCK_TOKENS)
        )
        yield Job(number, at_s, max(1, tokens), max(1, new), blocks)


def block(number: int) -> BlockHash:
    """A hash for an id of a trace."""
    return part_hash(number.to_bytes(8, "little"), "trace")
