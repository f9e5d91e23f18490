"""A model in PyTorch: its steps, losses and optimizer, and its copy on the CPU."""

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.frameworks import base
from bench.workloads.workload import LEARNING_RATES

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def cross_entropy(outputs, target):
    """Return the mean over items, or over all tokens of all items, of logits (..., classes) and classes (...)."""
    return functional.cross_entropy(outputs.flatten(0, -2), target.flatten())


def mean_squared_error(outputs, target):
    """Return the mean over all values, in float32 or float64: 16 bits would lose small squares."""
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    return functional.mse_loss(outputs.to(dtype), target.to(dtype))


LOSSES = {"cross_entropy": cross_entropy, "mean_squared_error": mean_squared_error}


def replicate(module):
    """Return the module for training: its gradients are averaged over all ranks, if there are others."""
    has_others = dist.is_initialized() and dist.get_world_size() > 1
    return DistributedDataParallel(module, gradient_as_bucket_view=True) if has_others else module


class Model(base.Model):
    """A module with its optimizer, if it is trained, whose parts of a step can be timed. The contract is in base.py."""

    _loss: Any  # mean of the last batch, with its graph

    def __init__(self, context, module, workload, is_trained=False):
        self.context = context
        self.workload = workload
        self.loss_of = LOSSES.get(workload.loss)
        self.uncompiled = module.train(is_trained)
        self.size = sum(weight.numel() for weight in module.parameters())
        self.module = context.compiled(replicate(module) if is_trained else module)
        if not is_trained:
            return
        # A matrix, because 16 bits leave norms at 1.
        self.last_weight = [each for each in module.parameters() if each.requires_grad and each.ndim > 1][-1]
        # Fused: one kernel for all weights. A loop over them would itself be measured, and without the fused kernel
        # the gradient scaler reads a scalar back in every step.
        name = context.optimizer
        uses_scaler = context.precision == "mixed_float16"
        self.optimizer = OPTIMIZERS[name](module.parameters(), lr=LEARNING_RATES[name], fused=True)
        self.scaler = torch.amp.GradScaler(context.device, init_scale=base.LOSS_SCALE, enabled=uses_scaler)

    def trained_weights(self):
        return {name: weight for name, weight in self.uncompiled.named_parameters() if weight.requires_grad}

    @torch.inference_mode()
    def infer(self, *inputs):
        with self.context.autocast():
            return self.module(*inputs)

    def train(self, *batch):
        self.forward(*batch)
        self.backward()
        return self.update()

    def forward(self, *batch):
        """Compute the forward pass of training and its loss; keep what the backward pass needs."""
        *inputs, target = batch
        self._loss = None  # frees the last step's graph before the next one is built
        self.optimizer.zero_grad(set_to_none=True)
        with self.context.autocast():
            self._loss = self.loss_of(self.module(*inputs), target)
        return self.loss

    def backward(self):
        """Compute the gradients of the last forward pass and keep them."""
        self.scaler.scale(self._loss).backward()
        return self.last_weight.grad

    def update(self):
        """Run the optimizer's step with the gradients of the last backward pass."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.last_weight

    @property
    def loss(self):
        return self._loss.detach()

    @torch.inference_mode()
    def output(self, *inputs):
        with base.in_evaluation_mode(self.uncompiled), self.context.autocast():
            return self.context.to_numpy(self.uncompiled(*inputs))

    def gradients(self, *batch):
        *inputs, target = batch
        with base.in_evaluation_mode(self.uncompiled), self.context.autocast():
            outputs = self.uncompiled(*inputs)
            loss = base.LOSS_SCALE * self.loss_of(outputs, target)
            weights = list(self.trained_weights().values())
            gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        return self.context.to_numpy(outputs), [each.float().norm().item() for each in gradients]

    def on_cpu(self):
        copied = {}  # {id of a tensor: its copy}; weights that are on the CPU in float32 already are shared
        for each in itertools.chain(self.uncompiled.parameters(), self.uncompiled.buffers()):
            values = each.detach().cpu()  # in its own precision, which is faster
            values = values.float().contiguous() if values.is_floating_point() else values
            is_weight = isinstance(each, torch.nn.Parameter)
            copied[id(each)] = torch.nn.Parameter(values, each.requires_grad) if is_weight else values
        module = copy.deepcopy(self.uncompiled, copied)
        return type(self)(self.context.on_cpu(), module, self.workload)
