"""The curves as SVG: validation tasks solved against CPU seconds, sampled and executed decisions.

Points are means over seeds. An arm begins where the arm that it continues from ended. The dashed
line is the demonstrator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from orchestra.training.lab.arms import BY_NAME
from orchestra.training.lab.table import BySeed, Result, by_arm, title

Points = list[tuple[float, float]]  # used, and percent solved
COLOURS = {
    "da": "#c0392b",
    "offline": "#e67e22",
    "outcome": "#2471a3",
    "longer": "#7f8c8d",
    "start": "#b2babb",
    "successful": "#27ae60",
    "perfect": "#8e44ad",
    "da_base": "#d98880",
}
WIDTH, HEIGHT = 300, 230  # of a panel
LEFT, TOP, RIGHT, BOTTOM = 42, 28, 12, 40  # around the axes of a panel
LINE = 16  # of the legend
FONT = 'font-family="sans-serif" font-size="11"'


@dataclass(frozen=True)
class Panel:
    """One set of axes. Arms that do not use `what` are left out."""

    what: str
    title: str
    arms: tuple[str, ...]


LEARNERS = ("da", "offline", "outcome", "da_base")
PANELS = (
    Panel("cpu_s", "CPU seconds", tuple(COLOURS)),
    Panel("decisions", "sampled decisions", LEARNERS),
    Panel("executed", "executed decisions", ("da", "outcome", "da_base")),
)


def svg(results: Sequence[Result]) -> str:
    """The panels and their legend."""
    arms = by_arm(results)
    shown = [name for name in COLOURS if name in arms]
    width = WIDTH * len(PANELS)
    height = HEIGHT + LINE * ((len(shown) + 1) // 2 + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(PANELS):
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += _panel(panel, arms)
        parts.append("</g>")
    parts += _legend(shown, width)
    return "\n".join([*parts, "</svg>"]) + "\n"


# ---- the points ----------------------------------------------------------------------------------


def curve(arms: Mapping[str, BySeed], name: str, what: str) -> Points:
    """The means of an arm over its seeds, as far as all seeds have points."""
    curves = [result["curve"] for result in arms[name].values()]
    offset = _used_before(arms, name, what)
    points = []
    for rows in zip(*curves, strict=False):
        x = offset + fmean(row[what] for row in rows)
        points.append((x, 100 * fmean(row["solved"] for row in rows)))
    return points


def _used_before(arms: Mapping[str, BySeed], name: str, what: str) -> float:
    """What the arms used that this one continues from; the base counts for none."""
    used = 0.0
    at = BY_NAME[name].after
    while at in arms and at != "base":
        used += fmean(result["used"][what] for result in arms[at].values())
        at = BY_NAME[at].after
    return used


# ---- a panel -------------------------------------------------------------------------------------


def _panel(panel: Panel, arms: Mapping[str, BySeed]) -> Iterable[str]:
    curves = {
        name: curve(arms, name, panel.what) for name in panel.arms if name in arms
    }
    right = (
        max((x for points in curves.values() for x, _ in points), default=1.0) or 1.0
    )
    yield from _axes(panel.title, right)
    if "demonstrator" in arms:
        solved = 100 * arms["demonstrator"][0]["greedy"]["solved"]
        ends = _path([(0.0, solved), (right, solved)], right)
        yield f'<path d="{ends}" stroke="black" stroke-dasharray="3 3" fill="none"/>'
    for name, points in curves.items():
        path = _path(points, right)
        yield f'<path d="{path}" stroke="{COLOURS[name]}" stroke-width="2" fill="none"/>'


def _axes(label: str, right: float) -> Iterable[str]:
    bottom, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{end}" stroke="black" fill="none"/>'
    for percent in range(0, 101, 20):
        y = _y(percent)
        yield f'<path d="M{LEFT} {y}H{end}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 4}" y="{y + 4}" text-anchor="end">{percent}</text>'
    for share in (0.0, 0.5, 1.0):
        x, value = _x(share, 1.0), f"{share * right:,.0f}"
        yield f'<text x="{x}" y="{bottom + 14}" text-anchor="middle">{value}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 10}">solved, %</text>'
    middle = _x(0.5, 1.0)
    yield f'<text x="{middle}" y="{bottom + 30}" text-anchor="middle">{label}</text>'


def _path(points: Points, right: float) -> str:
    return "M" + "L".join(f"{_x(x, right)} {_y(y)}" for x, y in points)


def _x(value: float, right: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT - 8) * value / right, 1)


def _y(percent: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - percent / 100), 1)


# ---- the legend ----------------------------------------------------------------------------------


def _legend(names: Sequence[str], width: int) -> Iterable[str]:
    for number, name in enumerate([*names, "demonstrator"]):
        row, column = divmod(number, 2)
        x, y = LEFT + column * width // 2, HEIGHT + LINE * row
        colour, dashes = COLOURS.get(name, "black"), "" if name in COLOURS else "3 3"
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        yield f'<path d="M{x} {y}h24" {style}/>'
        yield f'<text x="{x + 30}" y="{y + 4}">{escape(title(name))}</text>'
