"""The tables of docs/gpu.md from the results of bench/gpu.py. A value in bold is below its must. Needs nothing but
Python."""

from gpu_report import MISSED, UNMEASURED, below, label, unmeasured, verdict

MAPS = ("forward", "vjp", "jvp", "vjp_jvp", "jvp_jvp")


def count(n):
    return f"{n:,}"


def plain(x, digits=2):
    if x is None:
        return ""
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    return f"{x:.{digits}f}"


def goals(row):
    return "" if row["must"] is None else f"{row['must']:g} / {row['aim']:g}"


def value(row, digits=2):
    """Bold below the must, with a third digit where two would not show that it is."""
    if row["value"] is None:
        return "-"
    text = plain(row["value"], digits)
    if verdict(row) != MISSED:
        return text
    if float(text.replace(",", "")) == round(row["must"], digits):
        text = plain(row["value"], digits + 1)
    return f"**{text}**"


def cell(row):
    """The value, and our TFLOP/s."""
    if row is None:
        return ""
    return value(row) + (f" ({row['tflops']:.0f})" if row.get("tflops") and row["value"] is not None else "")


def lines_of(header, rows):
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


# ---- A table of two sides ----


def find(rows, fields):
    return next((row for row in rows if all(row.get(name) == x for name, x in fields.items())), None)


def grid(rows, first, of_line, columns):
    """of_line: a line's text and the fields that its rows have; columns: the same of each column. A column in which a
    row has a goal is followed by one of the goals."""
    with_goals = [any(r["must"] is not None and find([r], fields) for r in rows) for _, fields in columns]
    header = [first]
    for (name, _), has in zip(columns, with_goals):
        header += [name, "must / aim"] if has else [name]
    body = []
    for text, fields in of_line:
        cells = [text]
        for (_, column), has in zip(columns, with_goals):
            row = find(rows, fields | column)
            cells += [cell(row)] + ([goals(row) if row else ""] if has else [])
        if any(cells[1:]):
            body.append(cells)
    return lines_of(header, body) if body else ()


def distinct(rows, name):
    return list(dict.fromkeys(row[name] for row in rows if row.get(name) is not None))


def map_columns(rows, **fields):
    """Each map without and with causal."""
    for name in MAPS:
        for causal in (False, True):
            column = {"map": name, "causal": causal} | fields
            if find(rows, column):
                yield name + ", causal" * causal, column


def lengths(rows, title):
    """One table for each number format and head size; a row for each length."""
    for dtype in distinct(rows, "dtype"):
        for dim in sorted(distinct(rows, "dim")):
            here = [row for row in rows if row.get("dtype") == dtype and row.get("dim") == dim]
            of_line = [(count(n), {"n": n}) for n in sorted(distinct(here, "n"))]
            yield f"{title}, {dtype}, D {dim}:"
            yield ""
            yield from grid(here, "N", of_line, list(map_columns(here)))
            yield ""


def features(rows, title):
    """One table for each map: a row for each feature, a column for each head size."""
    for name in MAPS:
        here = [row for row in rows if row.get("map") == name]
        dims = sorted(distinct(here, "dim"), reverse=True)
        of_line = [(feature, {"feature": feature}) for feature in distinct(here, "feature")]
        if of_line:
            yield f"{title}, {name}:"
            yield ""
            yield from grid(here, "feature", of_line, [(f"D {dim}", {"dim": dim}) for dim in dims])
            yield ""


def cases(rows, title):
    """A row for each case."""
    body = [
        [
            row["row"],
            row["case"],
            plain(row.get("ours_ms"), 3),
            plain(row.get("theirs_ms"), 3),
            plain(row.get("flash_ms"), 3),
            cell(row),
            goals(row),
        ]
        for row in rows
    ]
    yield f"{title}:"
    yield ""
    yield from lines_of(["row", "case", "ours ms", "beside ms", "FlashAttention ms", "value", "must / aim"], body)
    yield ""


TABLES = (
    (lengths, ("lengths", "d256", "float16"), "Our speed over cuDNN's (our TFLOP/s)"),
    (lengths, ("gqa",), "Four query heads share keys: our speed over cuDNN's (our TFLOP/s)"),
    (features, ("features", "gradients", "second"), "Rate with a feature over none (TFLOP/s with it)"),
)


def about_lines(about):
    rounds = f"median of {about['rounds']} rounds or fewer, the best of {about['runs']} runs"
    yield (
        f"{about['gpu']}, driver {about['driver']}, CUDA {about['cuda']}, PyTorch {about['torch']}, cuDNN "
        f"{about['cudnn']}; commit {about['commit']}, {about['date']}; {rounds}. A value in bold is below its must."
    )
    yield ""


def missed_lines(results):
    missed = below(results)
    without = unmeasured(results)
    with_must = sum(row["must"] is not None for row in results)
    yield f"Below their musts: {len(missed)} of {with_must} rows that have one; {UNMEASURED}: {len(without)}."
    yield ""
    if missed or without:
        body = [[row["table"], label(row), value(row), goals(row)] for row in missed]
        body += [[row["table"], label(row), UNMEASURED, goals(row)] for row in without]
        yield from lines_of(["table", "row", "value", "must / aim"], body)
        yield ""


def markdown(report):
    """All lines. A group that has no table of its own is listed by case."""
    yield from about_lines(report["about"])
    for table in sorted(distinct(report["rows"], "table"), reverse=True):
        rows = [row for row in report["rows"] if row["table"] == table]
        shown = set()
        for make, groups, title in TABLES:
            here = [row for row in rows if row.get("group") in groups and row.get("map")]
            shown |= {id(row) for row in here}
            yield from make(here, title)
        rest = [row for row in rows if id(row) not in shown]
        if rest:
            yield from cases(rest, f"Table {table}, by case")
    yield from missed_lines(report["rows"])
