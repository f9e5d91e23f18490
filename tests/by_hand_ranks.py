"""Compare our rate on several ranks with a hand-written torchrun loop of the same work, in turns.

MODEL=resnet18 IMAGE_SIZE=64 .venv/bin/torchrun --standalone --nproc-per-node=2 -m tests.by_hand_ranks image
.venv/bin/torchrun --standalone --nproc-per-node=2 -m tests.by_hand_ranks mlp
"""

import os
import sys

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

from bench.frameworks import on_torch
from bench.host.ranks import read_ranks
from bench.settings import read_settings
from bench.timing.measure import Job, measure
from image_benchmark import image_workload
from mlp_benchmark import mlp_workload
from tests.selfcheck import PAIRS, block_of, compare, is_one


def image_model(settings):
    """Return (model, shape of an image, classes)."""
    model = torchvision.models.get_model(settings.model, weights=None)
    return model, (3, settings.image_size, settings.image_size), 1000


def mlp_model(_):
    """Return (model, shape of an image, classes) of five hidden layers of 1024."""
    layers = [torch.nn.Linear(3072, 1024), torch.nn.ReLU()]
    for _ in range(4):
        layers += [torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10)), (3072,), 10


WORKLOADS = {"image": (image_workload, image_model), "mlp": (mlp_workload, mlp_model)}


def loop(settings, device, build):
    """Return the block of training as a careful user would time it: images/s of all ranks."""
    model, shape, classes = build(settings)
    model = DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)
    images = torch.randn(settings.batch_size, *shape, device=device)
    labels = torch.randint(classes, (settings.batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def train():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def wait(_):
        if device != "cpu":
            torch.accelerator.synchronize()
        dist.barrier()  # so the next reading starts on all ranks at once

    return block_of(train, wait, settings.batch_size * dist.get_world_size())


def main(script):
    me, (describe, build) = read_ranks(), WORKLOADS[script]
    fixed = {"PHASE": "training"} | ({"SCOPE": "device"} if script == "image" else {"DATA": "synthetic"})
    settings = read_settings(script, {"BATCH_SIZE": "8"} | dict(os.environ) | fixed)
    settings = settings.on(on_torch.find_device(settings).device)
    device, pairs = on_torch.choose_device(settings.use_gpu), []
    with on_torch.join_ranks(me, device) as group:
        workload = describe(settings)
        session = group.watch_over(on_torch.open_session(workload, settings, "training", "device"))
        block = loop(settings, device, build)
        for _ in range(PAIRS):
            items = settings.batch_size * me.world_size
            ours = measure(Job(session, items, 2, clock=group.clock))
            pairs.append((ours.throughput, block(ours.windows, ours.steps_per_window)))
        if me.rank == 0:
            compare(f"{settings.model}, {me.world_size} ranks, compared with a hand-written loop", pairs, is_one)
        session.close()


if __name__ == "__main__":
    main(sys.argv[1])
