"""`ENGINE_PYTHON vllm_bytes.py FILES OUT`: what vLLM allocates of each model, by its own model classes on a CPU.

FILES is a JSON object of `config.json`s by name. Each model is made on torch's meta device, and each of its layers is asked for
its `KVCacheSpec`. Empty objects stand in for what a CPU build lacks (FlashInfer, CuTe, streams), as no kernel runs. A model
that fails says so. Silent on the block tables and on memory that is not of the cache. It imports nothing of this package.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import types
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ABSENT = ("cuda", "cutlass", "deep_gemm", "flashinfer", "quack", "tilelang", "vllm.vllm_flash_attn")


class Empty(types.ModuleType):
    """A module whose every name is there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages that are not here."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if any(name == root or name.startswith(f"{root}.") for root in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = Empty(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        pass


class Idle:
    """A stream or an event on which nothing runs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def prepare() -> None:
    """Let CUDA's models be made on a CPU."""
    import torch
    from vllm.model_executor.model_loader.utils import initialize_model  # noqa: F401  (before the stand-ins)
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform
    from vllm.transformers_utils import config as configs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.worker.workspace import init_workspace_manager

    for holder, name in ((torch.cuda, "Event"), (torch.cuda, "Stream"), (torch, "Event")):
        setattr(holder, name, Idle)
    torch.accelerator.empty_cache = lambda: None
    torch.cpu._is_avx512_bf16_supported = lambda: False  # it would change the states' dtype
    registry._run_in_subprocess = lambda made: made()
    sys.meta_path.insert(0, Finder())
    init_workspace_manager(torch.device("cpu"))
    chosen = CpuPlatform.get_attn_backend_cls.__func__

    def backend(cls: Any, selected_backend: Any = None, attn_selector_config: Any = None, num_heads: Any = None) -> Any:
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.FLASHMLA_SPARSE.get_path()
        return chosen(cls, selected_backend, attn_selector_config, num_heads)

    CpuPlatform.get_attn_backend_cls = classmethod(backend)
    configs._CONFIG_REGISTRY["minimax_m3_vl_text"] = "MiniMaxM3TextConfig"  # a class of its own, known inside the whole alone


def allocated(config: dict[str, Any]) -> dict[str, Any]:
    """Bytes a token, or a state, by kind of layer."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model

    os.environ.pop("VLLM_MLA_DISABLE", None)  # a model of the Transformers backend leaves it behind
    length = min(8192, int(config.get("max_position_embeddings") or 2048))
    besides = config.pop("besides", {})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        arguments = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=length,
            hf_overrides=besides,
        )
        settings = arguments.create_engine_config()
        block = equal_pages(settings)
        with set_current_vllm_config(settings):
            if not torch.distributed.is_initialized():
                init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/rendezvous", 0, "gloo")
                ensure_model_parallel_initialized(1, 1)
            with torch.device("meta"):
                model = initialize_model(settings)
            if type(model).__name__.startswith("Transformers"):
                raise LookupError("it has no class of its own for this model")
            layers = get_layers_from_vllm_config(settings, AttentionLayerBase)
            specs = {name: layer.get_kv_cache_spec(settings) for name, layer in layers.items()}
    found: dict[str, float] = {}
    for name, spec in specs.items():
        if spec is not None:
            kind, size = kept(name, spec)
            found[kind] = found.get(kind, 0) + size
    return {**found, **block} if "state" in found else found


def equal_pages(settings: Any) -> dict[str, int]:
    """The tokens of a block and the bytes of a layer's page, of a model whose states take pages of attention's size.

    As on CUDA with FlashAttention, or FlashMLA, whose kernels take multiples of 16 and of 64 tokens. Empty where vLLM does not
    align this model.
    """
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backend import MultipleOf

    class Kernel:
        customize_spec = staticmethod(lambda spec: spec)
        get_supported_kernel_block_sizes = staticmethod(lambda: [MultipleOf(64 if settings.model_config.use_mla else 16)])

    cache, found = settings.cache_config, {}
    before = (cache.block_size, cache.mamba_page_size_padded, cache.mamba_block_size)
    cache.block_size, cache.mamba_page_size_padded = 16, None
    ask = CpuPlatform._find_non_ssm_backends
    CpuPlatform._find_non_ssm_backends = classmethod(lambda *_: [Kernel])
    try:
        CpuPlatform._align_hybrid_block_size(settings, Kernel)
        if cache.mamba_page_size_padded is not None:
            found = {"block": cache.block_size, "page": cache.mamba_page_size_padded}
    except Exception as error:  # a model without states
        found = {"unaligned": f"{type(error).__name__}: {error}"[:200]}
    finally:
        CpuPlatform._find_non_ssm_backends = ask
        cache.block_size, cache.mamba_page_size_padded, cache.mamba_block_size = before
    return found


def kept(name: str, spec: Any) -> tuple[str, float]:
    """The kind of a layer's cache, and its bytes."""
    from vllm.utils.torch_utils import get_dtype_size

    if type(spec).__name__ == "MambaSpec":
        return "state", sum(prod(shape) * get_dtype_size(dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True))
    size = spec.page_size_bytes / spec.block_size
    if "compressor" in name:
        return "carry", size
    if "index" in name:
        return "index", size
    if (window := getattr(spec, "sliding_window", None)) is not None:
        return f"window {window - 1}", size
    return ("chunk" if getattr(spec, "attention_chunk_size", None) else "full"), size


def main(files: str, out: str) -> None:
    prepare()
    results: dict[str, Any] = {}
    configs = json.loads(Path(files).read_text())
    for name in sorted(configs, key=lambda name: "num_experts_per_tok" not in configs[name]):  # the first makes experts' groups
        config = configs[name]
        try:
            results[name] = allocated(config)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
