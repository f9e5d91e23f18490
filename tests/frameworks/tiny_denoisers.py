"""Denoisers of the three classes, as small as they can be: for images of 8 or 64 pixels a side."""

from dataclasses import replace

from diffusion_benchmark import DENOISERS

BLOCKS = {"block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4}
DDPM = BLOCKS | {
    "in_channels": 3,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    "attention_head_dim": 4,
}
SDXL = BLOCKS | {
    "in_channels": 4,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "attention_head_dim": 2,
    "cross_attention_dim": 12,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 34,  # 6 numbers of 4 each, and 10
}
FLUX = {
    "in_channels": 8,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 12,
    "timestep_guidance_channels": 16,
    "axes_dims_rope": [2, 2, 2, 2],
    "guidance_embeds": False,
}
TINY_DENOISERS = {
    "tiny-ddpm": replace(DENOISERS["ddpm-cifar10"], config=DDPM, image_size=8, parameters=18_811),
    "tiny-sdxl": replace(
        DENOISERS["sdxl"],
        config=SDXL,
        conditions={"encoder_hidden_states": [5, 12], "text_embeds": [10], "time_ids": [6]},
        image_size=64,
        parameters=26_476,
    ),
    "tiny-flux": replace(
        DENOISERS["flux.2-klein-4b"],
        config=FLUX,
        conditions={"encoder_hidden_states": [5, 12]},
        image_size=64,
        parameters=15_344,
    ),
}
