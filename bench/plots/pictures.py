"""Draw the plots of results/plots: each function returns a figure, or None if no row of our own belongs in it.

Bars of our own measurements are filled, published ones are hollow.
"""

import pandas as pd

from bench.plots import draw
from bench.records.likeness import describe_how, work_key, work_title
from bench.settings import PARTS, WORKLOADS

MAX_BARS = 8  # of a work
MAX_PANELS = 9
EPOCH = 50_000  # images of CIFAR-10
MAX_CURVES = 20  # of machines, or in all
ANCESTOR = "/M1-tensorflow-benchmark/"  # the source of the first plot of training over depth
PEAKS = ("bfloat16", "float16", "float32")  # precisions of the best matmul that have bars
WHO = ["published", "machine", "kind", "framework"]
LEGEND = "Filled: measured by this program, with its interval. Hollow: published elsewhere."


def draw_all(lines, folder):
    """Draw every plot that has rows into a folder and return the paths."""
    lines = lines[lines["value"].notna()]
    figures = {f"standard_set_{kind}": draw_works(lines, kind) for kind in ("gpu", "cpu")}
    figures |= {picture.__name__: picture(lines) for picture in PICTURES}
    return [draw.save(figure, folder / f"{name}.png") for name, figure in figures.items() if figure]


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
    setup = row["setup"].replace(row["allocator"] or "\n", "other settings")  # the page has all variables
    disturbed = "disturbed" if row["disturbed"] else ""
    return name_device(row), ", ".join(filter(None, [disturbed, describe_how(row), setup])), ""


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
    lines = lines.sort_values("disturbed", kind="stable").drop_duplicates(["work", "published", "whose"])
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
    curves, left_out = curves_of(lines, "tokens", least=2)
    x_name = "mean tokens in the cache: DEPTH + (NEW_TOKENS + 1) / 2"
    title = work_title(lines.iloc[0].to_dict() | {"depth": "", "new_tokens": ""})
    return draw.lines({"tokens/s": curves}, f"{title}; ours with random weights", x_name, left_out, is_log2=True)


def mlp(lines):
    """Draw training mlp-<depth>x1024 over depth, as its first benchmark did: seconds for an epoch, and the rate."""
    lines = lines.query("phase == 'training' and batch_size == '32' and scope == 'device'")
    is_plain = lines["compile"].isin(["", "0"]) | lines["framework"].eq("jax")  # which always compiles
    lines = lines[is_plain & lines["optimizer"].isin(["", "sgd"])].assign(optimizer="")
    lines = lines.assign(depth=pd.to_numeric(lines["model"].str.extract(r"^mlp-(\d+)x1024$")[0]))
    lines = lines.sort_values("data", kind="stable").dropna(subset="depth")  # CIFAR-10, else synthetic
    lines = lines[lines["data"] == lines.groupby([*WHO, "precision", "depth"])["data"].transform("first")]
    rates, left_out = curves_of(lines, "depth")
    ends = {"value": "value", "low": "high", "high": "low"}
    times = [(name, frame.assign(**{end: EPOCH / frame[of] for end, of in ends.items()})) for name, frame in rates]
    panels = {f"seconds for an epoch of {EPOCH:,} images": times, "images/s": rates}
    title = "Multilayer perceptrons, images of CIFAR-10's size, training, batch 32, float32 unless named"
    return draw.lines(panels, title, "hidden layers of 1024", left_out)


def tflops(lines):
    """Draw TFLOP/s over the size of matmuls, the cube root of M N K: a line for each machine and precision."""
    lines = lines[lines["model"].str.match(r"^matmul(?:-\d+)?$")]
    sides = lines["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    lines = lines.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3)).dropna(subset="side")
    curves, left_out = curves_of(lines, "side", least=2)
    curves = [(f"{name}, best at {line['x'][line['value'].idxmax()]:.0f}", line) for name, line in curves]
    x_name = "M of an M x M x M matmul (cube root of M N K for others)"
    return draw.lines({"TFLOP/s": curves}, "Matrix multiplication", x_name, left_out, is_log2=True, marks_best=True)


PICTURES = (mlp, llm_depth, tflops)


def name_device(row):
    return row["shown"] if row["kind"] == "gpu" or row["published"] else f"{row['shown']} (CPU)"


def curves_of(lines, x, least=1):
    """Choose curves over the column `x`, one for each device and what it did differently; the highest comes first.

    First each machine has one, its highest of two points or more, MAX_CURVES latest machines; then come those of
    ANCESTOR; then others of `least` points, our own first, up to MAX_CURVES. A curve has the highest line at each x.

    Returns:
        [(name, its lines with the column `x`)], [names that are left out].
    """
    names = []
    for row in lines.to_dict("records"):
        precision = "" if row["phase"] else row["precision"]  # of an operator
        whose = "published" if row["published"] else "disturbed" if row["disturbed"] else ""
        names.append(", ".join(filter(None, [name_device(row), describe_how(row), precision, whose])))
    lines = lines.assign(name=names, x=lines[x], latest=lines.groupby("machine")["timestamp"].transform("max"))
    lines = lines.sort_values("value", ascending=False, kind="stable").drop_duplicates(["name", "x"])
    size = lines.groupby("name")["x"].transform("size")
    tops = lines.assign(size=size, is_point=size < 2).drop_duplicates("name")
    tops = tops.sort_values(["published", "is_point", "disturbed"], kind="stable")
    own = tops[~tops["published"]].sort_values("latest", ascending=False, kind="stable").drop_duplicates("machine")
    first = [*own["name"][:MAX_CURVES], *tops["name"][tops["source"].str.contains(ANCESTOR)]]
    kept = list(dict.fromkeys([*first, *tops["name"][tops["size"] >= least]]))[: max(MAX_CURVES, len(first))]
    left_out = [name for name in dict.fromkeys([*own["name"], *tops["name"]]) if name not in kept]
    curves = lines[lines["name"].isin(kept)].groupby("name", sort=False)
    return [(name, points.sort_values("x")) for name, points in curves], left_out
