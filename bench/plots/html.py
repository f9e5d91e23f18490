"""Write results/index.html: all results in one file, to choose, sort and compare in a browser without a network.

    make page

Joins page.html, page.css and page.js of this folder with the merged rows. The page makes text of every cell: the data
contain no "<", and page.js creates only text nodes from them. Its policy (Content-Security-Policy) allows no other
script or style and no request.
"""

import base64
import hashlib
import json
import re
from pathlib import Path

import pandas as pd

from bench.plots import select
from bench.plots.card import path_of
from bench.records import columns, peaks, results, tables
from bench.records.columns import format_number
from bench.records.flags import FLAGS
from bench.settings import FRAMEWORKS
from bench.workloads.workload import BYTES

HERE = Path(__file__).parent
# Words for a status that is not ok.
STATUSES = {
    "interrupted": "the run was interrupted: the windows until then",
    "cpu_time": "the source timed the CPU's seconds instead of wall seconds: not a valid timing",
    "unsynchronised": "the source stopped its clock before the device had finished: not a valid timing",
}
# What makes an item larger: rates of different sizes are never in one plot.
SIZE = (
    *("image_size", "sequence_length", "prompt_tokens", "depth", "lora_rank"),
    *("epoch", "world_size", "nodes"),
    "message_bytes",
)
CHOSEN = ("framework", "workload", "model", "phase", "scope", "precision", "batch_size", *SIZE)
USUAL = {"image": ("image_size", "224"), "transformer": ("sequence_length", "128")}  # also if a source states none
SETTINGS = [name for name in columns.WORK if name not in CHOSEN]
VERSIONS = {"python": "Python", "os": "", "driver": "driver", "method_version": "method", "commit": "commit"}
TEXTS = (*CHOSEN[:7], *("kind", "machine", "device_name", "per", "flags", "status", "source", "note", "method_version"))
RATES = 9  # significant digits: enough for the verdicts of `make compare`
MEASURES = [*("tflops", "bandwidth", "of_peak", "of_bandwidth", "peak_memory_bytes", "power_watts", "joules_per_item")]
MEASURES += ["step_seconds_median", "step_seconds_p95", "first_step_seconds"]


def write_page(rows, path):
    """Write the page of these rows, from tables.read_rows(), and return its path."""
    data, drawn = collect(rows), {picture.name for picture in path.parent.glob("cards/*.png")}
    for name, machine in data["machines"].items():  # its cards, if `make all` or `make plot` has drawn some
        files = {framework: path_of(path.parent, name, framework).name for framework in FRAMEWORKS}
        machine["cards"] = {framework: f"cards/{file}" for framework, file in files.items() if file in drawn}
    with results.replace_file(path) as file:
        file.write_text(render(data), encoding="utf-8")
    return path


def render(data):
    """Join the page's files and its data, a dict for JSON."""
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    policy = f"default-src 'none'; img-src data:; script-src {hash_of(script)}; style-src {hash_of(style)}"
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"policy": policy, "style": style, "script": script, "data": embedded}
    page = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)


def hash_of(text):
    """Return the source expression that allows an inline script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def collect(rows):
    """Build the page's data: `lines` (a dict of encoded columns), `machines`, and the words of `flags`."""
    wrong = tables.summarize(rows[rows["source"] != ""], select.WRONG_CLOCKS)
    merged = pd.concat([tables.summarize(rows), wrong], ignore_index=True)
    lines = describe(tables.add_peak_fraction(merged, rows))
    found = {name: encode(lines[name]) for name in lines if lines[name].dtype in (object, "str")}
    found |= {name: encode(map(number, lines[name])) for name in lines if name not in found}
    return {
        "count": len(lines),
        "lines": found,
        "machines": list_machines(rows[rows["machine"].isin(lines["machine"])]),
        "flags": FLAGS | STATUSES,
    }


def describe(lines):
    """Build the page's columns from lines of tables.summarize(): text, and numbers rounded to what is shown.

    `size`, `settings`, `all_setup` and `versions` are in words. Lines with `compared` are those that `make compare`
    uses, the latest of their machine and work; `work` is the same number for equal work of two machines.
    """
    rows = lines.to_dict("records")
    text = lines[list(TEXTS)].assign(
        model=lines["model"].mask(lines["published"] & (lines["workload"] == "matmul"), "matmul-peak"),
        status=lines["status"].replace("ok", ""),
        date=lines["timestamp"].str[:10],
        size=[say_size(row) for row in rows],
        settings=[say_settings(row) for row in rows],
        all_setup=[columns.describe_setup(row) for row in rows],
        versions=[say_versions(row) for row in rows],
        stated=["" if row["value"] > 0 else tables.describe_rate(row) for row in rows],
    )
    is_known = lines["low"].notna() & lines["high"].notna()
    rates = lines[tables.RATE].map(lambda value: float(f"{value:.{RATES}g}"))
    rates[["low", "high"]] = rates[["low", "high"]].where(is_known)
    shown = lines[MEASURES].map(lambda value: float(f"{value:.4g}"))
    spread = tables.unseen_spread(lines).map(lambda value: float(f"{value:.{RATES}g}"))
    return text.join(rates).join(shown).assign(rows=lines["rows"], spread=spread, **find_compared(lines))


def find_compared(lines):
    """Return the columns `work` and `compared` of describe(), by the rules of compare_results.read_side()."""
    of = lines[["machine", *tables.WORK]].copy()
    of.loc[of["model"] == "matmul-peak", ["matrix_size", "memory_format", "batch_size"]] = ""
    done = lines["status"].isin(tables.DONE)
    is_latest = done & ~of.assign(done=done).duplicated(keep="last")
    work = of.groupby(list(tables.WORK), sort=False).ngroup()
    return {"work": work, "compared": (is_latest & (lines["value"] > 0)).astype(int)}


def say_size(row):
    """Describe what makes an item of this line larger than another one, for the choice of comparable lines."""
    name, usual = USUAL.get(row["workload"], ("epoch", None))
    words = columns.words_of(row | {name: row[name] or usual}, SIZE)
    if (row[name] or usual) == usual and name in words:
        words[name] += " if stated"
    # Quantised weights are other work than the precisions of this program.
    is_quantised = row["workload"] == "llm" and row["precision"] not in BYTES
    return ", ".join([*words.values(), *([row["precision"]] if is_quantised else [])])


def say_settings(row):
    """Describe the work's other settings, and the setup if the machine has several."""
    of_matmul = [row["model"]] if row["published"] and row["workload"] == "matmul" else []
    return ", ".join(filter(None, [*of_matmul, *columns.words_of(row, SETTINGS).values(), row["setup"]]))


def say_versions(row):
    """Describe the versions of a line."""
    known = [f"{words} {row[name]}".strip() for name, words in VERSIONS.items() if row[name]]
    return ", ".join([f"{row['framework']} {row['framework_version']}".strip(), *known])


def list_machines(rows):
    """Describe each machine: {name: {"about": ..., "limits": [[what, how known, figure with unit], ...]}}."""
    machines, (matmuls, moved) = {}, tables.measured_limits(rows)
    latest = rows.assign(published=rows["source"] != "").sort_values(["published", "machine"], kind="stable")
    for row in latest.drop_duplicates("machine", keep="last").to_dict("records"):
        about = [row["device_name"], row["cpu_name"], f"{row['memory_gb']} GB" if row["memory_gb"] else ""]
        machines[row["machine"]] = {"about": ", ".join(dict.fromkeys(filter(None, about))), "limits": []}
    for (machine, device, _, precision), row in sorted(matmuls.items()):
        what = f"best {precision} matmul on {device}, {row['framework']}"
        machines[machine]["limits"].append([what, "measured", f"{format_number(row['tflops'])} TFLOP/s"])
        if row["power_probe"] > 0:
            what = f"{precision} matmul on {device}: zeros over random data"
            machines[machine]["limits"].append([what, "measured", f"{row['power_probe']:.3f}"])
    for (machine, device, _), rate in sorted(moved.items()):
        machines[machine]["limits"].append([f"bandwidth of {device}", "measured", f"{format_number(rate)} GB/s"])
    for (machine, name, cores), _ in rows.groupby(["machine", "device_name", "gpu_cores"]):
        machines[machine]["limits"] += [
            [f"{name}, {precision}", "by specification", f"{format_number(peak)} TFLOP/s"]
            for (*chip, precision), peak in sorted(peaks.chip_peaks().items())
            if chip == [name, cores]
        ]
        if bandwidth := peaks.chip_bandwidths().get((name, cores)):
            limit = [f"{name}, memory", "by specification", f"{format_number(bandwidth)} GB/s"]
            machines[machine]["limits"].append(limit)
    return machines


def number(value):
    """Return a number for JSON, whole ones without a fraction; None if it is unknown."""
    if pd.isna(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def encode(values):
    """Encode a column in the shorter form: `each` value, or the places (`at`) of values in a list (`of`)."""
    values = list(values)
    places = {}
    at = [places.setdefault(value, len(places)) for value in values]
    forms = {"each": values}, {"of": list(places)} | ({"at": at} if len(places) > 1 else {})
    return min(forms, key=lambda form: len(json.dumps(form, separators=(",", ":"))))
