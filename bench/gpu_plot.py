"""The plot of bench/gpu.py as SVG: our speed over cuDNN's over the length, one panel for each head size. Needs nothing
but Python."""

import math
import pathlib
from html import escape

LINES = (  # map, causal, colour, dashes
    ("forward", False, "#1f77b4", ""),
    ("forward", True, "#1f77b4", "5 4"),
    ("vjp", False, "#d62728", ""),
    ("vjp", True, "#d62728", "5 4"),
)
GROUPS = ("lengths", "d256")
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 240, 45, 50, 30


def chosen(results, dim):
    """Rows of this head size that were compared with cuDNN."""
    here = [r for r in results if r.get("group") in GROUPS and r.get("dim") == dim]
    return [r for r in here if r["value"] and r["case"].endswith("over cuDNN's")]


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def text(x, y, words, style=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" {style}>{escape(words)}</text>'


class Panel:
    """A head size: where a length and a ratio are on the page."""

    def __init__(self, n, rows, top):
        self.left, self.rows, self.top = LEFT + n * (WIDTH + GAP), rows, top
        self.lengths = sorted({row["n"] for row in rows})
        self.first, self.last = math.log2(self.lengths[0]), math.log2(self.lengths[-1])

    def x(self, n):
        span = max(self.last - self.first, 1)
        return self.left + 10 + (math.log2(n) - self.first) / span * (WIDTH - 20)

    def y(self, ratio):
        return TOP + HEIGHT * (1 - ratio / self.top)

    def frame(self, dim):
        yield text(self.left + WIDTH / 2, TOP - 8, f"D {dim}", 'text-anchor="middle"')
        for tenth in range(0, round(self.top * 10) + 1, 2):
            level = tenth / 10
            style = 'stroke="#333"' if level == 1 else 'stroke="#ddd"'
            yield line(self.left, self.y(level), self.left + WIDTH, self.y(level), style)
            yield text(self.left - 5, self.y(level) + 4, f"{level:.1f}", 'text-anchor="end"')
        for n in self.lengths:
            yield text(self.x(n), TOP + HEIGHT + 15, f"{n}", 'text-anchor="middle" font-size="9"')

    def curves(self):
        for name, causal, colour, dashes in LINES:
            rows = [r for r in self.rows if r.get("map") == name and bool(r.get("causal")) == causal]
            points = [(self.x(r["n"]), self.y(r["value"])) for r in sorted(rows, key=lambda r: r["n"])]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dashes}"/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)


def legend(y):
    for n, (name, causal, colour, dashes) in enumerate(LINES):
        x = LEFT + n * 140
        yield line(x, y - 4, x + 25, y - 4, f'stroke="{colour}" stroke-dasharray="{dashes}"')
        yield text(x + 30, y, name + ", causal" * causal)


def svg(report):
    """The whole picture; "" if nothing was compared with cuDNN."""
    panels = {dim: chosen(report["rows"], dim) for dim in (64, 128, 256)}
    panels = {dim: rows for dim, rows in panels.items() if rows}
    if not panels:
        return ""
    about = report["about"]
    top = max(1.2, math.ceil(max(r["value"] for rows in panels.values() for r in rows) * 5) / 5)
    width, height = LEFT + len(panels) * (WIDTH + GAP), TOP + HEIGHT + 55
    title = "our speed over cuDNN's, bfloat16, over N"
    parts = [text(LEFT, 20, f"{title}: {about['gpu']}, cuDNN {about['cudnn']}, commit {about['commit']}")]
    for n, (dim, rows) in enumerate(panels.items()):
        panel = Panel(n, rows, top)
        parts += [*panel.frame(dim), *panel.curves()]
    parts += legend(height - 10)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif"'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', background, *parts, "</svg>", ""])


def write(report, path):
    """Returns the line to print about it."""
    picture = svg(report)
    if not picture:
        return "no plot: no row was compared with cuDNN"
    pathlib.Path(path).write_text(picture)
    return f"plot: {path}"
