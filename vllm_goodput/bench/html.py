# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Building blocks of the HTML reports. Everything that is shown passes through `escape`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape as _escape
from pathlib import Path
from typing import Any

import orjson

from vllm_goodput.errors import ConfigError

NO_PLOTS = "Plots are left out because plotly is not installed; pip install 'vllm-goodput[report]'."
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#1d2733}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;margin:.5em 0}th,td{padding:.25em .8em;border-bottom:1px solid #dde3ea;text-align:right}
th{background:#f3f6f9}th:first-child,td:first-child{text-align:left}
.note{background:#fff4d6;border-left:4px solid #e0a100;padding:.5em 1em;margin:.5em 0;font-weight:600}
.warning{background:#fde8e6;border-left:4px solid #c8372d;padding:.5em 1em;margin:.5em 0}
.big{font-size:1.3em}.plot{height:380px;margin:.5em 0}
"""


def escape(value: object) -> str:
    """Text that is safe in HTML content and attributes."""
    return _escape(str(value), quote=True)


def number(value: Any, digits: int = 2) -> str:
    """A figure for people; "-" where there is none."""
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if isinstance(value, float) else str(value)


def milliseconds(value: float | None) -> str:
    """A latency with no more digits than it deserves."""
    return number(value, 1 if value is None or value < 1000 else 0)


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return "-" if value is None else f"{value:.1%}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; the first column is left-aligned."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>\n"


def messages(notes: Iterable[object], kind: str) -> str:
    """Boxes of class `note` or `warning`."""
    return "".join(f'<div class="{kind}">{escape(note)}</div>\n' for note in notes)


def section(title: str, content: str) -> str:
    """A headed part of the page; nothing when it has no content."""
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def page(title: str, body: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    """A self-contained page; `figures` (id to Plotly figure) are drawn into their `figure_slot`s."""
    script = _plot_script(figures) if figures else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n{script}</body></html>\n"
    )


def figure_slot(name: str, height_px: int | None = None) -> str:
    """Where the figure of this id is drawn."""
    style = f' style="height:{height_px}px"' if height_px else ""
    return f'<div class="plot" id="{escape(name)}"{style}></div>\n'


def plotly_js() -> str | None:
    """Plotly's JavaScript, or None where plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return str(get_plotlyjs())


def write_page(text: str, path: str | Path) -> None:
    """Write a page.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _plot_script(figures: Mapping[str, Mapping[str, Any]]) -> str:
    data = orjson.dumps(figures).decode()
    for char in "<>&":  # no string in the data may end the script
        data = data.replace(char, f"\\u{ord(char):04x}")
    return (
        f"<script>{plotly_js()}</script>\n<script>\nconst figures = {data};\n"
        "for (const [id, figure] of Object.entries(figures))\n"
        "  Plotly.newPlot(id, figure.data, figure.layout, {responsive: true, displaylogo: false});\n</script>\n"
    )
