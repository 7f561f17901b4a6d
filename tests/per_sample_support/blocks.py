"""Blocks and models of other packages that are tried, without weights of their authors.

A block is written as the page shows it, with names of `timm.layers` or `timm.models`. A model of
`transformers` is written by its family: `"Bert"` is `BertModel(BertConfig(…))` of two small layers.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from torch import nn

from tests.per_sample_support.cases import Case, Inputs, numbers, rows

PACKAGES = ("timm", "transformers")
_IMAGES = Inputs(lambda: (rows(8, 6, 6),))
_ROWS = Inputs(lambda: (rows(8),))
_SEQUENCES = Inputs(lambda: (rows(5, 8),))
_GRIDS = Inputs(lambda: (rows(4, 4, 8),))

# by the inputs: blocks of `timm.layers`, or of `timm.models` with the name of a module in front
TIMM: dict[str, tuple[Inputs, list[str]]] = {
    "Rows": (_ROWS, ["Mlp(8)", "GluMlp(8, 12)", "GatedMlp(8)", "SwiGLU(8)", "LayerScale(8)",
                     "DropPath(0.5)", "RmsNorm(8)"]),
    "Sequences": (_SEQUENCES, [
        "Attention(8, 2)", "Attention(8, 2, qk_norm=True, norm_layer=LayerNorm)",
        "DiffAttention(8, 2)", "AttentionRope(8, 2)", "AttentionPoolLatent(8, num_heads=2)",
        "PatchDropout(0.5)", "vision_transformer.Block(8, 2)",
        "vision_transformer.ParallelScalingBlock(8, 2)",
        "vision_transformer.ResPostBlock(8, 2, init_values=0.1)", "mlp_mixer.MixerBlock(8, 5)",
        "mlp_mixer.ResBlock(8, 5)", "mlp_mixer.SpatialGatingBlock(8, 5)",
        "cait.LayerScaleBlock(8, 2)", "eva.EvaBlock(8, 2)",
    ]),
    "Grids": (_GRIDS, [
        "swin_transformer.SwinTransformerBlock(8, (4, 4), num_heads=2, window_size=2)",
        "volo.OutlookAttention(8, 2)", "GlobalResponseNormMlp(8)",
    ]),
    "Images": (_IMAGES, [
        "ConvMlp(8)", "PatchEmbed(6, 2, 8, 8)", "LayerNorm2d(8)", "GroupNorm1(8)",
        "GroupNormAct(8, group_size=4)", "BatchNormAct2d(8)", "BatchNormAct2d(8).eval()",
        "FrozenBatchNormAct2d(8)", "EvoNorm2dB0(8)", "EvoNorm2dS0(8, group_size=4)",
        "FilterResponseNormTlu2d(8)", "SEModule(8)", "EffectiveSEModule(8)", "EcaModule(8)",
        "GlobalContext(8)", "NonLocalAttn(8)", "SplitAttn(8)", "ConvNormAct(8, 8)",
        "ConvNormAct(8, 8, norm_layer=GroupNorm1)", "SeparableConvNormAct(8, 8)",
        "StdConv2d(8, 8, 3)", "ScaledStdConv2d(8, 8, 3)", "MixedConv2d(8, 8, [3, 5])",
        "BlurPool2d(8)", "AttentionPool2d(8, feat_size=6, num_heads=2)",
        "RotAttentionPool2d(8, num_heads=2)", "DropBlock2d(0.5)",
        "MultiQueryAttentionV2(8, num_heads=2)", "MultiQueryAttention2d(8, num_heads=2)",
        "ClassifierHead(8, 4)", "NormMlpClassifierHead(8, 4)", "SimPool2d(8)",
        "resnet.BasicBlock(8, 8)", "resnet.BasicBlock(8, 8, norm_layer=GroupNorm1)",
        "resnet.Bottleneck(8, 2, norm_layer=GroupNorm1)", "convnext.ConvNeXtBlock(8)",
        "densenet.DenseLayer(8, 4, 2)", "metaformer.MetaFormerBlock(8)",
        "maxxvit.MbConvBlock(8, 8)",
    ]),
}  # fmt: skip

_IDS = Inputs(lambda: (numbers(31, 5),), passes_linear=False)
_IDS_AND_IDS = Inputs(
    lambda: (numbers(31, 5), numbers(31, 4)),
    lambda ids, others: (ids, None, others),
    passes_linear=False,
)
_PIXELS = Inputs(lambda: (rows(4, 8, 8),))

# by the inputs: families of `transformers`
TRANSFORMERS: dict[str, tuple[Inputs, list[str]]] = {
    "Numbers of tokens": (_IDS, [
        "Albert", "Bert", "BigBird", "Bloom", "CTRL", "ConvBert", "Deberta", "DebertaV2",
        "DistilBert", "Electra", "Ernie", "FNet", "GPT2", "GPTBigCode", "GPTNeoX", "Gemma",
        "Gemma2", "Gemma3Text", "Glm", "Granite", "Llama", "MPNet", "Mamba", "Mistral", "Mixtral",
        "ModernBert", "Mpt", "Nystromformer", "OPT", "Olmo2", "OpenAIGPT", "Phi", "Phi3", "Qwen2",
        "Qwen2Moe", "Qwen3", "RemBert", "RoFormer", "Roberta", "Rwkv", "SqueezeBert", "StableLm",
        "Starcoder2", "XLMRoberta",
    ]),
    "Two sequences of tokens": (_IDS_AND_IDS, [
        "Bart", "Blenderbot", "LongT5", "MT5", "Marian", "Pegasus", "T5",
    ]),
    "Images": (_PIXELS, [
        "Beit", "CLIPVision", "DeiT", "Dinov2", "SiglipVision", "ViT", "ViTMSN",
    ]),
}  # fmt: skip

# what a configuration gets of these, if it has such a field
SIZES: dict[str, int] = {
    "vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "image_size": 8, "patch_size": 4, "num_channels": 4,
    "max_position_embeddings": 16, "n_positions": 16,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "head_dim": 8, "d_kv": 8, "sliding_window": 4,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim"), 16),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "dff",
         "hidden_dim", "moe_intermediate_size", "shared_expert_intermediate_size"), 20),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads",
         "decoder_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
         "decoder_layers", "num_decoder_layers"), 2),
}  # fmt: skip


class _Names(dict[str, Any]):
    """The names of some modules, looked up as they are needed."""

    def __init__(self, *modules: str) -> None:
        super().__init__()
        self.modules = [importlib.import_module(name) for name in modules]

    def __missing__(self, name: str) -> Any:
        for module in self.modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise KeyError(name)


def _block(text: str) -> nn.Module:
    made: nn.Module = eval(text, {}, _Names("timm.layers", "timm.models"))
    return made


def _model(family: str) -> nn.Module:
    transformers = importlib.import_module("transformers")
    default = getattr(transformers, f"{family}Config")()
    fields = {name: value for name, value in SIZES.items() if hasattr(default, name)}
    config = type(default)(**fields, experts_implementation="eager")
    model: nn.Module = getattr(transformers, f"{family}Model")(config)
    return model


def blocks(package: str) -> Iterator[Case]:
    """Yield the rows of a package."""
    by_inputs, make = {"timm": (TIMM, _block), "transformers": (TRANSFORMERS, _model)}[package]
    for group, (inputs, texts) in by_inputs.items():
        for text in texts:
            yield Case(group, text, partial(make, text), inputs, single=True)


def installed(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    if find_spec(package) is None:
        return None
    return version(package)
