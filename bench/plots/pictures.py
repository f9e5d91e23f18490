"""Draw the plots of results/plots: each function returns a figure, or None if no row of our own belongs in it.

Bars of our own measurements are filled, published ones are hollow.
"""

import pandas as pd

from bench.plots import draw
from bench.records.likeness import describe_how, work_key, work_title
from bench.settings import PARTS, WORKLOADS

MAX_BARS = 8  # of a work
MAX_PANELS = 9
MAX_CURVES = len(draw.COLOURS)  # so that no two look alike
PEAKS = ("bfloat16", "float16", "float32")  # precisions of the best matmul that have bars
WHO = ["published", "machine", "kind", "framework"]
LEGEND = "Filled: measured by this program, with its interval. Hollow: published elsewhere."


def draw_all(lines, folder):
    """Draw every plot that has rows into a folder and return the paths."""
    lines = lines[lines["value"].notna()]
    figures = {folder / f"{picture.__name__}.png": picture(lines) for picture in PICTURES}
    return [draw.save(figure, path) for path, figure in figures.items() if figure]


def standard_set_gpu(lines):
    return draw_works(lines, "gpu")


def standard_set_cpu(lines):
    return draw_works(lines, "cpu")


def draw_works(lines, kind):
    """Draw the bars of each work that two machines or sources have on this kind of device, and of the peaks."""
    works = group_works(lines[lines["kind"] == kind])
    if all(row["published"] for rows in works for row in rows):
        return None
    sheet = draw.Sheet()
    for rows in works:
        title, _, about = work_title(rows[0]).partition(", ")
        count = f" ({len(rows)} of {rows[0]['found']})" if len(rows) < rows[0]["found"] else ""
        sheet.block(title, about + count, rows, describe_bar)
    sheet.write(LEGEND, 0, 0.1, draw.WIDE, 7.5, color=draw.GREY)
    sheet.top += 0.2
    return sheet.end()


def describe_bar(row):
    """Describe a row next to its bar: (device, what it did differently, "")."""
    return name_device(row), ", ".join(filter(None, [describe_how(row), row["setup"]])), ""


def group_works(lines):
    """List the rows of each work that two machines or sources have, at most MAX_PANELS works.

    The peaks and the bandwidth of a copy come first, then works of models with own rows, the fullest first. Of the rows
    of one work the highest of each machine and framework counts; of a peak that of each chip, own or published.
    """
    is_model = lines["workload"].isin(WORKLOADS) & ~lines["phase"].isin(PARTS)
    is_best = lines["work"].str.contains("model=matmul-peak;") & lines["precision"].isin(PEAKS)
    is_shown = is_model & lines["scope"].isin(["device", "end_to_end"]) | is_best | lines["model"].eq("copy")
    whose = (lines["machine"] + " " + lines["framework"]).where(is_model, lines["shown"])
    lines = lines.assign(whose=whose, is_model=is_model)[is_shown].sort_values("value", ascending=False, kind="stable")
    lines = lines.drop_duplicates(["work", "published", "whose"])
    by_work = lines.assign(source=lines["published"].astype(str) + lines["shown"]).groupby("work")
    lines = lines.assign(found=by_work["work"].transform("size"))[by_work["source"].transform("nunique") > 1]

    def place(rows):
        first = rows.iloc[0]
        if first["is_model"]:
            return True, rows["published"].all(), -len(rows)
        return False, first["model"] == "copy", first["precision"]

    works = sorted((rows for _, rows in lines.groupby("work", sort=False)), key=place)
    works = [rows.sort_values("published", kind="stable")[:MAX_BARS] for rows in works[:MAX_PANELS]]
    return [rows.sort_values("value", ascending=False, kind="stable").to_dict("records") for rows in works]


def llm_depth(lines):
    """Draw tokens/s of decode over the mean tokens in the cache, for the work that most machines have at two depths."""
    lines = lines.query("workload == 'llm' and phase == 'decode' and batch_size == '1' and scope == 'device'")
    depth, new_tokens = (pd.to_numeric(lines[name], errors="coerce") for name in ("depth", "new_tokens"))
    work = [work_key(row | {"depth": "0", "new_tokens": "1"}) for row in lines.to_dict("records")]
    lines = lines.assign(tokens=depth + (new_tokens + 1) / 2, work=work).dropna(subset="tokens")
    depths = lines.groupby(["work", *WHO])["tokens"].transform("nunique")
    lines = lines[lines["work"].isin(lines["work"][~lines["published"]]) & (depths > 1)]
    if lines.empty:
        return None
    machines = lines.groupby("work", sort=False)["machine"].nunique()
    lines = lines[lines["work"] == machines.idxmax()]
    curves = curves_of(lines, "tokens", least=2)
    x_name = "mean tokens in the cache: DEPTH + (NEW_TOKENS + 1) / 2"
    title = work_title(lines.iloc[0].to_dict() | {"depth": "", "new_tokens": ""})
    return draw.lines(curves, "tokens/s", f"{title}; ours with random weights", x_name, is_log2=True)


def mlp(lines):
    """Draw the rate of training mlp-<depth>x1024 over depth, a line for each machine, as its first benchmark did."""
    lines = lines.query("phase == 'training' and batch_size == '32' and precision == 'float32' and scope == 'device'")
    lines = lines[lines["compile"].isin(["", "0"]) & lines["optimizer"].isin(["", "sgd"])]
    lines = lines.assign(depth=pd.to_numeric(lines["model"].str.extract(r"^mlp-(\d+)x1024$")[0]))
    lines = lines.sort_values("data", kind="stable").dropna(subset="depth")  # CIFAR-10, else synthetic
    lines = lines[lines["data"] == lines.groupby([*WHO, "depth"])["data"].transform("first")]
    title = "Multilayer perceptrons, images of CIFAR-10's size, training, batch 32, float32"
    return draw.lines(curves_of(lines, "depth"), "images/s", title, "hidden layers of 1024")


def tflops(lines):
    """Draw TFLOP/s over the size of matmuls, the cube root of M N K: a line for each machine and precision."""
    lines = lines[lines["model"].str.match(r"^matmul(?:-\d+)?$")]
    sides = lines["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    lines = lines.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3)).dropna(subset="side")
    curves = curves_of(lines, "side", least=2)
    x_name = "M of an M x M x M matmul (cube root of M N K for others)"
    return draw.lines(curves, "TFLOP/s", "Matrix multiplication", x_name, is_log2=True)


PICTURES = (standard_set_gpu, standard_set_cpu, mlp, llm_depth, tflops)


def name_device(row):
    return row["shown"] if row["kind"] == "gpu" or row["published"] else f"{row['shown']} (CPU)"


def curves_of(lines, x, least=1):
    """Build at most MAX_CURVES curves over the column `x`, one for each device and what it did differently.

    A curve has the highest line at each of at least `least` values of x. The curve with the highest line comes first.

    Returns:
        [(name, its lines with the column `x`)]; [] if none of them is our own.
    """
    names = []
    for row in lines.to_dict("records"):
        precision = "" if row["phase"] else row["precision"]  # of an operator
        published = "published" if row["published"] else ""
        names.append(", ".join(filter(None, [name_device(row), describe_how(row), precision, published])))
    lines = lines.assign(name=names, x=lines[x]).sort_values("value", ascending=False, kind="stable")
    lines = lines.drop_duplicates(["name", "x"])
    lines = lines[lines.groupby("name")["x"].transform("size") >= least]
    own = lines["name"][~lines["published"]].unique()
    kept = [*own, *lines["name"][lines["published"]].unique()][:MAX_CURVES] if len(own) else []
    curves = lines[lines["name"].isin(kept)].groupby("name", sort=False)  # the highest first
    return [(name, points.sort_values("x")) for name, points in curves]
