"""Every transfer engine with movers to try it on, behind one face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cells import Cells
from fake_lanes import FakeDevice, LaneCells
from numpy.typing import NDArray

from unified_tree.controllers.pools import DevicePool, HostLayout, HostPool, PageFormat, PagePair, Part
from unified_tree.controllers.transfer_engines import (
    CpuEngine,
    CudaEngine,
    Latencies,
    NullEngine,
    SimulatedEngine,
    Transfer,
    TransferEngine,
    VirtualClock,
    cuda_lanes,
)
from unified_tree.effect import Copy, EffectKind

LAYERS = {"full": (3, 7, 11), "mamba": (0, 1, 3)}
PAGES = 24
NAMES = ("null", "cpu", "cpu pools", "simulated", "cuda scheduling", "cuda")


class PairCells:
    """The numbers of a PagePair; arrays [layer, page] are copied in and out."""

    def __init__(self, component: str, layer_ids: tuple[int, ...], device: str):
        page_format = PageFormat(component=component, layer_ids=layer_ids, parts=(Part("x", "int64", (1,)),), slots_per_page=1)
        host = HostPool(page_format, PAGES, HostLayout.PAGE_FIRST, pin=device != "cpu", reserve_bytes=0)
        self.pair = PagePair(DevicePool(page_format, PAGES, device), host)
        fresh = Cells(layer_ids, PAGES)
        self.device, self.host = fresh.device, fresh.host

    def _get(self, words: torch.Tensor) -> NDArray[np.int64]:
        return words[:, :, 0, 0].cpu().numpy().copy()

    @property
    def device(self) -> NDArray[np.int64]:
        return self._get(self.pair.device.words("x"))

    @device.setter
    def device(self, values: NDArray[np.int64]) -> None:
        self.pair.device.words("x")[:, :, 0, 0] = torch.from_numpy(values).to(self.pair.device.device)

    @property
    def host(self) -> NDArray[np.int64]:
        return self._get(self.pair.host.words("x"))

    @host.setter
    def host(self, values: NDArray[np.int64]) -> None:
        self.pair.host.words("x")[:, :, 0, 0] = torch.from_numpy(values)

    def put(self, *, device: bool, pages: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        words = (self.pair.device if device else self.pair.host).words("x")
        words[:, torch.from_numpy(pages), 0, 0] = torch.from_numpy(values).to(words.device)


@dataclass
class Rig:
    """An engine, the numbers it moves, and what makes the caller's stream come up to the host."""

    engine: TransferEngine
    cells: Mapping[str, Any]
    moves_bytes: bool = True
    catch_up: Callable[[], object] = lambda: None
    pass_time: Callable[[], object] = lambda: None

    def gate(self, ticket: int, layer_id: int) -> None:
        self.engine.wait_layer(ticket, layer_id)
        self.catch_up()


def rig(name: str, chunk_blocks: int = 4, latencies: Latencies | None = None) -> Rig:
    match name:
        case "null":
            return Rig(NullEngine(), {n: Cells(layers, PAGES) for n, layers in LAYERS.items()}, moves_bytes=False)
        case "cpu":
            cells = {n: Cells(layers, PAGES) for n, layers in LAYERS.items()}
            return Rig(CpuEngine(cells, chunk_blocks), cells)
        case "cpu pools":
            pairs = {n: PairCells(n, layers, "cpu") for n, layers in LAYERS.items()}
            return Rig(CpuEngine({n: cell.pair for n, cell in pairs.items()}, chunk_blocks), pairs)
        case "simulated":
            cells, clock = {n: Cells(layers, PAGES) for n, layers in LAYERS.items()}, VirtualClock()
            engine = SimulatedEngine(5, clock, latencies, movers=cells)
            return Rig(engine, cells, pass_time=lambda: clock.advance(30_000))
        case "cuda scheduling":
            device = FakeDevice()
            lane_cells = {n: LaneCells(device, layers, PAGES) for n, layers in LAYERS.items()}
            return Rig(CudaEngine(lane_cells, device.lanes, 3, chunk_blocks), lane_cells, catch_up=device.caller.run)
        case "cuda":
            if not torch.cuda.is_available():
                pytest.skip("no GPU")
            pairs = {n: PairCells(n, layers, "cuda") for n, layers in LAYERS.items()}
            cuda = CudaEngine({n: cell.pair for n, cell in pairs.items()}, cuda_lanes("cuda"), 3, chunk_blocks)
            return Rig(cuda, pairs, catch_up=torch.cuda.synchronize)
    raise ValueError(name)


def ids(*pages: int) -> NDArray[np.int64]:
    return np.array(pages, np.int64)


def transfer(ticket: int, direction: EffectKind, **copies: tuple[list[int], list[int]]) -> Transfer:
    """`full=([1, 2], [3, 4])` copies page 1 to 3 and 2 to 4."""
    made = tuple(Copy(component=name, source=ids(*source), target=ids(*target)) for name, (source, target) in copies.items())
    return Transfer(ticket=ticket, kind=direction, copies=made)
