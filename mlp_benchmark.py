"""Measure images per second of a multilayer perceptron on CIFAR-10, in training or inference.

    make mlp
    EPOCHS=5 MODEL=mlp-3000-1000 make mlp
    FRAMEWORK=tensorflow DATA=synthetic .venv-tensorflow/bin/python mlp_benchmark.py

One step is one batch of images of 32 x 32 pixels, as vectors, sorted into ten classes. The model is dense layers with
ReLU between them (build_mlp() in bench/frameworks/). See `make settings`.
"""

import functools
import re
import statistics
import sys
from itertools import pairwise

from bench import child
from bench.run import main
from bench.settings import SettingError
from bench.workloads import cifar10
from bench.workloads.data import epoch_order
from bench.workloads.workload import Workload, flops_of_phase


def mlp_workload(settings):
    """Describe the work; batches are (images, labels): float32 (batch_size, 3072) and int64 (batch_size,)."""
    if settings.epochs and settings.batch_size > cifar10.TRAIN_IMAGES:
        raise SettingError(f"BATCH_SIZE={settings.batch_size} with EPOCHS must be at most {cifar10.TRAIN_IMAGES:,}")
    model = settings.model.lower()
    widths = (cifar10.PIXELS, *hidden_widths(model), cifar10.CLASSES)
    parameters, flops = mlp_counts(widths, settings.phase)
    data = cifar10.choose(settings.data)
    return Workload(
        name="mlp",
        model=model,
        unit="images",
        items_per_step=settings.batch_size,
        make_batches=functools.partial(cifar10.make_batches, data),
        loss="cross_entropy",
        sizes=widths,
        parameters=parameters,
        flops_per_item=flops,
        batch_bytes=settings.batch_size * 4 * cifar10.PIXELS,  # float32
        columns={"image_size": cifar10.SIDE, "data": data},
        dataset=functools.partial(cifar10.dataset, data, settings.seed),
    )


def hidden_widths(model):
    """Return the widths of the hidden layers of mlp-<depth>x<width> or mlp-<width>-<width>-...; raises SettingError."""
    if repeated := re.fullmatch("mlp-([1-9][0-9]{0,2})x([1-9][0-9]{0,5})", model):
        return (int(repeated[2]),) * int(repeated[1])
    if re.fullmatch("mlp(-[1-9][0-9]{0,5})+", model):
        return tuple(int(width) for width in model.split("-")[1:])
    raise SettingError(f"MODEL={model!r} must be mlp-DEPTHxWIDTH (mlp-5x1024) or mlp-WIDTH-WIDTH...; a list has commas")


def mlp_counts(widths, phase):
    """Return (trainable parameters, FLOPs per image) of dense layers with biases; widths: from inputs to classes."""
    layers = list(pairwise(widths))
    flops = [2 * inputs * outputs for inputs, outputs in layers]
    parameters = sum((inputs + 1) * outputs for inputs, outputs in layers)
    return parameters, flops_of_phase(phase, sum(flops), 2 * sum(flops) - flops[0])


def measure_mlp(measurer: child.Measurer, make_workload):
    """Measure batches that are on the device, then EPOCHS."""
    child.measure_workload(measurer, make_workload)
    if measurer.settings.epochs:
        measure_epochs(measurer, make_workload(measurer.settings))


def measure_epochs(measurer: child.Measurer, workload):
    """Train whole epochs; write each one's seconds, loss and accuracy."""
    scope = "epoch"
    measurer.begin(workload, scope, "building")
    count = len(workload.dataset()[1])
    settings = measurer.settings
    with measurer.open_session(workload, scope) as session:
        timer = measurer.make_timer(workload, scope, session)
        for epoch in range(1, settings.epochs + 1):
            measurer.begin(workload, scope, "measuring", epoch=epoch)
            seconds, flags = timer.measure_epoch(epoch_order(count, settings.seed, epoch))
            loss = statistics.fmean(map(float, session.losses))
            cells = {"status": "ok", "stop_reason": "epoch", "flags": " ".join(flags)}
            cells |= {"throughput": count / seconds, "items": count, "seconds": seconds}
            cells |= {"loss_mean": loss, "accuracy": session.evaluate()}
            measurer.check_last_step(session, cells, measurer.write)
            cells |= measurer.derive_cells(workload, scope, session, cells)
            measurer.write(measurer.begun | cells | {"note": child.describe_notes(session, cells)})


if __name__ == "__main__":
    sys.exit(main("mlp", mlp_workload, measure_mlp))
