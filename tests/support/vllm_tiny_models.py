"""Random models of a few layers on disk, one for each kind of cache group: Llama, Gemma 3 and Qwen3-Next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
WINDOW_TOKENS = 34
"""One more than a block and the query, so that a window read one token short misses a whole block."""
IMAGE_TOKEN = 3
"""Of the prompts of LLaVA; there it stands for an image."""
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # so that a wrong key changes the output
}


def save_llama(path: Path) -> None:
    """Two layers of full attention, with a head for each of two workers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(**{**COMMON, "num_key_value_heads": 2}, num_hidden_layers=2)
    LlamaForCausalLM(config).save_pretrained(path)


def save_gemma3(path: Path) -> None:
    """Six layers, of which every third has full attention and the others a window."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(2)
    config = Gemma3TextConfig(
        **COMMON, num_hidden_layers=6, sliding_window=WINDOW_TOKENS, query_pre_attn_scalar=64,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    Gemma3ForCausalLM(config).save_pretrained(path)


def save_qwen3_next(path: Path) -> None:
    """Four layers, of which three have recurrent states."""
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    torch.manual_seed(3)
    config = Qwen3NextConfig(
        **COMMON, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
        shared_expert_intermediate_size=64, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=64,
        linear_value_head_dim=64, linear_conv_kernel_dim=4,
    )  # fmt: skip
    Qwen3NextForCausalLM(config).save_pretrained(path)  # vLLM loads it in bfloat16


def save_adapter(path: Path, seed: int) -> None:
    """A LoRA of rank 8 for the Llama, strong enough to change its outputs."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(2):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            for part, shape in (("A", (8, 128)), ("B", (128, 8))):
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"
                weights[key] = torch.randn(shape, generator=generator) * 0.2
    path.mkdir()
    save_file(weights, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "llama"}
    adapted = {**config, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(adapted))


def save_draft(path: Path) -> None:
    """A draft model of the Llama: its weights with noise, so that it guesses some tokens and fails at others."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_key_value_heads": 2}, num_hidden_layers=2))
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.02)
    model.save_pretrained(path)


def save_eagle(path: Path) -> None:
    """An EAGLE head of one layer for the Llama."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(4)
    config = LlamaConfig(**{**COMMON, "num_key_value_heads": 2}, num_hidden_layers=1, architectures=["LlamaForCausalLM"])
    layers = {
        name.removeprefix("model."): each.contiguous()
        for name, each in LlamaForCausalLM(config).state_dict().items()
        if name.startswith("model.layers.") and "input_layernorm" not in name
    }
    config.save_pretrained(path)
    save_file({**layers, "fc.weight": torch.randn(128, 256) * 0.2}, path / "model.safetensors", {"format": "pt"})


def save_eagle3(path: Path) -> None:
    """An EAGLE-3 head of one layer for the Llama, which reads what two of its layers are given beside the token."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    own = {"draft_vocab_size": VOCABULARY, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}
    settings: dict[str, Any] = {**COMMON, "num_key_value_heads": 2, "num_hidden_layers": 1, **own}
    config = LlamaConfig(**settings, architectures=["LlamaForCausalLM"])
    layers = {
        name.removeprefix("model.").replace("layers.0.", "midlayer."): each.contiguous()
        for name, each in LlamaForCausalLM(config).state_dict().items()
        if "embed_tokens" not in name
    }
    for name in ("q_proj", "k_proj", "v_proj"):  # which read the token and the hidden state
        layers[f"midlayer.self_attn.{name}.weight"] = torch.randn(128, 256) * 0.2
    layers["midlayer.hidden_norm.weight"] = torch.ones(128)
    config.save_pretrained(path)
    save_file({**layers, "fc.weight": torch.randn(128, 256) * 0.2}, path / "model.safetensors", {"format": "pt"})


def save_mimo(path: Path) -> None:
    """A MiMo of one layer, and the module with which it drafts a token more (MTP).

    The module is the layer again, over the embedding of the token behind each position, and over something of the hidden state;
    so it guesses some tokens right. The normed embeddings are some five times as long, and so is what it adds to them.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(8)
    config = Qwen2Config(**{**COMMON, "num_key_value_heads": 2}, num_hidden_layers=1)
    Qwen2ForCausalLM(config).save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    layer, module = "model.layers.0.", "model.mtp_layers.0."
    drafts = {name.replace(layer, module): each.clone() for name, each in weights.items() if name.startswith(layer)}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        drafts[f"{module}{name}.weight"] /= config.initializer_range
    drafts[f"{module}input_proj.weight"] = torch.cat([torch.randn(128, 128) * 0.02, torch.eye(128)], dim=1)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        drafts[f"{module}{name}.weight"] = torch.ones(128)
    save_file({**weights, **drafts}, path / "model.safetensors", {"format": "pt"})
    told = json.loads((path / "config.json").read_text())
    told |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(told))


def save_llava(path: Path) -> None:
    """The Llama with two layers that see, and what prepares its images by PIL alone."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    torch.manual_seed(7)
    text = LlamaConfig(**{**COMMON, "num_key_value_heads": 2}, num_hidden_layers=2)
    sight = CLIPVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=7,
        initializer_range=0.5,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=sight, text_config=text, image_token_index=IMAGE_TOKEN, image_seq_length=16, vision_feature_layer=-1
    )
    Llava(config).save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): each for name, each in weights.items()}
    save_file(named, path / "model.safetensors", {"format": "pt"})  # by the names of published ones, which vLLM asks for
    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor: Any = transformers.LlavaProcessor
    processor(
        images, _tokenizer({IMAGE_TOKEN: "<image>"}, extra_special_tokens={"image_token": "<image>"}), patch_size=7,
        vision_feature_select_strategy="default", image_token="<image>", num_additional_image_tokens=1,
    ).save_pretrained(path)  # fmt: skip


def save_tokenizer(path: Path) -> None:
    """One word a token, for a server."""
    _tokenizer({}).save_pretrained(path)


def _tokenizer(special: dict[int, str], **more: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {special.get(number, f"w{number}"): number for number in range(VOCABULARY)}
    words = Tokenizer(models.WordLevel(names, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast
    return tokenizer(tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w0", **more)


MODELS = {"llama": save_llama, "gemma3": save_gemma3, "qwen3_next": save_qwen3_next}
DTYPES = {"llama": "float32", "gemma3": "float32", "qwen3_next": "bfloat16"}
