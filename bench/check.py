"""Check that a result is right, in the order of time. All processes are alike.

    P check_parameters    built           another number of trainable parameters
    G compute_gradients,  before the      training: the output of two items, or the norm of a trained tensor's
      check_gradients     first step      gradient, differs from the CPU's at the initial weights
    C check_compiled      after the       a compiler that was asked for compiled nothing
    Q check_precision     first step      a matmul or convolution in another precision (bench/precision.py)
    S check_steps_run     before windows  steps in a window take less time than a step by itself allows
    K check_counters      around the      flags: compiled again, handed out memory, a loss that is not finite or grew
    W check_moved         windows         training: weights that stay where they were
    U check_useful,       the last        an item that is not finite or all zero; two items that are equal, although
      copy_items          timed output    their inputs differ; pictures of a pipeline likewise
    X check_samples       the same        operators: 64 places differ from float64
    O check_output        the same        inference, prefill, decode: the first or the last item differs from the CPU's

"The CPU" is the reference: the same weights in float32, uncompiled, in PyTorch without oneDNN. O compares what was
timed: the items are copied after the last window, before any other step; the reference gets the inputs as the device
had them, in decode the whole sequence at once, without a cache, whose last logits count. An error is the L2 norm of an
item's difference over the smaller of its own norm and the contrast, the distance of both items in the reference: the
output of another item is wrong by 100 %. If two items take too many FLOPs for the CPU, a smaller pair is compared,
uncompiled, if the workload has one: then only U saw what was timed. `note` says what was not compared, and why.

What would pass: a clock that lies; in 16 bits an output that is wrong by less than half; a wrong gradient of the right
norm; a compiled step of training that is wrong; what only training mode computes (BatchNorm's statistics, dropout);
items that are neither first nor last; and in a model that is not compared (quantised, experts, larger than the memory)
whatever U does not see.
"""

import math
import resource
import zlib

import numpy as np

from bench.host import resources
from bench.precision import ERROR_LIMITS, EXACT, relative_error, require
from bench.timing import MeasurementError, idle_barrier_seconds, timed

# The largest error of an item, by the coarsest precision that was measured: float32 on a CPU and elsewhere; TF32 (also
# float32 convolutions by Winograd) and float16; anything else. docs/method-details.md has errors of honest networks.
CPU_LIMIT, EXACT_LIMIT, FINE_LIMIT, COARSE_LIMIT = 0.001, 0.01, 0.2, 0.5
FINE = EXACT | {"tf32", "float16"}
# Norms of gradients over the CPU's, (low, high), and the least norm that counts, in parts of the largest: a smaller one
# may be nothing but rounding. In 16 bits honest ones are 0.71 to 1.44, below 1 % down to 0.1 (LayerNorm in MaxViT and
# Swin). A sum instead of a mean of two items is 2.
EXACT_NORMS, ROUGH_NORMS = (0.9, 1.1, 1e-4), (0.54, 1.9, 1e-2)
# Not compared in 16 bits (the beginning of names): items differ in size by factors of a thousand, errors reach 55 %.
NOT_COMPARED_MODELS = "efficientnet_b"
NOT_COMPARED = "not compared with the CPU: "  # the beginning of a note
MAX_FLOPS = 3e11  # two items' on the CPU, for each thread of the reference: 4 to 8 s
# S. If all but one step is skipped, the ratio is 16. Single steps have cold caches (seconds); tries, because of noise.
SINGLE_STEPS, COMPARED_STEPS, MAX_SINGLE_RATIO, SINGLE_TOLERANCE = 4, 16, 4.0, 2e-5
LEAST_TRIES, MOST_TRIES = 3, 20
# K. Pages handed out in a step (1 MB), and the system's share of the CPU time; growth of the loss of the first step.
MANY_FAULTS, MAX_SYSTEM_SHARE, MAX_GROWTH = 256, 0.05, 10
MAX_STILL = 0.1  # share of the matrices that may stay where they were in float32; 16 bits lose small steps
MAX_SAMPLE_ERROR = 0.3  # a wrong kernel is wrong by about 1


def check_parameters(counted, expected):
    """Raise MeasurementError (`wrong_model`) unless a model has this many trainable parameters; None means unknown."""
    require(expected in (None, counted), f"the model has {counted} trainable parameters, not {expected}", "wrong_model")


def why_not_compared(session, is_too_large):
    """Return why a model is not compared with the CPU; or ""."""
    context = session.context
    workload = session.workload
    values = session.model.size + (session.parameters if session.is_trained else 0)  # the copy's, with gradients
    if workload.model.startswith(NOT_COMPARED_MODELS) and context.precision not in EXACT:
        return "this network magnifies the rounding of fewer bits than float32 has"
    if context.weight_bits:
        return "the weights are quantised"
    if getattr(workload.sizes, "num_experts", 1) > 1:
        return "rounding may change which experts a router chooses"
    if (needed := 4 * values) > (free := resources.available_bytes()):
        return f"a copy needs {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
    return "two items take too many FLOPs for it" if is_too_large else ""


def choose_pair(session):
    """Return (whether a model is compared with the CPU, two smaller items if its own take too long).

    A note says what is not as usual.
    """
    workload = session.workload
    settings = session.settings
    items = workload.items_per_step / settings.batch_size
    if settings.phase == "decode":
        items = settings.depth + settings.new_tokens  # a whole sequence, which the reference reads at once
    flops = (workload.flops_per_item or 0) * items  # one item's, 0 if unknown
    is_large = 2 * flops > MAX_FLOPS * session.context.reference_threads
    if reason := why_not_compared(session, is_large and not workload.make_checked):
        session.notes.append(NOT_COMPARED + reason)
        return False, None
    if not workload.make_checked or (flops and not is_large):
        return True, None
    session.notes.append("compared with the CPU, which is too slow for more, in a smaller size")
    return True, workload.make_checked(2, session.context.seed)[0]


def check_items(session, got, expected):
    """Raise MeasurementError unless the outputs of two items, (2, ...), agree with the reference; return the error."""
    got, expected = (np.asarray(each, np.float64).reshape(2, -1) for each in (got, expected))
    contrast = np.linalg.norm(expected[0] - expected[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.linalg.norm(got - expected, axis=1) / np.minimum(np.linalg.norm(expected, axis=1), contrast)
    measured = set(session.precisions.values())
    limit = FINE_LIMIT if measured <= FINE else COARSE_LIMIT
    if measured <= EXACT:
        limit = CPU_LIMIT if session.context.device == "cpu" else EXACT_LIMIT
    words = f"the output differs from the CPU's by {errors.max():.1e} (relative L2 of an item), limit {limit}"
    require(errors.max() <= limit, words)
    return float(errors.max())


def compute_gradients(session):
    """Return (output, norms of gradients) of two items from the device and from the CPU; or None."""
    context = session.context
    model = session.model
    is_compared, smaller = choose_pair(session)
    if not is_compared:
        return None
    batch = context.put(*(smaller or next(iter(session.workload.make_batches(2, context.seed)))))
    got = model.gradients(*batch)
    reference = model.on_cpu()
    return got, reference.gradients(*reference.context.put(*map(context.to_numpy, batch)))


def check_gradients(session, got, expected):
    """Compare what compute_gradients() returned, once the precision is known; return the error of the output.

    It cannot see a wrong gradient of the right norm, nor what dropout and BatchNorm do in training.
    """
    check_useful(got[0])
    error = check_items(session, got[0], expected[0])
    norms = np.asarray(got[1])
    right = np.asarray(expected[1])
    is_float16 = session.context.precision in ("float16", "mixed_float16")  # honest runs overflow in it
    for place in np.flatnonzero(np.isfinite(norms) != np.isfinite(right)):
        side = "the CPU" if np.isfinite(norms[place]) else "the device"
        require(is_float16, f"the gradient of trained tensor {place + 1} of {len(right)} is not finite, only on {side}")
    if not np.isfinite([norms, right]).all():
        session.notes.append(f"{NOT_COMPARED}gradients that are not finite")
        return error
    low, high, least = EXACT_NORMS if set(session.precisions.values()) <= EXACT else ROUGH_NORMS
    for place in np.flatnonzero(np.maximum(norms, right) > least * right.max()):
        ratio = norms[place] / right[place]
        where = f"gradient of trained tensor {place + 1} of {len(right)}"
        require(low <= ratio <= high, f"the {where} is {ratio:.3g} times as large as the CPU's, not {low} to {high}")
    return error


def check_compiled(context):
    """Raise MeasurementError (`unsupported`) if the compiler was asked for and has compiled nothing."""
    is_right = not context.compile or context.trace_count()
    require(is_right, "the compiler skipped this model: it would run uncompiled", "unsupported")


def check_steps_run(timer, steps):
    """Raise MeasurementError (`work_skipped`) if steps in a window take less time than a step by itself allows.

    A lazy framework that evaluates only what is read would run one step of each window. Other programs can only
    lengthen a step, so the shortest of each kind are compared, which were measured alternately. In windows of one step
    nothing can be skipped. It cannot see that fewer than three of four steps are skipped.
    """
    if steps == 1:
        return
    session, clock, compared = timer.session, timer.clock, max(steps, COMPARED_STEPS)
    in_window = single = math.inf
    for tries in range(1, MOST_TRIES + 1):
        in_window = min(in_window, timed(session, clock, compared) / compared)
        allowed = SINGLE_TOLERANCE + 2 * idle_barrier_seconds(session, clock)
        single = min(single, *(timed(session, clock, 1) for _ in range(SINGLE_STEPS)))
        if tries >= LEAST_TRIES and single <= MAX_SINGLE_RATIO * in_window + allowed:
            session.steps_run = True
            return
    reason = f"a step in a window of {compared} takes {in_window * 1e3:.3g} ms, but {single * 1e3:.3g} ms by itself"
    raise MeasurementError("work_skipped", f"{reason}: steps of a window do not run")


def start_counters(timer):
    """Start the watch; return what check_counters() compares with: compiled graphs, checksums, rusage."""
    if timer.watch:
        timer.watch.start()
    sums = {name: zlib.crc32(values.tobytes()) for name, values in timer.session.matrices()}
    return timer.session.trace_count(), sums, resource.getrusage(resource.RUSAGE_SELF)


def check_counters(timer, before, done, stop_reason):
    """Return (flags, sensor readings) after `done` steps, or raise as check_moved(); `before`: start_counters()'s."""
    session = timer.session
    traces, sums, used = before
    now = resource.getrusage(resource.RUSAGE_SELF)
    # After slices, the sensors would read what other processes' slices have left.
    flags, readings = timer.watch.stop(reads_sensors=not timer.slices) if timer.watch else ([], {})
    user, system, faults = (getattr(now, name) - getattr(used, name) for name in ("ru_utime", "ru_stime", "ru_minflt"))
    # Each batch of a pipeline is in new shared memory.
    if not timer.is_stream and faults > MANY_FAULTS * done and system > MAX_SYSTEM_SHARE * (user + system):
        flags.append("page_faults")
    if stop_reason != "interrupted":  # Ctrl-C leaves no result to read
        loss = session.context.read(session.model.loss) if session.is_trained else None
        if loss is None or loss <= MAX_GROWTH * session.first_loss:
            check_moved(session, sums)
        else:  # or it is NaN
            flags.append("not_finite")
    if session.trace_count() != traces:
        flags.append("recompiled")
    return flags, readings


def check_moved(session, sums):
    """Raise MeasurementError (`work_skipped`) if the timed steps left too many matrices, or all adapters A or B, still.

    It sees about 2**16 values of each matrix. It cannot see that they moved by the wrong amount. `sums` are those
    before the windows, by name.
    """
    still = [name for name, values in session.matrices() if zlib.crc32(values.tobytes()) == sums[name]]
    if not still:
        return
    words = f"{len(still)} of {len(sums)} matrices did not move"
    allowed = len(sums) - 1 if session.context.precision in ("float16", "bfloat16") else MAX_STILL * len(sums)
    require(len(still) <= allowed, words, "work_skipped")
    for kind in ("lora_a", "lora_b"):
        adapters = {name for name in sums if name.endswith(kind)}
        require(not adapters or adapters - {*still}, f"no {kind} of the adapters has moved", "work_skipped")
    session.notes.append(words)


def check_useful(values, name="output"):
    """Raise MeasurementError unless items, (items, ...), are finite, not all zero, and not all equal."""
    flat = values.reshape(len(values), -1)
    zero = "is all zero: if MODEL is very small, it is too small to be checked: choose a larger one"
    for words, are_bad in (("has infinities or NaN", ~np.isfinite(flat).all(1)), (zero, ~flat.any(1))):
        require(not are_bad.any(), f"item {are_bad.argmax()} of {len(flat)} of the {name} {words}")
    require(len(flat) == 1 or (flat != flat[0]).any(), f"all items of the {name} are equal")


def copy_items(session):
    """Return the inputs of two items of the last step, and their outputs, after U, before any other step.

    These are the first item and the last one with other inputs; if there is none, the first one of a new step.
    """
    output, first = session.read_output(), session.read_inputs(0)
    check_useful(output)
    place = len(output) - 1
    while place and all(map(np.array_equal, first, session.read_inputs(place))):
        place -= 1
    outputs = [output[:1]]
    if not place:
        session.step()
        output = session.read_output()
        check_useful(output)
    outputs.append(output[place : place + 1])
    require(not np.array_equal(*outputs), "two different items have the same output")
    return [first, session.read_inputs(place)], np.concatenate(outputs)


def check_output(session, inputs, got):
    """Compare what copy_items() returned with the CPU; return the error, or None and a note.

    It cannot see what other items have.
    """
    model = session.model
    is_compared, smaller = choose_pair(session)
    if not is_compared:
        return None
    if smaller:
        inputs = [session.workload.inputs_of(smaller)]
        got = model.output(*session.context.put(*inputs[0]))
    reference = model.on_cpu()
    expected = [reference.output(*reference.context.put(*each)) for each in inputs]
    return check_items(session, got, np.concatenate(expected))


def check_samples(got, expected, precisions):
    """Raise MeasurementError unless an operator's output agrees with float64 at the sampled places.

    Sums are long, and in 16 bits they may be rounded, too: the limit is ten times that of a probe (ERROR_LIMITS),
    of a convolution, which may be Winograd's, 30 times. In float32 and TF32 it is twice that of a probe, or TF32 would
    pass as float32. Integers must be equal. Precisions are those of check_precision().
    """
    if expected.dtype.kind == "i":
        require(np.array_equal(got, expected), "the output differs from the exact product")
        return
    many = 30 if "convolution" in precisions else 10
    limits = [(2 if name in ("float32", "tf32") else many) * ERROR_LIMITS.get(name, 1) for name in precisions.values()]
    limit = min(MAX_SAMPLE_ERROR, max(limits))
    error = relative_error(got, expected)
    require(error < limit, f"the output differs from float64's by {error:.1e} (relative L2), limit {limit:.1e}")
