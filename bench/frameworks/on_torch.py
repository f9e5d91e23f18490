"""All the PyTorch there is here. CUDA and MPS take one path, torch.accelerator, so that a run on either
proves the lines of both."""

import difflib
import itertools
import os
from contextlib import nullcontext

import torch
import torchvision
from torch.nn import functional

from bench import check, data
from bench.frameworks import Device
from bench.settings import SettingError

AUTOCAST = {"float32": None, "mixed_bfloat16": torch.bfloat16}
MEMORY_FORMATS = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
LEARNING_RATE = 0.01


def find_device(use_gpu):
    """The Device to run on; raises SettingError where operators would silently move to the CPU."""
    kind = choose_device(use_gpu)
    return Device(kind, name_device(kind), torch.__version__, torch.get_num_threads())


def choose_device(use_gpu):
    found = torch.accelerator.current_accelerator(check_available=True)
    if use_gpu is False or found is None:
        return "cpu"
    if found.type == "mps" and os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        raise SettingError(
            "PYTORCH_ENABLE_MPS_FALLBACK='1' moves operators to the CPU silently: unset it, or set USE_GPU=0"
        )
    return found.type


def open_session(workload, settings, phase, scope):
    """A TorchSession, its network built, checked and moved; raises SettingError or MeasurementError."""
    if workload.name not in BUILDERS:
        raise SettingError(f"FRAMEWORK='torch' cannot run {workload.name}: it has {', '.join(BUILDERS)}")
    set_float32()
    torch.manual_seed(settings.seed)
    return TorchSession(BUILDERS[workload.name](workload), workload, settings, phase, scope)


def set_float32():
    """float32 means float32: no TF32, in matrix products and convolutions alike.

    Each setting by name: cuDNN's convolutions start at tf32 whatever the setting above them says. Mixing
    these with the older allow_tf32 raises, so nothing here touches that.
    """
    backends = torch.backends
    for room in (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn):
        room.fp32_precision = "ieee"
    # Autotuning happens on the first step of a shape, which is never inside a window.
    backends.cudnn.benchmark = True


def list_models():
    """The names of torchvision's classification models."""
    return torchvision.models.list_models(module=torchvision.models)


def build_image(workload):
    """A torchvision classification model with random weights and without auxiliary heads."""
    known = list_models()
    if workload.model not in known:
        near = difflib.get_close_matches(workload.model.lower(), known, n=3) or known[:3]
        raise SettingError(f"MODEL={workload.model!r} is not in torchvision: did you mean {', '.join(near)}?")
    extra = {"aux_logits": False, "init_weights": True} if workload.model in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(workload.model, weights=None, num_classes=workload.classes, **extra)
    for layer in model.modules():
        # A vision transformer's head starts at zero: every image would give the same output.
        if isinstance(layer, torch.nn.Linear) and not layer.weight.any():
            torch.nn.init.trunc_normal_(layer.weight, std=0.02)
    return model


BUILDERS = {"image": build_image}


@torch.no_grad()
def calibrate(model, images):
    """Set the BatchNorm statistics from one batch.

    With random weights and the initial statistics, activations explode or vanish with depth in eval mode,
    and two different images give the same output.
    """
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # the plain mean of all batches seen, here of one
        norm.reset_running_stats()
    model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def name_device(device):
    """The device's name as torch reports it; None for the CPU, whose name the system knows better."""
    if device == "mps":
        return torch.backends.mps.get_name() if hasattr(torch.backends.mps, "get_name") else None
    return None if device == "cpu" else torch.get_device_module(device).get_device_name()


class TorchSession:
    """Resident batches in rotation through one network. The contract is in bench/frameworks/__init__.py."""

    def __init__(self, model, workload, settings, phase, scope):
        self.device = choose_device(settings.use_gpu)
        self.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._autocast_type = AUTOCAST[settings.precision]
        self._format = MEMORY_FORMATS[settings.memory_format]
        self.measured_precision = self._measure_precision()
        check.check_parameters(self.parameters, workload.parameters)
        (pair, _), *_ = data.image_batches(2, workload.item_shape, workload.classes, settings.seed)
        self._model = self._prove(model, torch.from_numpy(pair)).train(phase == "training")
        self._memory("reset_peak_memory_stats")
        batches = data.image_batches(workload.items_per_step, workload.item_shape, workload.classes, settings.seed)
        self._batches = itertools.cycle([(self._put(x), torch.from_numpy(y).to(self.device)) for x, y in batches])
        # Fused: one kernel for all weights, where the loop over them would be what is measured.
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE, fused=True)
        self._watched = list(self._model.parameters())[-1]
        self.step = {("device", "inference"): self._infer, ("device", "training"): self._train}[scope, phase]

    @torch.inference_mode()
    def _infer(self):
        images, _ = next(self._batches)
        with self._autocast():
            self._watched = self._model(images)

    def _train(self):
        images, labels = next(self._batches)
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()

    def synchronize(self):
        if self.device != "cpu":
            torch.accelerator.synchronize()

    def probe(self):
        # A norm, because one element may be a dead unit's, and a sum over classes has no gradient.
        return torch.linalg.vector_norm(self._watched.detach().float()).item()

    def peak_memory_bytes(self):
        return self._memory("max_memory_allocated")

    def close(self):
        self._model = self._optimizer = self._batches = self._watched = None
        if self.device != "cpu":
            torch.accelerator.empty_cache()

    def _memory(self, function):
        """Call a memory function of the accelerator; None where it has none (MPS before torch 2.13, the CPU)."""
        try:
            return None if self.device == "cpu" else getattr(torch.accelerator, function)()
        except (AttributeError, NotImplementedError, RuntimeError):
            return None

    def _autocast(self):
        return torch.autocast(self.device, self._autocast_type) if self._autocast_type else nullcontext()

    def _put(self, images):
        return torch.as_tensor(images).to(self.device, memory_format=self._format)

    @torch.no_grad()
    def _prove(self, model, pair):
        """The model on its device, once its output for a pair of images was found right there."""
        calibrate(model, pair)
        comparable = self.device != "cpu" and self._autocast_type is None
        expected = model.eval()(pair).numpy() if comparable else None
        model = model.to(self.device, memory_format=self._format)
        with self._autocast():
            got = model.eval()(self._put(pair))
        check.check_output(got.float().cpu().numpy(), expected)
        return model

    @torch.no_grad()
    def _measure_precision(self):
        errors = []
        for work, pair in zip((torch.matmul, functional.conv2d), check.probe_inputs(), strict=True):
            left, right = map(torch.from_numpy, pair)
            with self._autocast():
                got = work(left.to(self.device), right.to(self.device))
            errors.append(check.relative_error(got.double().cpu(), work(left.double(), right.double())))
        return check.name_precision(*errors)
