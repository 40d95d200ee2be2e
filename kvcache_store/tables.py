"""The cache for a person: tables of what a store says about itself."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from diptych.kvcache_store.report import SegmentRow, Stats
from diptych.kvcache_store.retention import DAY_S

OLDEST_DAYS = 7  # columns of the histogram; older ones share the last


def show_stats(stats: Stats) -> None:
    """Bytes by class and tenant with their ages, the balance, counters, pins."""
    console = Console()
    console.print(_ages(stats))
    if stats.disk is not None:
        balance = Table(title="Disk: capacity = live + dead + pinned + reserved + free")
        disk = stats.disk
        row = (disk.capacity, disk.live, disk.dead, disk.pinned, disk.reserved, disk.free)
        for name in ("capacity", "live", "dead", "pinned", "reserved", "free"):
            balance.add_column(name, justify="right")
        balance.add_row(*map(_size, row))
        console.print(balance)
    console.print(
        f"memory {_size(stats.memory_bytes)} of {_size(stats.memory_capacity)} "
        f"({stats.memory_parts} parts); disk {stats.disk_parts} parts; "
        f"waiting for the disk {_size(stats.queued_bytes)}"
    )
    counters = Table(title=f"{stats.node}, since its start")
    counters.add_column("what")
    counters.add_column("", justify="right")
    for name, value in sorted(stats.counters.items()):
        counters.add_row(name.replace("_", " "), f"{value:,}")
    console.print(counters)
    for pin in stats.pins:
        leaked = " LEAKED" if pin.is_leaked else ""
        console.print(
            f"pin of {pin.owner} for {pin.reason}: {pin.parts} parts, "
            f"{pin.left_s:.1f} s left{leaked}"
        )


def show_segments(rows: Sequence[SegmentRow]) -> None:
    """A line a file."""
    table = Table(box=None)
    for name in ("segment", "tenant", "class", "day"):
        table.add_column(name, overflow="fold")
    for name in ("parts", "live", "file"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        day = datetime.fromtimestamp(row.day * DAY_S, UTC).strftime("%Y-%m-%d")
        marks = " ".join(
            mark
            for mark, holds in (("open", row.is_growing), ("encrypted", row.is_encrypted))
            if holds
        )
        table.add_row(
            row.name.removesuffix(".seg"),
            row.tenant,
            row.retention,
            day,
            str(row.parts),
            _size(row.live_bytes),
            _size(row.size_bytes),
            marks,
        )
    Console().print(table)


def _ages(stats: Stats) -> Table:
    table = Table(title="Live bytes by days since the last access")
    table.add_column("tenant")
    table.add_column("class")
    for days in range(OLDEST_DAYS):
        table.add_column(str(days), justify="right")
    table.add_column(f"{OLDEST_DAYS}+", justify="right")
    table.add_column("all", justify="right")
    sizes: dict[tuple[str, str], Counter[int]] = {}
    for account in stats.accounts:
        row = sizes.setdefault((account.tenant, account.retention), Counter())
        row[min(account.age_days, OLDEST_DAYS)] += account.size_bytes
    for (tenant, retention), ages in sizes.items():
        cells = [_size(ages[days]) if ages[days] else "" for days in range(OLDEST_DAYS + 1)]
        table.add_row(tenant, retention, *cells, _size(ages.total()))
    return table


def _size(size_bytes: float) -> str:
    """1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
