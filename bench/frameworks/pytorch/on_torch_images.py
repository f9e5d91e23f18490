"""Images in PyTorch: torchvision's classification models, and the pipeline that reads JPEG files."""

import os
import sys
from contextlib import suppress
from multiprocessing import queues, util

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from bench.workloads import data
from bench.workloads.workload import find_model

MODELS = torchvision.models.list_models(module=torchvision.models)  # those of classification


def build_image(workload):
    """Build a torchvision classification model with random weights and without auxiliary heads."""
    find_model(workload.model, MODELS)  # raises SettingError for another one
    extra = {"aux_logits": False, "init_weights": True} if workload.model in ("googlenet", "inception_v3") else {}
    if "vit" in workload.model:  # the size of the images is part of these models
        side = workload.sizes
        extra = {"input_size": (side, side)} if workload.model == "maxvit_t" else {"image_size": side}
    model = torchvision.models.get_model(workload.model, weights=None, num_classes=data.CLASSES, **extra)
    for layer in model.modules():
        # A vision transformer's head starts at zero: all images would give the same output.
        if isinstance(layer, torch.nn.Linear) and not layer.weight.any():
            torch.nn.init.trunc_normal_(layer.weight, std=0.02)
    return model


def open_stream(paths, workload, settings, pins_memory):
    """Return the endless batches that a DataLoader's workers read from these JPEG files and prepare.

    Its caller holds the signals: half of the workers cannot be closed.
    """
    loader = DataLoader(
        JpegDataset(paths, workload.sizes, settings.phase == "training"),
        batch_size=workload.items_per_step,
        # One endless epoch: at the end of one the workers' queues would run empty.
        sampler=RandomSampler(paths, num_samples=2**60, generator=torch.Generator().manual_seed(settings.seed)),
        num_workers=settings.num_workers,
        prefetch_factor=data.PREFETCH if settings.num_workers else None,
        pin_memory=pins_memory,
        worker_init_fn=prepare_worker,
    )
    return iter(loader)


def prepare_worker(worker):
    """Let a worker end at once, and without a traceback of a connection that the main process has closed (Ctrl-C)."""
    sys.excepthook = lambda *_: None
    # multiprocessing drops a batch that it cannot send, and the main process would wait for it without end.
    queues.Queue._on_queue_feeder_error = staticmethod(lambda *_: os._exit(1))  # pyright: ignore
    # On a Mac a worker starts torch_shm_manager, which outlives it. If the manager inherited the pipe whose end tells
    # the main process that the worker is dead, the main process would wait five seconds for each worker.
    for descriptor in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # that of the listing itself is closed
            os.set_inheritable(descriptor, descriptor <= 2)
    # As a forked worker ends; a spawned one would take its interpreter down, which is a second of work.
    util.Finalize(None, os._exit, (0,), exitpriority=-101)  # after that of the sockets' folder, -100


class JpegDataset(Dataset):
    """Decodes and transforms as usual for ImageNet; holds plain values, which any start method can send."""

    def __init__(self, paths, size, training):
        self.paths = paths
        cut = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        whole = [v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)]
        as_floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.IMAGENET_MEAN, data.IMAGENET_STD)]
        self.transform = v2.Compose((cut if training else whole) + as_floats)

    def __getitem__(self, index):
        image = decode_jpeg(read_file(self.paths[index]), mode=ImageReadMode.RGB)
        return self.transform(image), index % data.CLASSES
