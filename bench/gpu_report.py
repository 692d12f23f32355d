"""The results of bench/gpu.py as a file: reading, writing, merging, and what a row says about its goals. Needs nothing
but Python."""

import json
import pathlib

MISSED, UNMEASURED = "BELOW", "not measured"
ABOUT = ("gpu", "driver", "torch", "cuda", "cudnn", "commit", "date", "rounds", "runs")
MAY_DIFFER = ("date", "clock and power")  # of files that are merged


class ReportError(Exception):
    """One line for the user."""


def verdict(row):
    if row["value"] is None:
        return UNMEASURED
    if row["must"] is None:
        return ""
    sign = -1 if row.get("less_is_better") else 1
    value = sign * row["value"]
    return "aim" if value >= sign * row["aim"] else "must" if value >= sign * row["must"] else MISSED


def identity(row):
    """What tells a row from all others."""
    return row["table"], row["row"], row["case"]


def label(row):
    return f"{row['row']}: {row['case']}"


def below(results):
    return [row for row in results if verdict(row) == MISSED]


def unmeasured(results):
    """Those that have a must but no value, so that nobody knows whether they reach it; and groups that failed."""
    without = [row for row in results if verdict(row) == UNMEASURED]
    return [row for row in without if row["must"] is not None or row["case"].startswith("failed")]


# ---- Files ----


def check_about(path, about):
    lacking = [name for name in ABOUT if name not in about]
    if lacking:
        raise ReportError(f"{path}: it does not say what it was measured on: {', '.join(lacking)} missing")


def is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def check_row(path, n, row):
    for name in ("row", "case", "table"):
        if not isinstance(row, dict) or not isinstance(row.get(name), str):
            raise ReportError(f"{path}: row {n} has no {name}")
    for name in ("value", "must", "aim"):
        if name not in row or not (row[name] is None or is_number(row[name])):
            raise ReportError(f"{path}: row {n}, {label(row)}: {name} is not a number")
    if (row["must"] is None) != (row["aim"] is None):
        raise ReportError(f"{path}: row {n}, {label(row)}: must and aim, one without the other")


def read(path):
    try:
        report = json.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ReportError(f"{path}: not a whole JSON file: {error}") from None
    if not isinstance(report, dict) or not isinstance(report.get("about"), dict) or not report.get("rows"):
        raise ReportError(f"{path}: no results of bench/gpu.py")
    check_about(path, report["about"])
    for n, row in enumerate(report["rows"], 1):
        check_row(path, n, row)
    return report


def rounded(x, digits=6):
    if isinstance(x, float):
        return float(f"{x:.{digits}g}")
    return [rounded(each, digits) for each in x] if isinstance(x, list) else x


def text_of(about, results):
    """One line a row."""

    def compact(row):
        fields = {name: x for name, x in row.items() if name in ("value", "must", "aim") or x is not None}
        if "samples" in fields:
            fields["samples"] = {name: rounded(runs, 4) for name, runs in row["samples"].items()}
        return {name: rounded(x) for name, x in fields.items()}

    rows = ",\n".join(json.dumps(compact(row)) for row in results)
    return f'{{"about": {json.dumps(about)},\n"rows": [\n{rows}\n]}}\n'


def write(path, about, results):
    """Whole or not at all: a run that is stopped leaves the file of its last group."""
    path = pathlib.Path(path)
    new = path.with_name(path.name + ".new")
    new.write_text(text_of(about, results))
    new.replace(path)


def medians(report):
    """Without the samples."""
    rows = [{name: x for name, x in row.items() if name != "samples"} for row in report["rows"]]
    return {"about": report["about"], "rows": rows}


def merge(reports):
    """One report of several: pairs of name and report, of the same card, versions, commit and rounds. Of a row that
    several have, the last counts. Returns the report and a line for each such row."""
    (first_name, first), *others = reports
    for name, report in others:
        for key in sorted(set(first["about"]) | set(report["about"])):
            one, other = first["about"].get(key), report["about"].get(key)
            if key not in MAY_DIFFER and one != other:
                raise ReportError(f"{name}: {key} is {other}, in {first_name} {one}: they are not one measurement")
    rows, notes = {}, []
    for name, report in reports:
        for row in report["rows"]:
            if identity(row) in rows:
                notes.append(f"{label(row)} ({row['table']}): that of {name} counts")
            rows[identity(row)] = row
    dates = sorted(report["about"]["date"] for _, report in reports)
    about = first["about"] | {"date": dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"}
    return {"about": about, "rows": list(rows.values())}, notes
