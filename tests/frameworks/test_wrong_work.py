"""Work of PyTorch that is wrong but looks right: each cheat is refused, and the honest work next to it is not."""

import functools
import itertools

import numpy as np
import pytest
import torch
import torchvision
from torch.func import functional_call
from torch.nn import functional

from bench.frameworks import on_torch, on_torch_images
from bench.timing import MeasurementError
from bench.workloads import data
from tests.frameworks.sessions import Opener

open_session = Opener("torch")


def refuses(work, match):
    """Run work that must be refused as wrong."""
    with pytest.raises(MeasurementError, match=match) as error:
        work()
    assert error.value.status == "wrong_output"


# Compilers: (module, its arguments) -> output


def in_bfloat16(module, *inputs, **others):
    with torch.autocast("cpu", torch.bfloat16):
        return module(*inputs, **others).float()


def with_11_bits(module, *inputs):
    """Round as TF32 does."""
    parts = {name: torch.frexp(weight) for name, weight in module.named_parameters()}
    return functional_call(
        module, {name: torch.ldexp((m * 2**11).round() / 2**11, e) for name, (m, e) in parts.items()}, inputs
    )


def double_the_gradient(module, *inputs):
    output = module(*inputs)
    return output.detach() + 2 * (output - output.detach())


def reverse_and_scale(module, *inputs, **others):
    return 1.5 * module(*inputs, **others).flip(-1)


COMPILERS = [
    (reverse_and_scale, "mlp", "inference", "bfloat16"),
    (reverse_and_scale, "mlp", "training", "mixed_bfloat16"),
    (reverse_and_scale, "transformer", "training", "float32"),  # with dropout
    (reverse_and_scale, "llm", "decode", "bfloat16"),
    (reverse_and_scale, "llm", "prefill", "bfloat16"),
    (in_bfloat16, "mlp", "training", "float32"),
    (in_bfloat16, "llm", "training", "float32"),
    (with_11_bits, "mlp", "inference", "float32"),
    (double_the_gradient, "mlp", "training", "float32"),
    (double_the_gradient, "mlp", "training", "bfloat16"),
]


@pytest.mark.parametrize(("compiler", "script", "phase", "precision"), COMPILERS)
def test_a_compiled_model_that_computes_something_else_is_refused(monkeypatch, compiler, script, phase, precision):
    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)

    def finish_first_step(compiled):
        monkeypatch.setattr(torch, "compile", lambda module, **how: functools.partial(compiled, module))
        session = open_session(script, phase, COMPILE="1", PRECISION=precision)
        session.step()
        session.after_first_step()

    finish_first_step(lambda module, *inputs, **others: module(*inputs, **others))
    refuses(lambda: finish_first_step(compiler), "compiled")


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
    ("linear", in_bfloat16, "mlp", "training"),
    ("linear", in_bfloat16, "llm", "decode"),
    ("scaled_dot_product_attention", without_scale, "transformer", "inference"),
]


@pytest.mark.parametrize(("name", "wrong", "script", "phase"), WRONG)
def test_an_operator_of_float32_on_a_cpu_that_is_wrong_is_refused(monkeypatch, name, wrong, script, phase):
    right = getattr(functional, name)

    def compute(x, *others, **options):
        return wrong(right, x, *others, **options) if x.dtype == torch.float32 else right(x, *others, **options)

    assert open_session(script, phase, USE_GPU="0").context.output_error < 2e-5
    monkeypatch.setattr(functional, name, compute)
    refuses(lambda: open_session(script, phase, USE_GPU="0"), "float64")


# Residual blocks that are left out in 16 bits; the vision transformer is a small one, which rounding hardly changes

BLOCKS = {
    "vit_b_16": ["encoder.layers.encoder_layer_11"],
    "resnet18": ["layer1.0", "layer3.1"],
    "resnet50": ["layer1.1", "layer2.3", "layer3.2", "layer3.5", "layer4.2"],
    "regnet_x_400mf": ["trunk_output.block3.block3-1", "trunk_output.block4.block4-5"],
    "mobilenet_v2": ["features.3", "features.9"],
    "efficientnet_b0": ["features.3.1", "features.6.2"],
}


@pytest.mark.parametrize("model", BLOCKS)
def test_a_residual_block_that_is_left_out_is_refused(monkeypatch, model):
    check_model, build, left_out, built = on_torch.DeviceContext.check_model, on_torch.BUILDERS["image"], [], []

    def check_without_block(self, *arguments):
        for block in left_out:
            built[-1].set_submodule(block, torch.nn.Identity())
        check_model(self, *arguments)

    def open_one():
        return open_session("image", "inference", MODEL=model, IMAGE_SIZE="64", PRECISION="bfloat16")

    if model == "vit_b_16":
        small = functools.partial(torchvision.models.VisionTransformer, 64, 8, 12, 2, 32, 64)
        monkeypatch.setattr(torchvision.models, "get_model", lambda *name, **sizes: small())
    monkeypatch.setattr(on_torch.DeviceContext, "check_model", check_without_block)
    monkeypatch.setitem(on_torch.BUILDERS, "image", lambda workload: built.append(build(workload)) or built[-1])
    open_one()
    for block in BLOCKS[model]:
        left_out[:] = [block]
        refuses(open_one, "differs from the CPU")


def first_for_ever(batches):
    return itertools.repeat(next(batches))


def black(batches):
    dark = (-np.array(data.IMAGENET_MEAN) / data.IMAGENET_STD).astype(np.float32)[:, None, None]
    return ((0 * images + dark, labels) for images, labels in batches)


def noise(batches):
    return ((np.random.default_rng(0).standard_normal(images.shape), labels) for images, labels in batches)


def of_other_files(batches):
    return ((images, labels[::-1]) for images, labels in batches)


def upside_down(batches):
    return ((images[:, :, ::-1], labels) for images, labels in batches)


CHEATS = [*itertools.product((first_for_ever, black, noise), ("inference", "training"))]
CHEATS += [(of_other_files, "inference"), (upside_down, "inference")]  # nobody knows the cut of training


@pytest.mark.parametrize(("cheat", "phase"), CHEATS)
def test_a_pipeline_that_does_not_deliver_its_files_is_refused(monkeypatch, cheat, phase):
    check_batches = on_torch_images.check_batches

    def cheat_and_check(batches, *arguments):
        return check_batches(cheat((images.numpy(), labels.numpy()) for images, labels in batches), *arguments)

    def take_three_batches():
        session = open_session("image", phase, "input", NUM_WORKERS="0", BATCH_SIZE="4")
        for _ in range(3):
            session.step()

    take_three_batches()
    monkeypatch.setattr(on_torch_images, "check_batches", cheat_and_check)
    refuses(take_three_batches, "pipeline")
