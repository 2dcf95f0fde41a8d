"""Latencies as a histogram: in the form that wal3's authors published theirs, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

STEP_MS = 10.0

PUBLISHED = (
    *((200 + 10 * i, n) for i, n in enumerate((0, 2130, 24885, 73816, 132193, 190583, 248792))),
    *((270 + 10 * i, n) for i, n in enumerate((306965, 365649, 423338, 481530, 539276, 581600))),
    *((330 + 10 * i, n) for i, n in enumerate((598774, 600072, 600285, 600361))),
)
"""The older wal3's table: how many of 600,361 appends took so many milliseconds at most."""

WIDTH, HEIGHT = 760, 300
LEFT, BOTTOM, TOP = 56, 40, 28
COLOURS = {"wal3, published": "#9aa0a6", "cas": "#1f77b4", "chain": "#d62728"}


def buckets(latencies_ms: npt.NDArray[np.float64]) -> list[tuple[float, int]]:
    """How many took so many milliseconds at most, in steps of ten, up to the slowest."""
    if not len(latencies_ms):
        return []
    first = np.floor(latencies_ms.min() / STEP_MS) * STEP_MS
    edges = np.arange(first, latencies_ms.max() + STEP_MS, STEP_MS)
    counts = np.searchsorted(np.sort(latencies_ms), edges, side="right")
    return [(float(edge), int(count)) for edge, count in zip(edges, counts, strict=True)]


def lines(protocol: str, found: Sequence[tuple[float, int]]) -> list[str]:
    """The buckets as a metrics server reads them."""
    name = f'cordwood.bench.append_histogram_bucket{{protocol="{protocol}",le='
    return [f'{name}"{edge:.4f}"}} {count}' for edge, count in found]


def picture(series: Mapping[str, Sequence[tuple[float, int]]], title: str) -> str:
    """An SVG of the share of appends that took so long at most, one line for each series."""
    series = {name: found for name, found in series.items() if found}
    low = min(found[0][0] for found in series.values())
    high = max(found[-1][0] for found in series.values())
    right, top = WIDTH - 130, TOP

    def place(edge: float, share: float) -> tuple[float, float]:
        x = LEFT + (edge - low) / max(STEP_MS, high - low) * (right - LEFT)
        return x, HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - top)

    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg {box} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16">{title}</text>',
    ]
    for share in (0.0, 0.5, 0.99):
        _, y = place(low, share)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4:.1f}">{share:.0%}</text>')
    for edge in np.arange(np.ceil(low / 50) * 50, high + 1, 50):
        x, _ = place(float(edge), 0.0)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{edge:g}</text>')
    parts.append(f'<text x="{right}" y="{HEIGHT - 4}" text-anchor="end">milliseconds</text>')
    for row, (name, found) in enumerate(series.items()):
        points = [place(edge, count / found[-1][1]) for edge, count in found]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS.get(name, "#333")
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{right + 8}" y="{top + 16 + 18 * row}" fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
