"""Train one small model of timm or transformers for one step, without any weights.

    python -m tools.model_samples.models vit      # one model; without a name: all of them

The models have one block, few channels and small images. What they call of torch, and in which
layouts, is what the large ones call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

__all__ = ["MODELS", "main"]

IMAGES = 2
WORDS = (2, 9)
VOCABULARY = 64


def _classifier(name: str, size: int = 64, **arguments: object) -> None:
    """Train a classifier of images of timm."""
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10, **arguments).train()
    model(torch.randn(IMAGES, 3, size, size)).sum().backward()


def _language(name: str, **more: Any) -> None:
    """Train a language model of transformers on sentences of random words."""
    import transformers

    model_class = getattr(transformers, name)
    usual = {
        "hidden_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }
    words = torch.randint(3, VOCABULARY, WORDS)
    model = model_class(model_class.config_class(**(usual | more))).train()
    model(words, labels=words).loss.backward()


def _hearing() -> None:
    """Train the encoder of sounds of wav2vec 2."""
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
    )
    transformers.Wav2Vec2Model(config).train()(torch.randn(2, 400))[0].sum().backward()


def _vit_like(name: str, size: int, depth: int = 1) -> Callable[[], None]:
    """Return a transformer of images with few blocks."""
    return partial(_classifier, name, size, img_size=size, depth=depth)


MODELS: dict[str, Callable[[], None]] = {
    "vit": _vit_like("vit_tiny_patch16_224", 32),
    "eva": _vit_like("eva02_tiny_patch14_224", 28),
    "cait": _vit_like("cait_xxs24_224", 32),
    "swin": partial(
        _classifier, "swin_tiny_patch4_window7_224", 56, img_size=56, depths=(1, 1, 1, 1)
    ),
    "xcit": partial(_classifier, "xcit_nano_12_p8_224", depth=1),
    "levit": partial(_classifier, "levit_128s", img_size=64),
    "coatnet": partial(_classifier, "coatnet_nano_rw_224", img_size=64),
    "resnet": partial(_classifier, "resnet10t"),
    "convnext": partial(_classifier, "convnext_atto", depths=(1, 1, 1, 1)),
    "mobilenet": partial(_classifier, "mobilenetv3_small_050"),
    "edgenext": partial(_classifier, "edgenext_xx_small"),
    "densenet": partial(_classifier, "densenet121", block_config=(2, 2, 2, 2)),
    "bert": partial(_language, "BertForMaskedLM"),
    "gpt2": partial(_language, "GPT2LMHeadModel", n_embd=48, n_layer=1, n_head=4, n_positions=32),
    "llama": partial(_language, "LlamaForCausalLM", num_key_value_heads=2),
    "mistral": partial(_language, "MistralForCausalLM", num_key_value_heads=2, sliding_window=4),
    "mixtral": partial(_language, "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4),
    "t5": partial(
        _language,
        "T5ForConditionalGeneration",
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=1,
        num_heads=4,
    ),
    "deberta": partial(
        _language, "DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "mamba": partial(_language, "MambaForCausalLM", state_size=4),
    "bloom": partial(_language, "BloomForCausalLM", n_layer=1, n_head=4),
    "wav2vec2": _hearing,
}
"""Each model, by the name of its kind."""


def main(arguments: list[str]) -> None:
    """Train the models of these names, or all."""
    for name in arguments or MODELS:
        torch.manual_seed(0)
        MODELS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
