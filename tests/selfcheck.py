"""Our figures beside those of loops written by hand: `make selfcheck`.

A ratio of 1 means that the harness adds nothing to the work and leaves nothing of it out. Blocks of both
take turns, so that a machine which drifts or is busy moves both, and the median of the pairs' ratios is
judged by its interval. The tests prove behaviour with fakes; this proves the numbers, on this machine.
"""

import os
import statistics
import sys
import tempfile
import time

import numpy
import torch
import torchvision
from PIL import Image
from torchvision import transforms

from bench import data, frameworks, intervals, measure
from bench.frameworks import on_torch
from bench.settings import read_settings
from image_benchmark import image_workload

PAIRS = 15
TOLERANCE = 0.02
SPIN_SECONDS = 0.010


class Spinning:
    """A step that takes 10 ms of wall time by the clock itself."""

    queue_steps = prepare = None

    def step(self, items=None):
        end = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < end:
            pass

    def synchronize(self):
        pass

    def probe(self):
        return time.perf_counter()


def check_spinning():
    measured = measure.measure(Spinning(), 1, measure.Limits())
    error = measured.step_seconds_median / SPIN_SECONDS - 1
    return say("a step that spins for 10 ms", f"off by {100 * error:+.3f} %", abs(error) <= 0.005)


def torch_loop(phase, batch_size, device):
    """ResNet-50 as a careful user would time it; returns block(readings, steps) -> median images/s."""
    model = torchvision.models.resnet50(weights=None).to(device)
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def infer():
        with torch.inference_mode():
            model(images)

    def train():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step = train if phase == "training" else infer
    model.train(phase == "training")

    def read_clock(steps):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device != "cpu":
            torch.accelerator.synchronize()
        return (time.perf_counter() - start) / steps

    def block(readings, steps):
        read_clock(2)
        return batch_size / statistics.median(read_clock(steps) for _ in range(readings))

    return block


def check_pipeline():
    """One core's JPEG pipeline beside the ancestor's: random floats to PIL, then the same transforms, no JPEG."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    random = numpy.random.default_rng(0)
    usual = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(on_torch.IMAGENET_MEAN, on_torch.IMAGENET_STD),
        ]
    )

    def random_image(_):
        height, width = random.integers(200, 501, size=2)
        pixels = random.random((height, width, 3)) * 255
        return usual(Image.fromarray(pixels.astype(numpy.uint8)))

    with tempfile.TemporaryDirectory() as folder:
        files = on_torch.JpegDataset(data.write_jpegs(folder, 64, 0), 224, 1000, training=False)
        pairs = [(images_per_second(files.__getitem__), images_per_second(random_image)) for _ in range(PAIRS)]
    torch.set_num_threads(threads)
    return compare("input pipeline on one core", pairs, lambda low, high: low >= 1.6)


def images_per_second(prepare):
    start = time.perf_counter()
    for i in range(64):
        prepare(i)
    return 64 / (time.perf_counter() - start)


def check_resnet(phase):
    environ = {"BATCH_SIZE": "4"} | dict(os.environ) | {"PHASE": phase, "MODEL": "resnet50"}
    settings = read_settings("image", environ)
    framework = frameworks.load(settings.framework)
    workload = image_workload(settings)
    session = framework.open_session(workload, settings, phase, "device")
    by_hand = torch_loop(phase, settings.batch_size, framework.find_device(settings).device)
    pairs = [one_pair(session, by_hand, workload) for _ in range(PAIRS)]
    session.close()
    what = f"resnet50 {phase}, batch {settings.batch_size}"
    return compare(what, pairs, lambda low, high: low <= 1 + TOLERANCE and high >= 1 - TOLERANCE)


def compare(what, pairs, is_right):
    """Say what (ours, theirs) come to; whether it is right follows from the ends of their ratio's interval."""
    ratios = [ours / theirs for ours, theirs in pairs]
    low, high = intervals.median_interval(ratios)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return say(
        what,
        f"ours {ours:.4g}, theirs {theirs:.4g} images/s, ratio {statistics.median(ratios):.4f} "
        f"({low:.4f} to {high:.4f}, {len(pairs)} pairs)",
        is_right(low, high),
    )


def one_pair(session, by_hand, workload):
    """(our images/s, those by hand) of two blocks, one right after the other, of as many steps."""
    measured = measure.measure(session, workload.items_per_step, measure.Limits(max_seconds=1))
    return measured.throughput, by_hand(measured.windows, measured.steps_per_window)


def say(what, figures, right):
    print(f"{'ok   ' if right else 'WRONG'}  {what}: {figures}", flush=True)
    return right


if __name__ == "__main__":
    passed = [check_spinning(), check_pipeline(), check_resnet("inference"), check_resnet("training")]
    sys.exit(0 if all(passed) else 1)
