"""Count the parameters and FLOPs of every image model, by torch's own counter: the source of flops.csv.

    .venv/bin/python -m checks.count_flops > bench/workloads/flops.csv

count_denoiser() counts a model of denoisers.json, whose counts are edited by hand.

A model is built on the CPU (some cannot be on "meta") and counted on "meta", where nothing is computed.
The counter sees convolutions and matrix products, forward and backward, at 1 multiply-add = 2 FLOPs.
Its formula for the backward pass of grouped convolutions counts every group with the channels of all
(mobilenet_v2: 12.3 GFLOP an image in training, where three times the forward pass is 1.8): ours replaces it.
"""

import csv
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from bench.frameworks.pytorch.on_torch_images import MODELS, build_image
from bench.frameworks.pytorch.on_torch_llm import TorchDenoiser
from bench.settings import read_settings
from diffusion_benchmark import diffusion_workload
from image_benchmark import image_workload

FIELDS = ("model", "image_size", "parameters", "inference_flops", "training_flops")


def convolution_backward_flops(grad, x, weight, *rest, out_shape):
    """Each gradient that is asked for, of the input and of the weight, costs what the forward pass costs."""
    output_mask = rest[-1]
    return conv_flop_count(x, weight, grad) * sum(output_mask[:2])


def count(name):
    """One row of flops.csv as a dict."""
    workload = image_workload(read_settings("image", {"MODEL": name, "BATCH_SIZE": "1"}))
    model = build_image(workload)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    model = model.to("meta")
    # Two images, because BatchNorm after a 1 x 1 map cannot be trained on one.
    images = torch.empty(2, 3, workload.sizes, workload.sizes, device="meta")
    totals = (total // 2 for total in count_passes(model, images))
    return dict(zip(FIELDS, (name, workload.sizes, parameters, *totals), strict=True))


def count_denoiser(name):
    """Return (parameters, FLOPs of inference, of training) of a model of denoisers.json, for an image of its size."""
    workload = diffusion_workload(read_settings("diffusion", {"MODEL": name, "PRECISION": "float32"}))
    model = TorchDenoiser(workload)
    inputs = [torch.from_numpy(each).to("meta") for each in workload.inputs_of(next(iter(workload.make_batches(1, 0))))]
    return (sum(weight.numel() for weight in model.parameters()), *count_passes(model, *inputs))


def count_passes(model, *inputs):
    """Return the FLOPs of (a forward pass, a step of training)."""
    with FlopCounterMode(display=False) as inference, torch.no_grad():
        model.eval()(*inputs)
    ours = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=ours) as training:
        model.train()(*inputs).sum().backward()
    return inference.get_total_flops(), training.get_total_flops()


def main():
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    for name in MODELS:
        writer.writerow(count(name))


if __name__ == "__main__":
    main()
