"""The programs. Each uses torch's own names and one library, makes its model from random weights,
and returns tensors to compare.

Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Program = Callable[[], Any]
PROGRAMS: dict[str, tuple[tuple[str, ...], Program]] = {}


def program(*packages: str) -> Callable[[Program], Program]:
    """Register a program that needs ``packages``."""

    def enter(f: Program) -> Program:
        PROGRAMS[f.__name__] = packages, f
        return f

    return enter


def trained(
    model: nn.Module, loss_of: Any, steps: int = 4, optimizer_class: Any = torch.optim.Adam
) -> list[Any]:
    """Losses of some steps, the last gradients and the parameters."""
    optimizer = optimizer_class(model.parameters(), lr=1e-2)
    seen: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return [*seen, *(p.grad for p in model.parameters()), *(p.detach() for p in model.parameters())]


@program("transformers")
def gpt2_trains_and_generates() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50,
            n_positions=32,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    tokens = torch.randint(2, 50, (2, 12))
    seen = trained(model, lambda m: m(tokens, labels=tokens).loss)
    model.eval()
    greedy = model.generate(tokens[:, :4], max_new_tokens=8, do_sample=False, pad_token_id=1)
    torch.manual_seed(3)
    sampled = model.generate(
        tokens[:, :4], max_new_tokens=8, do_sample=True, top_k=10, pad_token_id=1
    )
    return [*seen, greedy, sampled]


@program("transformers")
def bert_classifies() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    model = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, **sizes))
    tokens, labels = torch.randint(0, 50, (4, 10)), torch.tensor([0, 1, 2, 1])
    return trained(model, lambda m: m(tokens, labels=labels).loss)


@program("transformers")
def a_saved_model_is_loaded_and_draws_nothing() -> Any:
    import tempfile

    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = LlamaForCausalLM.from_pretrained(folder)
    after = torch.rand(3)  # loading may have changed the random state
    tokens = torch.randint(0, 50, (2, 8))
    return [after, *trained(loaded, lambda m: m(tokens, labels=tokens).loss)]


@program("peft", "transformers")
def lora_adapts_a_model() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50,
            n_positions=32,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    model = get_peft_model(
        base, LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
    )
    tokens = torch.randint(0, 50, (2, 12))
    return trained(model, lambda m: m(input_ids=tokens, labels=tokens).loss)


@program("gpytorch", "linear_operator")
def an_exact_gaussian_process_is_fitted() -> Any:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    x = torch.linspace(0, 1, 20)
    y = (6 * x).sin() + 0.1 * torch.randn(20)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    seen = trained(model, lambda m: -marginal(m(x), y))
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        posterior = likelihood(model(torch.linspace(0, 1, 7)))
    return [*seen, posterior.mean, posterior.variance]


@program("botorch", "gpytorch", "linear_operator")
def an_acquisition_function_is_maximised() -> Any:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(8, 2, dtype=torch.float64)
    y = -(x - 0.5).pow(2).sum(1, keepdim=True)
    acquisition = LogExpectedImprovement(SingleTaskGP(x, y), best_f=y.max())
    point = torch.rand(1, 1, 2, dtype=torch.float64, requires_grad=True)
    value = acquisition(point)
    (gradient,) = torch.autograd.grad(value.sum(), point)
    return value.detach(), gradient


@program("torchdiffeq")
def a_neural_ode_is_trained_by_its_adjoint() -> Any:
    from torchdiffeq import odeint_adjoint

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, t: Any, y: Any) -> Any:
            return self.net(y**3)

    start, times = torch.tensor([[2.0, 0.0]]), torch.linspace(0, 1, 5)
    return trained(
        Field(), lambda f: odeint_adjoint(f, start, times, method="dopri5").abs().mean(), steps=2
    )


@program("einops")
def patches_are_rearranged() -> Any:
    from einops import rearrange, reduce
    from einops.layers.torch import Rearrange

    images = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 5)
    )
    return trained(
        model,
        lambda m: reduce(rearrange(m(images), "b n d -> (b n) d"), "n d -> d", "max").pow(2).sum(),
    )


@program("torchmetrics")
def metrics_are_counted_and_differentiated() -> Any:
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
    from torchmetrics.image import StructuralSimilarityIndexMeasure

    scores, labels = torch.randn(12, 4), torch.randint(0, 4, (12,))
    counts = []
    for metric in (MulticlassAccuracy(4), MulticlassF1Score(4, average="macro")):
        metric.update(scores[:6], labels[:6])
        metric.update(scores[6:], labels[6:])
        counts.append(metric.compute())
    image = torch.rand(1, 1, 16, 16, requires_grad=True)
    similarity = StructuralSimilarityIndexMeasure(data_range=1.0)(image, torch.rand(1, 1, 16, 16))
    similarity.backward()
    return [*counts, similarity.detach(), image.grad]


@program("pyro")
def a_posterior_is_inferred() -> Any:
    import pyro
    from pyro.distributions import Bernoulli, Beta, constraints

    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    data = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])

    def model(data: Any) -> None:
        fairness = pyro.sample("fairness", Beta(torch.tensor(10.0), torch.tensor(10.0)))
        with pyro.plate("data", len(data)):
            pyro.sample("obs", Bernoulli(fairness), obs=data)

    def guide(data: Any) -> None:
        a = pyro.param("a", torch.tensor(15.0), constraint=constraints.positive)
        b = pyro.param("b", torch.tensor(15.0), constraint=constraints.positive)
        pyro.sample("fairness", Beta(a, b))

    inference = pyro.infer.SVI(
        model, guide, pyro.optim.Adam({"lr": 0.01}), loss=pyro.infer.Trace_ELBO()
    )
    losses = [inference.step(data) for _ in range(20)]
    return torch.tensor(losses), pyro.param("a").detach(), pyro.param("b").detach()


@program("lightning")
def a_trainer_fits_a_module() -> Any:
    import logging

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            self.seen: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            loss = nn.functional.mse_loss(self.net(x), y)
            self.seen.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    model = Module()
    rows = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", gradient_clip_val=0.5, **quiet)
    trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True))
    return [*model.seen, *(p.detach() for p in model.parameters())]


@program("diffusers")
def a_unet_learns_noise() -> Any:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    scheduler = DDPMScheduler(num_train_timesteps=50)
    clean, noise, times = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8), torch.tensor([3, 40])
    noisy = scheduler.add_noise(clean, noise, times)
    # The gradient of an attention's key bias is zero except for rounding (1e-10). Adam would scale
    # that up to whole steps.
    return trained(
        model, lambda m: nn.functional.mse_loss(m(noisy, times).sample, noise), 2, torch.optim.SGD
    )


@program("accelerate")
def an_accelerator_accumulates_gradients() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(4, 1)
    rows = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader
    )
    seen = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        seen.append(loss.detach())
    return [*seen, *(p.detach() for p in model.parameters())]


@program("torch_geometric")
def a_graph_network_is_trained() -> Any:
    from torch_geometric.nn import GATConv, GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(4, 8), GATConv(8, 3, heads=2, concat=False)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.second(self.first(x, edges).relu(), edges)

    x, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    return trained(Net(), lambda m: nn.functional.cross_entropy(m(x, edges), labels))


@program("e3nn", "opt_einsum_fx")
def an_equivariant_product_gives_forces() -> Any:
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("2x0e + 2x1o", "1x0e + 1x1o", "2x0e + 1x1o")
    positions = torch.randn(5, 3, requires_grad=True)
    sphere = o3.spherical_harmonics("1x0e + 1x1o", positions, normalize=True)
    energy = product(torch.randn(5, 8), sphere).pow(2).sum()
    (forces,) = torch.autograd.grad(energy, positions, create_graph=True)
    forces.pow(2).sum().backward()
    return [energy.detach(), forces.detach(), *(p.grad for p in product.parameters())]
