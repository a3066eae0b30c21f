"""The extra buffer of recurrent states on a CPU, where SGLang does not offer `--mamba-radix-cache-strategy extra_buffer`.

Its scheduler and pools do not depend on the device, but for one mask that they pin. What is missing is the copy of a state into
its snapshot, a Triton kernel; it stands here in torch. The states inside a prefill come from `sgl_kernel.mamba`.
"""

from __future__ import annotations

from torch import Tensor


def register() -> None:
    """Let the extra buffer start, and copy without a kernel; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hook = "sglang.srt.arg_groups.mamba_hook._platform_supports_mamba_cache_extra_buffer"
    copies = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"
    HookRegistry.register(hook, lambda: True, HookType.REPLACE)
    HookRegistry.register("torch.Tensor.pin_memory", lambda tensor, *_: tensor, HookType.REPLACE)
    HookRegistry.register(f"{copies}.track_mamba_states_all_layers", all_layers, HookType.REPLACE)
    HookRegistry.register(f"{copies}.track_mamba_states_if_needed", one_layer, HookType.REPLACE)


def one_layer(
    conv: Tensor, states: Tensor, sources: Tensor, mask: Tensor, targets: Tensor, batch: int, check_freed_slots: bool = False
) -> None:
    """Copy the states of the masked requests to their snapshots: the pools are `[slots, …]`."""
    all_layers(conv.unsqueeze(0), states.unsqueeze(0), sources, mask, targets, batch, check_freed_slots)


def all_layers(
    conv: Tensor, states: Tensor, sources: Tensor, mask: Tensor, targets: Tensor, batch: int, check_freed_slots: bool = False
) -> None:
    """The same for pools of `[layers, slots, …]`."""
    assert not check_freed_slots
    chosen = mask[:batch].bool()
    source, target = sources[:batch][chosen].long(), targets[:batch][chosen].long()
    conv[:, target] = conv[:, source]
    states[:, target] = states[:, source]
