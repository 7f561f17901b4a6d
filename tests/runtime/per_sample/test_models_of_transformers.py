"""Models of Hugging Face as they are, in tiny configurations with random weights, against a loop
with batches of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.per_sample import per_sample

from .reference import compare_projections

transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install .[third-party]"
)
B, T, VOCABULARY = 3, 5, 31
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 8,
}
UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
Batch = dict[str, Tensor]


def gpt2() -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": 8,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    )


def gpt2_checkpointed() -> Any:
    model = gpt2()
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def bert() -> Any:
    config = transformers.BertConfig(
        **SIZES,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SIZES, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0
        )
    )


def vit() -> Any:
    sizes = {
        "image_size": 8,
        "patch_size": 4,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 20,
    }
    config = transformers.ViTConfig(**sizes, **UNDROPPED, num_labels=3)
    return transformers.ViTForImageClassification(config)


def t5() -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 20,
        "num_layers": 1,
        "num_heads": 2,
    }
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, dropout_rate=0.0, pad_token_id=0, decoder_start_token_id=0)
    )


def lora() -> Any:
    peft: Any = pytest.importorskip(
        "peft", reason="peft is not installed: pip install .[third-party]"
    )
    return peft.get_peft_model(
        gpt2(),
        peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True),
    )


def words() -> Batch:
    ids = torch.randint(1, VOCABULARY, (B, T))
    return {"input_ids": ids, "labels": ids}


def masked() -> Batch:
    keep = torch.ones(B, T, dtype=torch.long)
    keep[1, 4:] = 0
    return words() | {"attention_mask": keep}


def classified() -> Batch:
    return masked() | {"labels": torch.tensor([0, 2, 1])}


def images() -> Batch:
    return {
        "pixel_values": torch.randn(B, 3, 8, 8, dtype=torch.float64),
        "labels": torch.tensor([0, 2, 1]),
    }


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Batch]]] = {
    "GPT-2": (gpt2, words),
    "GPT-2 with a mask": (gpt2, masked),
    "GPT-2 with checkpoints": (gpt2_checkpointed, words),
    "BERT": (bert, classified),
    "Llama, grouped queries": (llama, words),
    "Llama with a mask": (llama, masked),
    "ViT": (vit, images),
    "T5": (t5, masked),
    "LoRA by peft": (lora, words),
}


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """In double precision. The loss of the models themselves is computed in float32."""
    scores = model(**batch).logits
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), batch["labels"].reshape(-1))


def loss_of_the_model(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("loss_of", [own_loss, loss_of_the_model], ids=["own loss", "loss"])
def test_a_model_has_the_gradients_of_the_loop(
    name: str, loss_of: Callable[[nn.Module, Batch], Tensor]
) -> None:
    # whose norms are computed in float32
    in_double = loss_of is own_loss and not name.startswith(("Llama", "T5"))
    tolerance = 1e-10 if in_double else 1e-6
    make, given = MODELS[name]
    torch.manual_seed(0)
    model, batch = make().double(), given()
    params = {key: p for key, p in model.named_parameters() if p.requires_grad}
    each = []
    for b in range(B):
        loss = loss_of(model, {key: x[b : b + 1] for key, x in batch.items()})
        found = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        each.append(
            [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(params.values(), found, strict=True)
            ]
        )
    expected = {
        key: torch.stack(gs) for key, gs in zip(params, zip(*each, strict=True), strict=True)
    }
    with per_sample(params) as grads:
        marked = {key: grads.batch(x) for key, x in batch.items()}
        loss_of(model, marked).backward()
    for key, g in grads.materialize().items():
        torch.testing.assert_close(g, expected[key], rtol=tolerance, atol=tolerance, msg=key)
    norms = torch.cat([g.flatten(1) for g in expected.values()], 1).norm(dim=1)
    torch.testing.assert_close(grads.norms(), norms, rtol=10 * tolerance, atol=tolerance)
    bound = float(norms.median())
    for key, g in grads.clipped_sum(bound).items():
        torch.testing.assert_close(
            g,
            torch.tensordot(bound / norms.clamp_min(bound), expected[key], 1),
            rtol=tolerance,
            atol=10 * tolerance,
        )
    compare_projections(grads, expected, rtol=10 * tolerance, atol=10 * tolerance)
