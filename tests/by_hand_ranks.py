"""Compare our rate on several ranks with a hand-written torchrun loop of the same work, in turns.

MODEL=resnet18 IMAGE_SIZE=64 .venv/bin/torchrun --standalone --nproc-per-node=2 -m tests.by_hand_ranks
"""

import os

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

from bench.frameworks import on_torch
from bench.host.ranks import read_ranks
from bench.settings import read_settings
from bench.timing.measure import Job, measure
from image_benchmark import image_workload
from tests.selfcheck import PAIRS, block_of, compare


def loop(settings, side, device):
    """Return the block of training as a careful user would time it: images/s of all ranks."""
    model = torchvision.models.get_model(settings.model, weights=None).to(device)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    images = torch.randn(settings.batch_size, 3, side, side, device=device)
    labels = torch.randint(1000, (settings.batch_size,), device=device)
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


def main():
    me, pairs = read_ranks(), []
    settings = read_settings("image", {"BATCH_SIZE": "8"} | dict(os.environ) | {"PHASE": "training", "SCOPE": "device"})
    device = on_torch.find_device(settings).device
    with on_torch.join_ranks(me, device) as group:
        workload = image_workload(settings)
        session = group.watch_over(on_torch.open_session(workload, settings, "training", "device"))
        block = loop(settings, workload.sizes.side, device)
        for _ in range(PAIRS):
            items = settings.batch_size * me.world_size
            ours = measure(Job(session, items, 2, clock=group.clock))
            pairs.append((ours.throughput, block(ours.windows, ours.steps_per_window)))
        if me.rank == 0:
            compare(f"{settings.model}, {me.world_size} ranks, compared with a hand-written loop", pairs)
        session.close()


if __name__ == "__main__":
    main()
