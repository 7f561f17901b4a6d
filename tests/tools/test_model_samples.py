"""What a model calls of torch becomes rows, each once, with the models that call it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from gen.language.validate import load
from tools.model_samples.__main__ import main

MODELS = """
import sys
import torch

x = torch.randn(2, 3, requires_grad=True)
y = torch.nn.functional.gelu(x)
if sys.argv[1] == "bert":
    y = torch.nn.functional.softmax(torch.nn.functional.gelu(y[0]), -1)
torch.nn.functional.dropout(y).sum().backward()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "train.py").write_text(MODELS)
    out = folder / "models.yaml"
    command = f"{sys.executable} {folder / 'train.py'}"
    assert main(["--out", str(out), "--models", "vit", "bert", "--command", command]) == 0
    return out


def test_a_function_of_two_models_is_one_row_with_a_sample_of_each_kind(written: Path) -> None:
    text = written.read_text()
    assert "# 3 calls, as in vit, bert\n      - op: models.nn.functional.gelu\n" in text
    rows = {row["op"]: row for row in yaml.safe_load(text)["families"]["models"]["ops"]}
    shapes = [sample["args"][0]["shape"] for sample in rows["models.nn.functional.gelu"]["samples"]]
    assert shapes == [[2, 3], [3]]
    assert rows["models.nn.functional.softmax"]["call"] == "torch.nn.functional.softmax"


def test_backward_kernels_and_random_functions_have_no_row(written: Path) -> None:
    text = written.read_text()
    assert "backward" not in text.partition("    ops:\n")[2]
    assert "dropout" not in text


def test_the_file_can_be_included(written: Path) -> None:
    matrix = written.with_name("matrix.yaml")
    matrix.write_text(
        "version: 1\ninclude: models.yaml\n"
        "targets: {default: torch, names: [torch]}\n"
        "dtypes: {real: [float32, float64]}\ndevices: {cpu: {}}\n"
        "tiers: {smoke: {}, default: {}, full: {}}\n"
    )
    assert set(load(matrix).matrix.families) == {"models"}
