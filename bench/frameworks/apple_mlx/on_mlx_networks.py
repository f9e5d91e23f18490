"""Networks in MLX layers: sizes, initial weights and dropout as in torchvision and the transformers library.

Weights have the order of PyTorch's, in which the tests copy them.
"""

import math
from itertools import pairwise

import mlx.core as mx
from mlx import nn

from bench.workloads.data import CLASSES
from bench.workloads.workload import RESNETS, find_model

TABLES = ("words", "positions", "types")  # the embeddings of an encoder


def build_image(workload):
    """Build one of torchvision's ResNets; its images are channels last."""
    return ResNet(*RESNETS[find_model(workload.model, RESNETS)], CLASSES)


def convolution(inputs, outputs, size, stride=1):
    """Build a convolution that keeps the image size but for its stride, without a bias, He-normal by its outputs."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    layer.weight = math.sqrt(2 / (outputs * size * size)) * mx.random.normal(layer.weight.shape)
    return layer


class ResNet(nn.Module):
    """ResNet v1.5: the stride is in the 3 x 3 convolution."""

    def __init__(self, is_bottleneck, stages, classes):
        super().__init__()
        self.conv1 = convolution(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm(64)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        for stage, count in enumerate(stages):
            blocks = []
            filters = 64 * 2**stage
            for block in range(count):
                blocks.append(Block(channels, filters, 2 if stage and not block else 1, is_bottleneck))
                channels = 4 * filters if is_bottleneck else filters
            self[f"layer{stage + 1}"] = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def __call__(self, x):
        x = self.pool(nn.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self[f"layer{stage}"](x)
        return self.fc(x.mean((1, 2)))


class Block(nn.Module):
    """A residual block of two or, as a bottleneck, three convolutions."""

    def __init__(self, inputs, filters, stride, is_bottleneck):
        super().__init__()
        sizes = ((filters, 3, stride), (filters, 3, 1))
        if is_bottleneck:
            sizes = ((filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1))
        self.count = len(sizes)
        width = inputs
        for i, (outputs, size, step) in enumerate(sizes, start=1):
            self[f"conv{i}"] = convolution(width, outputs, size, step)
            self[f"bn{i}"] = nn.BatchNorm(outputs)
            width = outputs
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(convolution(inputs, width, 1, stride), nn.BatchNorm(width))

    def __call__(self, x):
        short = self.downsample(x) if "downsample" in self else x
        for i in range(1, self.count + 1):
            x = self[f"bn{i}"](self[f"conv{i}"](x))
            x = nn.relu(x if i < self.count else x + short)
        return x


def normal_dense(inputs, outputs):
    """Build a dense layer with normal weights and zero biases."""
    layer = nn.Linear(inputs, outputs)
    layer.weight = 0.02 * mx.random.normal(layer.weight.shape)
    layer.bias = mx.zeros(outputs)
    return layer


def build_mlp(workload):
    """Build dense layers, Glorot-uniform with zero biases, with ReLU between them."""
    layers = []
    for inputs, outputs in pairwise(workload.sizes):
        layer = nn.Linear(inputs, outputs)
        layer.weight = nn.init.glorot_uniform()(layer.weight, 1.0)
        layer.bias = mx.zeros(outputs)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Classifier(nn.Module):
    """An encoder of the sizes in `encoder`, with a classifier on the first token."""

    def __init__(self, encoder):
        super().__init__()
        width = encoder.hidden_size
        counts = encoder.vocab_size, encoder.max_position_embeddings, encoder.token_types
        for name, count in zip(TABLES, counts, strict=True):
            if count:
                self[name] = nn.Embedding(count, width)
                self[name].weight = 0.02 * mx.random.normal((count, width))
        self.norm = nn.LayerNorm(width, encoder.norm_epsilon)
        self.dropout = nn.Dropout(encoder.dropout)
        self.layers = [EncoderLayer(encoder) for _ in range(encoder.num_layers)]
        self.pooler = normal_dense(width, width)
        self.classifier = normal_dense(width, encoder.labels)
        self.last_dropout = nn.Dropout(encoder.dropout if encoder.is_bert else 0.2)

    def __call__(self, ids):
        x = self.words(ids) + self.positions(mx.arange(ids.shape[1]))
        is_bert = "types" in self
        x = self.dropout(self.norm(x + self.types(mx.zeros_like(ids)) if is_bert else x))
        for layer in self.layers:
            x = layer(x)
        first = self.pooler(x[:, 0])
        return self.classifier(self.last_dropout(mx.tanh(first) if is_bert else nn.relu(first)))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward part; each has a residual connection and a normalisation after it."""

    def __init__(self, encoder):
        super().__init__()
        width = encoder.hidden_size
        inner = encoder.intermediate_size
        self.num_heads = encoder.num_heads
        self.is_bert = encoder.is_bert
        self.query, self.key, self.value, self.output = (normal_dense(width, width) for _ in range(4))
        self.norm1 = nn.LayerNorm(width, encoder.norm_epsilon)
        self.lin1 = normal_dense(width, inner)
        self.lin2 = normal_dense(inner, width)
        self.norm2 = nn.LayerNorm(width, encoder.norm_epsilon)
        self.dropout = nn.Dropout(encoder.dropout)

    def __call__(self, x):
        batch, length, _ = x.shape
        projected = (part(x) for part in (self.query, self.key, self.value))
        query, key, value = (each.reshape(batch, length, self.num_heads, -1).swapaxes(1, 2) for each in projected)
        scale = query.shape[-1] ** -0.5
        if self.training:  # MLX's fused attention has no dropout, which PyTorch's has
            attended = self.dropout(mx.softmax((scale * query) @ key.swapaxes(2, 3), axis=-1)) @ value
        else:
            attended = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale)
        attended = self.output(attended.swapaxes(1, 2).reshape(x.shape))
        x = self.norm1(x + (self.dropout(attended) if self.is_bert else attended))
        return self.norm2(x + self.dropout(self.lin2(nn.gelu(self.lin1(x)))))


def calibrate(module, inputs):
    """Give each BatchNorm the mean 0 and one variance; calibrate() of on_torch.py says why."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm)]
    if not norms:  # the weights of a language model get their memory later, in their own type
        return
    for norm in norms:
        norm.momentum = 1.0
    module.train()(*inputs)
    for norm in norms:
        norm.momentum = 0.1  # as in PyTorch
        norm.running_var = mx.full(norm.running_var.shape, mx.mean(norm.running_var + norm.running_mean**2))
        norm.running_mean = mx.zeros_like(norm.running_mean)
    mx.eval(module.parameters())


BUILDERS = {"image": build_image, "mlp": build_mlp, "transformer": lambda workload: Classifier(workload.sizes)}
