"""Diffusion models in PyTorch: the diffusers library's own classes, random weights."""

import torch

from bench.frameworks.pytorch import on_torch_llm

ADDED = ("text_embeds", "time_ids")  # arguments that Stable Diffusion XL takes in a dict of their own


class TorchDenoiser(torch.nn.Module):
    """A denoiser of the diffusers library that takes and returns only tensors, without memory until fill()."""

    def __init__(self, workload):
        super().__init__()
        import diffusers  # takes ten seconds, so only if needed

        sizes = workload.sizes
        with torch.device("meta"):
            self.model = getattr(diffusers, sizes.class_name)(**sizes.config)
        self.names = ["hidden_states" if sizes.takes_tokens else "sample", "timestep", *sizes.conditions]
        if sizes.takes_tokens:
            self.names += ["img_ids", "txt_ids"]

    def fill(self, device, dtype):
        """Allocate random weights."""
        for _ in on_torch_llm.draw_layers(self, device, dtype):
            pass

    def forward(self, *inputs):
        named = dict(zip(self.names, inputs, strict=True))
        if ADDED[0] in named:
            named["added_cond_kwargs"] = {name: named.pop(name) for name in ADDED}
        return self.model(**named, return_dict=False)[0]
