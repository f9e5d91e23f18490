"""Work of PyTorch that is wrong but looks right: each cheat is refused, and the honest work next to it is not."""

import functools
import itertools

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader

from bench.frameworks.pytorch import jpeg_stream, on_torch, on_torch_images
from bench.timing import MeasurementError, proof
from bench.workloads import data
from tests.frameworks.sessions import Opener, measure_and_prove

open_session = Opener("torch")


def refuses(work, match):
    """Run work that must be refused as wrong."""
    with pytest.raises(MeasurementError, match=match) as error:
        work()
    assert error.value.status == "wrong_output"


# Compilers: (module, its arguments) -> output


def in_bfloat16(module, *inputs, **others):
    with torch.autocast(inputs[0].device.type, torch.bfloat16):
        return module(*inputs, **others).float()


def double_the_gradient(module, *inputs):
    output = module(*inputs)
    return output.detach() + 2 * (output - output.detach())


def reverse_and_scale(module, *inputs, **others):
    return 1.5 * module(*inputs, **others).flip(-1)


COMPILERS = [
    (reverse_and_scale, "mlp", "inference", "bfloat16"),
    (reverse_and_scale, "transformer", "training", "float32"),  # with dropout
    (reverse_and_scale, "llm", "decode", "bfloat16"),
    (in_bfloat16, "mlp", "training", "float32"),
    (double_the_gradient, "mlp", "training", "float32"),
]


@pytest.mark.parametrize(("compiler", "script", "phase", "precision"), COMPILERS)
def test_a_compiled_model_that_computes_something_else_is_refused(monkeypatch, compiler, script, phase, precision):
    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)

    def measure(compiled):
        monkeypatch.setattr(torch, "compile", lambda module, **how: functools.partial(compiled, module))
        measure_and_prove(open_session(script, phase, COMPILE="1", PRECISION=precision))

    measure(lambda module, *inputs, **others: module(*inputs, **others))
    others = "" if on_torch.choose_device(None) == "cpu" else "|moved 1 of 4 weights"  # seen on an H200
    refuses(lambda: measure(compiler), f"differs from the CPU's{others}")


# Operators of float32 on a CPU: (the right one, its arguments) -> output


def centre_only(right, x, weight, *others):
    if weight.shape[2] == 7:  # only in the first layer
        weight = functional.pad(weight[..., 3:4, 3:4], (3, 3, 3, 3))
    return right(x, weight, *others)


def without_scale(right, *operands, **others):
    return right(*operands, **others | {"scale": 1})


WRONG = [
    ("conv2d", centre_only, "image", "inference"),
    ("linear", in_bfloat16, "mlp", "inference"),
    ("scaled_dot_product_attention", without_scale, "transformer", "inference"),
]


@pytest.mark.parametrize(("name", "wrong", "script", "phase"), WRONG)
def test_an_operator_of_float32_on_a_cpu_that_is_wrong_is_refused(monkeypatch, name, wrong, script, phase):
    right = getattr(functional, name)

    def compute(x, *others, **options):
        return wrong(right, x, *others, **options) if x.dtype == torch.float32 else right(x, *others, **options)

    session = open_session(script, phase, USE_GPU="0")
    measure_and_prove(session)
    assert session.proof.output_error < 1e-4
    monkeypatch.setattr(functional, name, compute)
    refuses(lambda: measure_and_prove(open_session(script, phase, USE_GPU="0")), "float64")


# Pipelines: (the right batches) -> those of a cheat, or (a dataset, a place) -> the item of a cheat


def first_for_ever(batches):
    return itertools.repeat(next(batches))


def half_twice(batches):
    for images, labels in batches:
        half = len(images) // 2
        yield torch.cat(2 * [images[:half]]), torch.cat(2 * [labels[:half]])


def black(batches):
    dark = (-torch.tensor(data.IMAGENET_MEAN) / torch.tensor(data.IMAGENET_STD))[:, None, None]
    return ((0 * images + dark, labels) for images, labels in batches)


def of_other_files(batches):
    return ((images, labels.flip(0)) for images, labels in batches)


def upside_down(batches):
    return ((images.flip(2), labels) for images, labels in batches)


def keep_decoded():
    kept = {}

    def decode(dataset, place):
        for path in () if kept else dataset.paths:
            kept[path] = torchvision.io.decode_jpeg(torchvision.io.read_file(path))
        return dataset.transform(kept[dataset.paths[place]]), place % dataset.classes

    return decode


def decode_a_quarter(dataset, place):
    image = Image.open(dataset.paths[place])
    image.draft("RGB", [side // 4 for side in image.size])
    return dataset.transform(torch.from_numpy(np.array(image)).permute(2, 0, 1)), place % dataset.classes


PIPELINES = [
    (first_for_ever, "training"),
    (half_twice, "inference"),
    (black, "training"),
    (of_other_files, "training"),
    (upside_down, "inference"),
]


def take_and_check(phase, **environ):
    session = open_session("image", phase, "input", **{"NUM_WORKERS": "0", "BATCH_SIZE": "4"} | environ)
    for _ in range(3):
        session.step()
    session.check_pipeline()


@pytest.mark.parametrize(("cheat", "phase"), PIPELINES)
def test_a_pipeline_that_does_not_deliver_its_files_is_refused(monkeypatch, cheat, phase):
    monkeypatch.setattr(on_torch_images, "DataLoader", lambda *given, **how: cheat(iter(DataLoader(*given, **how))))
    refuses(lambda: take_and_check(phase), "pipeline")


@pytest.mark.parametrize("decode", [keep_decoded(), decode_a_quarter])
def test_a_pipeline_that_decodes_less_is_refused(monkeypatch, decode):
    monkeypatch.setattr(on_torch_images.JpegDataset, "__getitem__", decode)
    refuses(lambda: take_and_check("inference"), "pipeline")


@pytest.mark.parametrize(
    ("phase", "more"),
    [
        ("inference", {"BATCH_SIZE": "1"}),
        ("inference", {"NUM_WORKERS": "2", "IMAGE_SIZE": "64"}),
        ("training", {"NUM_WORKERS": "2"}),
    ],
)
def test_a_pipeline_that_delivers_its_files_passes(phase, more):
    take_and_check(phase, **more)


@pytest.mark.parametrize("size", [32, 224])
def test_pictures_are_rounded_as_torchvision_does_it(tmp_path, size):
    """Seed 25 has a side that PIL's users round to another number of pixels."""
    for seed in (24, 25):
        paths = data.write_jpegs(tmp_path, 8, seed)
        dataset = on_torch_images.JpegDataset(paths, size, 1000, False)
        for place, path in enumerate(paths):
            expected = jpeg_stream.resize_and_cut(Image.open(path).convert("RGB"), size)
            assert proof.relative_error(dataset[place][0].permute(1, 2, 0), expected) < 0.01
