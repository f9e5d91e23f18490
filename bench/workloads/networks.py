"""Published sizes of image networks, for the frameworks that build them layer by layer."""

# (bottleneck blocks, not pairs of 3 x 3 convolutions; blocks in each of the four stages): He et al. 2015, table 1.
RESNETS = {
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}
