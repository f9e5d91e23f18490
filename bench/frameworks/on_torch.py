"""All the PyTorch there is here. CUDA and MPS take one path, torch.accelerator, so that a run on either
proves the lines of both."""

import difflib
import functools
import gc
import itertools
import os
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
import torchvision
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from bench.frameworks import Device, describe_failure
from bench.machine import meters
from bench.settings import SettingError
from bench.timing import check
from bench.timing.measure import MeasurementError
from bench.work import data
from bench.work.workload import ENCODERS, LEARNING_RATES, mlp_widths

AUTOCAST = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}
WHOLE_MODEL = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
MEMORY_FORMATS = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
PREFETCH = 2  # batches that a worker may hold ready, DataLoader's own default


def find_device(settings):
    """The Device to run on; raises SettingError where operators would silently move to the CPU."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    kind = choose_device(settings.use_gpu)
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
    """A session of this file, checked and on its device; raises SettingError or MeasurementError."""
    if workload.name not in BUILDERS and workload.model not in OPERATORS:
        raise SettingError(f"FRAMEWORK='torch' cannot run {workload.name}: it has {', '.join(BUILDERS)}")
    if workload.name == "image":
        refuse_unknown_model(workload.model)
    set_float32("tf32" if settings.precision == "tf32" else "ieee")
    torch.manual_seed(settings.seed)
    place = Place(settings)
    if workload.model in OPERATORS:
        return Operator(place, workload)
    if scope == "input":
        return InputSession(place, JpegStream(workload, settings, phase))
    try:
        model = place.prove(BUILDERS[workload.name](workload), workload)
    except (AssertionError, RuntimeError, ValueError) as error:
        if settings.image_size is None or describe_failure(error)[0] != "failed":
            raise
        raise SettingError(
            f"IMAGE_SIZE={str(settings.image_size)!r} does not suit {workload.model} ({error}): "
            "leave it out for the model's own size"
        ) from None
    if scope == "epoch":
        return Epochs(place, model, workload)
    streams = scope == "end_to_end"
    batches = JpegStream(workload, settings, phase) if streams else resident_batches(place, workload)
    return STEPS[phase](place, model, batches)


def set_float32(precision):
    """What float32 may mean inside, "ieee" or "tf32", in matrix products and convolutions alike.

    Each setting by name: cuDNN's convolutions start at tf32 whatever the setting above them says. Mixing
    these with the older allow_tf32 raises, so nothing here touches that.
    """
    backends = torch.backends
    for room in (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        room.fp32_precision = precision
    # Autotuning happens on the first step of a shape, which is never inside a window.
    backends.cudnn.benchmark = True


def list_models():
    """The names of torchvision's classification models."""
    return torchvision.models.list_models(module=torchvision.models)


def refuse_unknown_model(name):
    """Raise SettingError, with the nearest names, for a model that torchvision does not have."""
    known = list_models()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3) or known[:3]
        raise SettingError(f"MODEL={name!r} is not in torchvision: did you mean {', '.join(near)}?")


def build_image(workload):
    """A torchvision classification model with random weights and without auxiliary heads."""
    extra = {"aux_logits": False, "init_weights": True} if workload.model in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(workload.model, weights=None, num_classes=workload.classes, **extra)
    for layer in model.modules():
        # A vision transformer's head starts at zero: every image would give the same output.
        if isinstance(layer, torch.nn.Linear) and not layer.weight.any():
            torch.nn.init.trunc_normal_(layer.weight, std=0.02)
    return model


def build_mlp(workload):
    """Dense layers, Glorot-uniform with zero biases, with ReLU between them."""
    layers = []
    for inputs, outputs in pairwise((*workload.item_shape, *mlp_widths(workload.model), workload.classes)):
        layer = torch.nn.Linear(inputs, outputs)
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def build_transformer(workload):
    """The encoder and classifier of the transformers library, attention by scaled_dot_product_attention, no mask."""
    import transformers  # ten seconds, which only those who need it should pay

    encoder = ENCODERS[workload.model]
    sizes = {"vocab_size": encoder.vocabulary, "max_position_embeddings": encoder.positions}
    sizes |= {"num_labels": workload.classes, "attn_implementation": "sdpa"}
    if not encoder.is_bert:
        inside = {"n_layers": encoder.layers, "dim": encoder.width, "n_heads": encoder.heads}
        config = transformers.DistilBertConfig(hidden_dim=encoder.inner, **inside, **sizes)
        return Logits(transformers.DistilBertForSequenceClassification(config))
    inside = {"num_hidden_layers": encoder.layers, "hidden_size": encoder.width}
    inside |= {"num_attention_heads": encoder.heads, "intermediate_size": encoder.inner}
    return Logits(transformers.BertForSequenceClassification(transformers.BertConfig(**inside, **sizes)))


class Logits(torch.nn.Module):
    """A network of the transformers library, whose output is a record, as one whose output is a tensor."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, ids):
        return self.network(input_ids=ids).logits


BUILDERS = {"image": build_image, "mlp": build_mlp, "transformer": build_transformer}


def copy(x, out):
    return out.copy_(x)


def add(x, y, out):
    return torch.add(x, y, out=out)


def multiply_add(x, y, out):
    return torch.add(y, x, alpha=2.0, out=out)


# The calls that users write. What has an `out` moves as many bytes as its operands have.
OPERATORS = {
    "matmul": torch.mm,
    "conv1x1": functional.conv2d,
    "conv3x3": functools.partial(functional.conv2d, padding=1),
    "copy": copy,
    "add": add,
    "multiply-add": multiply_add,
}


def count_parameters(model):
    """The trainable ones."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


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


class Place:
    """Where and how numbers are computed: device, precision, memory format; and the proof that they are right."""

    def __init__(self, settings):
        self.device = choose_device(settings.use_gpu)
        self.seed = settings.seed
        self.optimizer = settings.optimizer
        self.precision = settings.precision
        self.compile = settings.compile
        self.dtype = WHOLE_MODEL.get(settings.precision, torch.float32)
        self.format = MEMORY_FORMATS.get(settings.memory_format, torch.contiguous_format)
        self.memory("reset_peak_memory_stats")
        self.used_before = self.memory("memory_allocated") or 0
        self.reserved_before = self.memory("memory_reserved") or 0
        self.measured_precision = measure_precision(self.device, self.precision)
        if settings.precision == "tf32" and "tf32" not in self.measured_precision:
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in float32")

    def autocast(self):
        return autocast(self.device, self.precision)

    def put(self, inputs, labels):
        """A batch on the device. CUDA copies in the background; on MPS that is not known to be safe."""
        early = self.device == "cuda"
        inputs, labels = torch.as_tensor(inputs), torch.as_tensor(labels)
        dtype = self.dtype if inputs.is_floating_point() else inputs.dtype
        inputs = inputs.to(self.device, dtype, memory_format=self.format, non_blocking=early)
        return inputs, labels.to(self.device, non_blocking=early)

    def put_operand(self, array):
        """An array on the device, images and kernels of convolutions in channels_last."""
        format = torch.channels_last if array.ndim == 4 else torch.contiguous_format
        return torch.as_tensor(array).to(self.device, self.dtype, memory_format=format)

    @torch.no_grad()
    def prove(self, model, workload):
        """The model on its device, once it is the right one and its output for a pair of images is right there."""
        check.check_parameters(count_parameters(model), workload.parameters)
        (pair, labels), *_ = workload.batches(2, self.seed)
        calibrate(model, torch.from_numpy(pair))
        comparable = self.device != "cpu" and self.precision == "float32"
        expected = model.eval()(torch.from_numpy(pair)).numpy() if comparable else None
        model = model.to(self.device, self.dtype, memory_format=self.format)
        with self.autocast():
            got = model.eval()(self.put(pair, labels)[0])
        check.check_output(got.float().cpu().numpy(), expected)
        self.memory("reset_peak_memory_stats")
        return model

    def memory(self, function):
        """Call a memory function of the accelerator; None where it has none (the CPU, MPS before torch 2.13)."""
        try:
            return None if self.device == "cpu" else getattr(torch.accelerator, function)()
        except (AttributeError, NotImplementedError, RuntimeError):
            return None


def autocast(device, precision):
    kind = AUTOCAST.get(precision)
    return torch.autocast(device, kind) if kind else nullcontext()


@functools.cache  # a CPU may need seconds for it in float16
@torch.no_grad()
def measure_precision(device, precision):
    """What products in a precision are computed in on a device, as bench/timing/check.py names it."""
    dtype, errors = WHOLE_MODEL.get(precision, torch.float32), []
    for work, pair in zip((torch.matmul, functional.conv2d), check.probe_inputs(), strict=True):
        left, right = map(torch.from_numpy, pair)
        with autocast(device, precision):
            got = work(left.to(device, dtype), right.to(device, dtype))
        errors.append(check.relative_error(got.cpu().double(), work(left.double(), right.double())))
    return check.name_precision(*errors, is_float16=got.dtype == torch.float16)


def resident_batches(place, workload):
    """Batches that stay on the device and take turns, without end."""
    return itertools.cycle([place.put(*batch) for batch in workload.batches(workload.items_per_step, place.seed)])


class JpegStream:
    """Batches out of JPEG files, decoded and transformed in worker processes, without end."""

    def __init__(self, workload, settings, phase, context=None):
        paths = data.jpeg_files(settings.seed)
        self.num_workers = settings.num_workers
        self.queue_steps = self.num_workers * (PREFETCH + 1)  # ready, and one in each worker's hands
        loader = DataLoader(
            JpegDataset(paths, workload.item_shape[-1], workload.classes, phase == "training"),
            batch_size=workload.items_per_step,
            sampler=EndlessSampler(len(paths), settings.seed),
            num_workers=self.num_workers,
            prefetch_factor=PREFETCH if self.num_workers else None,
            pin_memory=choose_device(settings.use_gpu) == "cuda",
            multiprocessing_context=context if self.num_workers else None,
        )
        self._batches = iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._batches)

    def close(self):
        self._batches = None  # ends the workers


class EndlessSampler(Sampler):
    """Seeded random indices without epochs: at an epoch's end the workers' queues would run empty."""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.size, generator=generator).tolist()


class JpegDataset(Dataset):
    """Decodes and transforms as is usual for ImageNet; plain values, so that any start method can carry it."""

    def __init__(self, paths, size, classes, training):
        self.paths, self.classes = paths, classes
        cut = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        whole = [v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)]
        as_floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(data.IMAGENET_MEAN, data.IMAGENET_STD)]
        self.transform = v2.Compose((cut if training else whole) + as_floats)

    def __getitem__(self, index):
        image = decode_jpeg(read_file(self.paths[index]), mode=ImageReadMode.RGB)
        return self.transform(image), index % self.classes


class TorchSession:
    """What all sessions here have in common. The contract is in bench/frameworks/__init__.py."""

    prepare = parameters = measured_precision = None

    def __init__(self, place, batches):
        self.place, self.batches = place, batches
        self.queue_steps = getattr(batches, "queue_steps", None)
        self.num_workers = getattr(batches, "num_workers", None)

    def next_batch(self, items=None):
        inputs, labels = next(self.batches)
        if self.queue_steps is not None:
            inputs, labels = self.place.put(inputs, labels)
        return (inputs, labels) if items is None else (inputs[:items], labels[:items])

    def synchronize(self):
        if self.place.device != "cpu":
            torch.accelerator.synchronize()

    def settle(self):
        self.place.memory("empty_cache")  # cuDNN tried its algorithms in it
        self.place.memory("reset_peak_memory_stats")

    def probe(self):
        # A norm, because one element may be a dead unit's, and a sum over classes has no gradient.
        return torch.linalg.vector_norm(self.watched.detach().float()).item()

    def peak_memory_bytes(self):
        peak = self.place.memory("max_memory_allocated")
        return None if peak is None else peak - self.place.used_before

    def reserved_memory_bytes(self):
        most = self.place.memory("max_memory_reserved")
        return None if most is None else most - self.place.reserved_before

    def close(self):
        if self.queue_steps is not None:
            self.batches.close()
        place = self.place
        vars(self).clear()  # whatever holds memory
        if place.compile:
            torch._dynamo.reset()  # from eight models on it would no longer compile, and not say so
            gc.collect()  # what it compiled for training holds the weights in a cycle
        place.memory("empty_cache")


class InputSession(TorchSession):
    """A step prepares one batch and copies it to the device; there is no model."""

    def step(self, items=None):
        images, _ = self.next_batch(items)
        # A few values: reading all of a batch that has just been mapped would take longer than reading it again.
        self.watched = images[-1, -1, -1]


class Operator(TorchSession):
    """A step is one operator on the next operands."""

    def __init__(self, place, workload):
        sets = workload.batches(workload.items_per_step, place.seed)
        super().__init__(place, itertools.cycle([[place.put_operand(each) for each in operands] for operands in sets]))
        self.measured_precision, self.work = place.measured_precision, OPERATORS[workload.model]
        indices, expected = workload.samples(sets[0])
        got = self.work(*next(self.batches))[tuple(torch.from_numpy(each).to(place.device) for each in indices)]
        check.check_samples(got.cpu().double().numpy(), expected, place.measured_precision)

    @torch.inference_mode()
    def step(self, items=None):
        self.output = None  # a CPU's allocator then takes the same memory again, in place of asking for new pages
        self.output = self.work(*next(self.batches))

    @property
    def watched(self):
        return self.output[-1, -1] if self.output.ndim > 2 else self.output[-1]


class Inference(TorchSession):
    """A step is one forward pass without gradients."""

    training = False

    def __init__(self, place, model, batches):
        super().__init__(place, batches)
        self.parameters = count_parameters(model)
        self.measured_precision = place.measured_precision
        model.train(self.training)
        self.eager = model
        self.model = torch.compile(model, dynamic=False) if place.compile else model

    def settle(self):
        if self.place.compile and self.place.precision in ("float32", "float64"):
            self.prove_compiled()
            meters.reset_process_peak()  # the uncompiled network takes more
        super().settle()

    def prove_compiled(self):
        """Raise MeasurementError unless what was compiled gives what the network itself gives, for one batch."""
        inputs, _ = self.next_batch()
        models = [self.model, self.eager, self.eager][: 3 if self.training else 2]
        with torch.inference_mode(not self.training):
            check.check_compiled(*(model(inputs).detach().cpu().numpy() for model in models))

    @torch.inference_mode()
    def step(self, items=None):
        inputs, _ = self.next_batch(items)
        with self.place.autocast():
            self.watched = self.model(inputs)

    def trace_count(self):
        # Importing it takes a second, which only those who compile should pay.
        return torch._dynamo.utils.counters["stats"]["unique_graphs"] if self.place.compile else 0


class Training(Inference):
    """A step is forward, backward and the optimizer."""

    training = True

    def __init__(self, place, model, batches):
        super().__init__(place, model, batches)
        # Fused: one kernel for all weights, where the loop over them would be what is measured; and without it
        # the gradient scaler reads a scalar back in every step.
        uses_scaler = place.precision == "mixed_float16"
        # MPS had no fused SGD with a scaler before torch 2.13.
        fused = not (uses_scaler and place.device == "mps")
        rate = LEARNING_RATES[place.optimizer]
        self.optimizer = OPTIMIZERS[place.optimizer](model.parameters(), lr=rate, fused=fused)
        # The usual first scale of 65,536 overflows until it has been halved often enough, and skips those updates.
        self.scaler = torch.amp.GradScaler(place.device, init_scale=256, enabled=uses_scaler)
        self.watched = self.last_weight = list(model.parameters())[-1]

    def step(self, items=None):
        self.forward(items)
        self.backward()
        self.update()

    def forward(self, items=None):
        inputs, labels = self.next_batch(items)
        self.loss = None  # with it goes the last step's graph, before the next one is built
        self.optimizer.zero_grad(set_to_none=True)
        with self.place.autocast():
            self.loss = functional.cross_entropy(self.model(inputs), labels)

    def backward(self):
        self.scaler.scale(self.loss).backward()

    def update(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Epochs(Training):
    """Whole passes over the training data, which lie on the device; a batch is gathered there."""

    def __init__(self, place, model, workload):
        super().__init__(place, model, None)
        train_inputs, train_labels, *test = workload.dataset()
        self.train, self.test = place.put(train_inputs, train_labels), place.put(*test)
        self.batch_size = workload.items_per_step
        self._warm_up()

    def _warm_up(self):
        """Run both shapes of batches, the last one is smaller, and take back what they changed."""
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        optimizer, scaler = self.optimizer.state_dict(), self.scaler.state_dict()
        count = len(self.train[0])
        self.train_epoch(np.arange(min(count, self.batch_size + (count % self.batch_size or self.batch_size))))
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer)
        self.scaler.load_state_dict(scaler)

    def train_epoch(self, order):
        inputs, labels = self.train
        batches = torch.as_tensor(order, device=self.place.device).split(self.batch_size)
        self.batches = ((inputs[some], labels[some]) for some in batches)
        self._losses = []
        for _ in batches:
            self.step()
            self._losses.append(self.loss.detach())

    def losses(self):
        return torch.stack(self._losses).tolist()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        with self.place.autocast():
            logits = torch.cat([self.model(some) for some in self.test[0].split(1000)])
        self.model.train()
        return (logits.argmax(1) == self.test[1]).float().mean().item()


class Forward(Training):
    """The forward pass of training alone, gradients' records included."""

    def step(self, items=None):
        self.forward(items)
        self.watched = self.loss.detach()


class Backward(Training):
    """The backward pass alone."""

    def prepare(self):
        self.forward()

    def step(self, items=None):
        self.backward()
        self.watched = self.last_weight.grad


class Optimizer(Training):
    """The weights' update alone."""

    def prepare(self):
        self.forward()
        self.backward()

    def step(self, items=None):
        self.update()


STEPS = {
    "inference": Inference,
    "training": Training,
    "forward": Forward,
    "backward": Backward,
    "optimizer": Optimizer,
}
