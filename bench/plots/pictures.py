"""Draw the plots of results/plots: each function returns a figure, or None if no row of our own belongs in it.

Bars of our own measurements are filled, published ones are hollow.
"""

import pandas as pd

from bench.plots import draw
from bench.plots.frames import SHOWN
from bench.records.likeness import choose_peaks, describe_how, describe_who, work_title
from bench.settings import PARTS, WORKLOADS

MAX_BARS = 8  # for a work
MAX_PANELS = 9
EPOCH = 50_000  # images of CIFAR-10
MAX_CURVES = 20  # in a diagram
ANCESTOR = "/M1-tensorflow-benchmark/"  # the source of the first plot of training over depth
WHO = ["published", "machine", "kind", "framework"]
LEGEND = "Filled: measured by this program, with its interval. Hollow: published elsewhere."


def draw_all(latest, folder):
    """Draw every plot that has rows into a folder and return the paths."""
    latest = latest[latest["value"].notna()]
    figures = {f"standard_set_{kind}": draw_works(latest, kind) for kind in ("gpu", "cpu")}
    figures |= {"mlp": mlp(latest), "tflops": tflops(latest)}
    return [draw.save(figure, folder / f"{name}.png") for name, figure in figures.items() if figure]


def draw_works(found, kind):
    """Draw the bars of each work that two machines or sources have on this kind of device, and of the peaks."""
    works = group_works(found[found["kind"] == kind])
    if all(row["published"] for rows in works for row in rows):
        return None
    sheet = draw.Sheet()
    for rows in works:
        title, _, about = work_title(rows[0]).partition(", ")
        count = f" ({len(rows)} of {rows[0]['count']})" if len(rows) < rows[0]["count"] else ""
        sheet.block(title, about + count, rows, describe_bar)
    sheet.write(LEGEND, 0, 0.1, draw.WIDE, 7.5, color=draw.GREY)
    sheet.top += 0.2
    return sheet.end()


def describe_bar(row):
    """Describe a row next to its bar: (device, what it did differently, "")."""
    setup = row["setup"].replace(row["allocator"] or "\n", "other settings")  # the page has all variables
    disturbed = "" if row["undisturbed"] else "disturbed"
    return describe_who(row), ", ".join(filter(None, [disturbed, describe_how(row), setup])), ""


def group_works(found):
    """List the rows of each work that two machines or sources have, at most MAX_PANELS works.

    The peaks and the bandwidth of a copy come first, then works of models with own rows, the fullest first. Of the rows
    of one work the highest of each machine and framework counts; of a peak that of each chip, own or published.
    """
    is_model = found["workload"].isin(WORKLOADS) & ~found["phase"].isin(PARTS)
    is_best = found.index.isin(choose_peaks(found, ["published", "shown"]).index) & found["precision"].isin(SHOWN)
    is_shown = is_model & found["scope"].isin(["device", "end_to_end"]) | is_best | found["model"].eq("copy")
    whose = (found["machine"] + " " + found["framework"]).where(is_model, found["shown"])
    found = found.assign(whose=whose, is_model=is_model)[is_shown].sort_values("value", ascending=False, kind="stable")
    found = found.sort_values("undisturbed", ascending=False, kind="stable")
    found = found.drop_duplicates(["work", "published", "whose"])
    by_work = found.assign(source=found["published"].astype(str) + found["shown"]).groupby("work")
    found = found.assign(count=by_work["work"].transform("size"))[by_work["source"].transform("nunique") > 1]

    def place(rows):
        first = rows.iloc[0]
        if first["is_model"]:
            return True, rows["published"].all(), -len(rows)
        return False, first["model"] == "copy", first["precision"]

    works = sorted((rows for _, rows in found.groupby("work", sort=False)), key=place)
    works = [rows.sort_values("published", kind="stable")[:MAX_BARS] for rows in works[:MAX_PANELS]]
    return [rows.sort_values("value", ascending=False, kind="stable").to_dict("records") for rows in works]


def mlp(found):
    """Draw training mlp-<depth>x1024 over depth, as its first benchmark did: seconds for an epoch, and the rate."""
    found = found.query("phase == 'training' and batch_size == '32' and scope == 'device'")
    is_plain = found["compile"].isin(["", "0"]) | found["framework"].eq("jax")  # which always compiles
    found = found[is_plain & found["optimizer"].isin(["", "sgd"])].assign(optimizer="")
    found = found.assign(depth=pd.to_numeric(found["model"].str.extract(r"^mlp-(\d+)x1024$")[0]))
    found = found.sort_values("data", kind="stable").dropna(subset="depth")  # CIFAR-10, else synthetic
    found = found[found["data"] == found.groupby([*WHO, "precision", "depth"])["data"].transform("first")]
    rates, left_out = curves_of(found, "depth")
    ends = {"value": "value", "low": "high", "high": "low"}
    times = [(name, frame.assign(**{end: EPOCH / frame[of] for end, of in ends.items()})) for name, frame in rates]
    panels = {f"seconds for an epoch of {EPOCH:,} images": times, "images/s": rates}
    title = "Multilayer perceptrons, images of CIFAR-10's size, training, batch 32, float32 unless named"
    return draw.draw_curves(panels, title, "hidden layers of 1024", left_out)


def tflops(found):
    """Draw TFLOP/s over the size of matmuls, the cube root of M N K: a line for each machine and precision."""
    found = found[found["model"].str.match(r"^matmul(?:-\d+)?$")]
    sides = found["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    found = found.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3)).dropna(subset="side")
    curves, left_out = curves_of(found, "side", least=2)
    curves = [(f"{name}, best at {each['x'][each['value'].idxmax()]:.0f}", each) for name, each in curves]
    x_name = "M of an M x M x M matmul (cube root of M N K for others)"
    return draw.draw_curves({"TFLOP/s": curves}, "Matrix multiplication", x_name, left_out, is_sweep=True)


def curves_of(found, x, least=1):
    """Choose curves over the column `x`, one for each device and what it did differently; the highest comes first.

    First each machine has one, its highest of two points or more, MAX_CURVES latest machines; then come those of
    ANCESTOR; then others of `least` points, our own first, up to MAX_CURVES. A curve has the highest line at each x.

    Returns:
        [(name, its points with the column `x`)], [names that are left out].
    """
    names = []
    for row in found.to_dict("records"):
        precision = row["precision"] if not row["phase"] or row["precision"] in ("tf32", "float64") else ""
        whose = "published" if row["published"] else "" if row["undisturbed"] else "disturbed"
        names.append(", ".join(filter(None, [describe_who(row), describe_how(row), precision, whose])))
    found = found.assign(name=names, x=found[x], latest=found.groupby("machine")["timestamp"].transform("max"))
    found = found.sort_values("value", ascending=False, kind="stable").drop_duplicates(["name", "x"])
    size = found.groupby("name")["x"].transform("size")
    tops = found.assign(size=size, is_point=size < 2, is_disturbed=~found["undisturbed"]).drop_duplicates("name")
    tops = tops.sort_values(["published", "is_point", "is_disturbed"], kind="stable")
    own = tops[~tops["published"]].sort_values("latest", ascending=False, kind="stable").drop_duplicates("machine")
    first = [*own["name"][:MAX_CURVES], *tops["name"][tops["source"].str.contains(ANCESTOR)]]
    kept = list(dict.fromkeys([*first, *tops["name"][tops["size"] >= least]]))[: max(MAX_CURVES, len(first))]
    left_out = [name for name in dict.fromkeys([*own["name"], *tops["name"]]) if name not in kept]
    curves = found[found["name"].isin(kept)].groupby("name", sort=False)
    return [(name, points.sort_values("x")) for name, points in curves], left_out
