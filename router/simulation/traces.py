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
from diptych.core.errors import Misconfigured
from diptych.core.ids import BlockHash
from diptych.router.simulation.workers import Job

BLOCK_TOKENS = 512


def read(path: Path, limit: int | None = None, *, whole_blocks: bool = True) -> list[Job]:
    """The first requests of a trace, in order of arrival; the form goes by the name.

    `whole_blocks`: without the block at the end of a prompt that is not full.
    """
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        rows = _mooncake(file, whole_blocks) if ".jsonl" in path.name else _azure(file)
        jobs = [job for job, _ in zip(rows, range(limit or 10**9), strict=False)]
    return sorted(jobs, key=lambda job: job.at_s)


def load(path: Path, limit: int) -> list[Job]:
    """The same for people: Misconfigured if there is no trace, or it is none."""
    try:
        jobs = read(path, limit)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError, lzma.LZMAError) as error:
        message = f"{path} is no trace; expected Mooncake's JSON lines (.jsonl) or Azure's table"
        raise Misconfigured(message) from error
    if not jobs:
        raise Misconfigured(f"{path} has no requests")
    return jobs


def _mooncake(lines: Iterator[str], whole_blocks: bool) -> Iterator[Job]:
    for number, line in enumerate(lines):
        row = json.loads(line)
        full = row["input_length"] // BLOCK_TOKENS if whole_blocks else None
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
