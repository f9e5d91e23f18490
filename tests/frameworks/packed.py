"""CUDA's kernels for weights of 4 bits, on a CPU: for the tests and the card made of software (tests/card)."""

import torch

SHIFTS = 4 * torch.arange(4)[:, None, None] + 16 * torch.arange(2)  # of a word's numbers: every eighth, then the odd


def pack(halves, tiles):
    """Return numbers, two a byte, as aten's int4mm.cu orders them: (rows / 8, inputs / 128, 32 lanes, 4 words)."""
    numbers = torch.stack([halves >> 4, halves & 15], -1).long()
    numbers = numbers.reshape(len(halves) // tiles, 8, -1, 4, 4, 4, 2)  # 8 rows; inputs: word, eighth, lane, odd
    return (numbers << SHIFTS).sum((4, 6)).permute(0, 2, 1, 4, 3).flatten(2, 3).to(torch.int32)


def multiply(x, packed, group, scale_and_zero):
    """Multiply by weights that pack() has packed."""
    words = packed.unflatten(2, (8, 4)).permute(0, 2, 1, 4, 3)[..., None, :, None]
    numbers = (words >> SHIFTS & 15).reshape(8 * len(packed), -1)
    scale, zero = (each.T.float().repeat_interleave(group, 1) for each in scale_and_zero.unbind(-1))
    return (x.float() @ ((numbers - 8) * scale + zero).T).to(x.dtype)
