"""What `make best` prints at the end: the path to the fastest settings, how sure they are, and how to use them.

One table, setting -> lines of code for each framework, says how to use a setting in a script of one's own.
"""

import functools
import shlex

from bench.records import report
from bench.records.columns import describe_work, format_number
from bench.records.verdict import Rate
from bench.settings import KNOWN_NAMES
from bench.tune import candidates
from bench.tune.search import Search

# Lines of code for the user's own script.
BEFORE_MODEL = "  # before the model is built"
POLICY = 'keras.config.set_dtype_policy("{value}")' + BEFORE_MODEL
JIT_COMPILE = "model.compile(jit_compile=True)  # in training also optimizer=... and loss=..., as before"
TORCH_DTYPE = "model = model.to(torch.{value})  # and inputs, unless they are integers"
AUTOCAST = 'with torch.autocast("{device}", torch.{dtype}):\n    outputs = model(inputs)  # and the loss'
SCALER = (
    'scaler = torch.amp.GradScaler("{device}")\n'
    "# in training: scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()\n"
)
KERAS = {"PRECISION": POLICY, "COMPILE=1": JIT_COMPILE}
# A name without a value stands for all values that have no line of their own. The lines are in the order in which a
# script needs them, and use the names that most scripts have: model, inputs, loss, optimizer.
LINES = {
    "torch": {
        "NUM_THREADS": "torch.set_num_threads({value})",
        "DEVICE=cuda": "torch.backends.cudnn.benchmark = True",
        "PRECISION=tf32": 'torch.backends.fp32_precision = "tf32"',
        "PRECISION=bfloat16": TORCH_DTYPE,
        "PRECISION=float16": TORCH_DTYPE,
        "MEMORY_FORMAT=channels_last": "model = model.to(memory_format=torch.channels_last)  # and inputs",
        "COMPILE=0": "",  # else "COMPILE" would match
        "COMPILE=1": "model.compile()",
        "COMPILE": 'model.compile(mode="{value}")',
        "PRECISION=mixed_bfloat16": AUTOCAST,
        "PRECISION=mixed_float16": SCALER + AUTOCAST,
    },
    "tensorflow": {
        "NUM_THREADS": "tf.config.threading.set_intra_op_parallelism_threads({value})" + BEFORE_MODEL,
        "PRECISION=tf32": "tf.config.experimental.enable_tensor_float_32_execution(True)",
        **KERAS,
    },
    "jax": {
        "NUM_THREADS": 'os.environ["NPROC"] = "{value}"  # before JAX is imported',
        "PRECISION=tf32": 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
        **KERAS,
    },
    "mlx": {
        "PRECISION=tf32": 'os.environ["MLX_ENABLE_TF32"] = "1"  # before MLX computes anything',
        "PRECISION": "model.set_dtype(mx.{value})  # and inputs, unless they are integers",
        "COMPILE=1": "# inference: compiled = mx.compile(model, inputs=model.state)\n"
        "state = [model.state, optimizer.state, mx.random.state]\n"
        "step = mx.compile(step, inputs=state, outputs=state)",
    },
}


def describe_answer(search: Search, path):
    """Return the lines of the answer, for what was measured.

    Args:
        path: {candidate: the combined row of its long processes}, from the default to the fastest.
    """
    fastest = search.fastest()
    first = search.trials[search.default]
    lines = [f"{describe_work(first)}, {first['framework']} {first['framework_version']} on {first['device_name']}"]
    words = functools.partial(candidates.describe_candidate, search.dimensions)
    steps = []  # (the change, what was measured)
    before = None
    for candidate, row in path.items():
        rate = Rate.of_row(row)
        count = report.count_processes(row)
        ends = f"({format_number(rate.low)} to {format_number(rate.high)}, {count} process{'es' if count > 1 else ''})"
        measured = f"{format_number(rate.throughput)} {row['unit']} {ends}"
        gain = f", {describe_gain(search.compare(candidate, before))}" if before else ""
        name = f"+ {words(candidate, before)}" if before else words(candidate)
        steps.append((name, f"{measured}{gain}"))
        before = candidate
    width = max((len(name) for name, _ in steps), default=0)
    lines += [f"  {name:<{width}}  {measured}" for name, measured in steps]
    lines.append(f"fastest of {len(search.trials)} tried: {words(fastest)}" if fastest else "no combination works")
    if fastest:
        row = path.get(fastest) or search.trials[fastest]
        if fastest not in path:
            rate = f"{format_number(search.rate(fastest))} {row['unit']}"
            lines.append(f"    {rate} in a short trial, without a long process: it may be luck")
        elif fastest != search.default and search.default in path:
            comparison = search.compare(fastest, search.default)
            pairs = report.describe_pairs(comparison)
            lines.append(f"    {describe_gain(comparison)} as fast as the default ({pairs})")
        if row["output_error"] and row["precision"] != "float32":
            lines.append(f"    its outputs differ from float32's by {100 * row['output_error']:.2g} % (relative L2)")
        if row["flags"]:
            lines.append(report.explain_flags(row["flags"].split()))
    last = {candidate: row for rows in (search.trials, *search.rounds) for candidate, row in rows.items()}
    for candidate, row in last.items():
        if row["status"] != "ok":
            lines.append(f"failed: {words(candidate)}: {row['status']}: {row['note']}")
    if untried := search.untried(search.default):
        more = f"; and {len(untried) - 1} more" if len(untried) > 1 else ""
        lines.append(f"not tried: {words(untried[0])}{more} (a larger MAX_MINUTES tries more)")
    return lines


def describe_gain(comparison):
    """Describe the ratio of a Comparison, with its interval if there are several pairs: "1.18 times (1.10 to 1.21)"."""
    ratio, low, high = comparison.ratio
    interval = f" ({low:.2f} to {high:.2f})" if comparison.pairs > 1 else ""
    return f"{ratio:.2f} times{interval}"


def describe_use(framework, device, workload, settings):
    """Return the lines of make and of code that repeat a candidate.

    Args:
        settings: {variable: text} that the user gave or the search chose.
    """
    command = " ".join([*(f"{name}={shlex.quote(text)}" for name, text in settings.items()), f"make {workload}"])
    shell = [f"export {name}={shlex.quote(text)}" for name, text in settings.items() if name not in KNOWN_NAMES]
    code = lines_of_code(framework, settings | {"DEVICE": device})
    lines = ["", "To repeat it:", f"    {command}", "", "For your own script:"]
    return lines + [f"    {line}" for line in [*shell, *code]] if shell or code else lines[:-2]


def lines_of_code(framework, settings):
    """Return the lines of the user's own script for settings, {name: value}, with DEVICE."""
    table = LINES[framework]
    lines = []
    chosen = {key if (key := f"{name}={value}") in table else name: value for name, value in settings.items()}
    for key, text in table.items():
        if key in chosen and text:
            value = chosen[key]
            dtype = value.removeprefix("mixed_")
            lines += text.format(value=value, device=settings["DEVICE"], dtype=dtype).split("\n")
    return lines
