"""Published sizes of image networks, for the frameworks that build them layer by layer."""

# (bottleneck blocks, not pairs of 3 x 3 convolutions; blocks in each of the four stages): He et al. 2015, table 1.
RESNETS = {
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}
# (expansion, channels, blocks, stride of the first block) of each stage: Sandler et al. 2018, table 2.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
