"""`unified-tree sglang-check`: what it says of models, without SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from click.testing import CliRunner, Result

from unified_tree.components.models import MODEL_FACTS
from unified_tree.controllers.cli.commands import app
from unified_tree.controllers.cli.model_check import ModelCheck

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
}
LLAMA = {**COMMON, "model_type": "llama"}
WINDOWED = {
    **COMMON,
    "model_type": "gpt_oss",
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "sliding_window": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
GEMMA = {
    **COMMON,
    "model_type": "gemma3_text",
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "sliding_window": 32,
}
STATES = {
    **COMMON,
    "model_type": "qwen3_next",
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
TOKEN_BYTES = 2 * 2 * 16 * 2
"""Of one layer: keys and values of two heads of 16 elements in bfloat16."""


def check(folder: Path, config: dict[str, Any], *options: object) -> Result:
    (folder / "config.json").write_text(json.dumps(config))
    return CliRunner().invoke(app, ["sglang-check", str(folder), *map(str, options)])


def model(folder: Path, config: dict[str, Any], **given: Any) -> ModelCheck:
    (folder / "config.json").write_text(json.dumps(config))
    return ModelCheck.of(str(folder), **given)


def test_full_attention_fills_the_budget(tmp_path: Path) -> None:
    result = check(tmp_path, LLAMA, "--device-gib", 1, "--host-gib", 2)
    assert result.exit_code == 0, result.output
    tokens = (1 << 30) // (4 * TOKEN_BYTES)
    assert f"full  {tokens:,} tokens" in result.output
    assert f"full  {2 * tokens:,} tokens" in result.output
    assert "Served with --radix-cache-backend unified_tree." in result.output


def test_windows_get_their_share(tmp_path: Path) -> None:
    pages = model(tmp_path, WINDOWED, page_size=16, swa_full_tokens_ratio=0.5).device_pages(1 << 30)
    full = int((1 << 30) / (1.5 * 2 * TOKEN_BYTES * 16))
    assert pages == {"full": full, "swa": full // 2}


def test_states_get_their_share(tmp_path: Path) -> None:
    checked = model(tmp_path, STATES, mamba_full_memory_ratio=1.0)
    sizes = checked.composition.pool_page_bytes()
    assert checked.device_pages(1 << 30) == {"full": (1 << 29) // TOKEN_BYTES, "mamba": (1 << 29) // sizes["mamba"]}


def test_windows_that_sglang_keeps_in_full_cost_every_token(tmp_path: Path) -> None:
    checked = model(tmp_path, GEMMA)
    assert checked.composition.bytes_per_token() == {"full": 4 * TOKEN_BYTES}
    assert "keeps the windows of this model as full attention" in check(tmp_path, GEMMA).output


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        (STATES, ["--eagle"], "EAGLE on models with recurrent states without the extra buffer"),
        (STATES, ["--page-size", 16], "recurrent states without the extra buffer at another page size than 1"),
        (
            {**WINDOWED, "layer_types": ["sliding_attention"] * 4},
            [],
            "models without any full attention",
        ),
    ],
)
def test_what_is_refused_is_said(tmp_path: Path, config: dict[str, Any], options: list[object], reason: str) -> None:
    result = check(tmp_path, config, *options)
    assert result.exit_code == 1
    assert f"refused: --radix-cache-backend unified_tree does not support {reason}." in result.stderr


def test_host_pages_hold_what_is_in_the_slots_of_others(tmp_path: Path) -> None:
    config = {**MODEL_FACTS["deepseek-v3.2"], "num_hidden_layers": 4}
    result = check(tmp_path, config, "--device-gib", 1, "--host-gib", 2)
    assert result.exit_code == 0, result.output
    sizes = {c.name: c.page_bytes for c in model(tmp_path, config).composition.components}
    assert sizes.keys() == {"full", "indexer"}
    assert f"full  {(2 << 30) // sum(sizes.values()):,} tokens" in result.output
    drafted = check(tmp_path, LLAMA, "--eagle", "--device-gib", 1, "--host-gib", 2)
    assert drafted.exit_code == 0
    assert "The KV of a draft is not counted." in drafted.output


def test_the_extra_buffer_allows_pages(tmp_path: Path) -> None:
    assert check(tmp_path, STATES, "--page-size", 16, "--extra-buffer").exit_code == 0


def test_bad_input_ends_in_one_line(tmp_path: Path) -> None:
    result = check(tmp_path, {"model_type": "unheard_of"})
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and "unheard_of" in result.stderr
    result = check(tmp_path, LLAMA, "--host-gib", 1)
    assert result.exit_code == 2 and "--device-gib" in result.stderr


def test_neither_sglang_nor_torch_is_imported() -> None:
    code = (
        "import sys, unified_tree.controllers.cli.model_check as m; "
        "sys.exit(any(name in sys.modules for name in ('sglang', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_is_named_as_for_other_commands() -> None:
    named = CliRunner().invoke(app, ["sglang-check", "qwen3-32b"])
    assert named.exit_code == 0 and "Served with" in named.output
    assert ModelCheck.of("gpt-oss-20b").composition.bytes_per_token() == {"full": 24576.0, "swa": 24576.0}
    wide = ModelCheck.of("gemma-3-27b").composition
    assert [component.name for component in wide.components] == ["full"]
    unknown = CliRunner().invoke(app, ["sglang-check", "no-such-model"])
    assert unknown.exit_code == 2 and "no-such-model" in unknown.output


def test_a_described_model_keeps_what_its_file_says(tmp_path: Path) -> None:
    parts = {"k": ["kv", 2, 16], "v": ["kv", 2, 16]}
    components = [
        {"name": "full", "coverage": "path", "layers": [0], "parts": parts},
        {"name": "swa", "coverage": {"window": 31}, "layers": [1], "parts": parts},
    ]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"name": "mine", "components": components}))
    result = CliRunner().invoke(app, ["sglang-check", str(file)])
    assert result.exit_code == 0, result.output
    assert ModelCheck.of(str(file)).composition.bytes_per_token() == {"full": TOKEN_BYTES, "swa": TOKEN_BYTES}


def test_a_model_of_windows_alone_has_full_attention_in_sglang(tmp_path: Path) -> None:
    checked = model(tmp_path, {**COMMON, "model_type": "mistral", "sliding_window": 32})
    assert checked.composition.bytes_per_token() == {"full": 4 * TOKEN_BYTES}
    assert not checked.served.refusals()
