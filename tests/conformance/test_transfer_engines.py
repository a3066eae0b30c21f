"""Every transfer engine keeps the contract, as `unified_tree.controllers.testing` checks it."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import patient_checks
import pytest
import torch
from fake_lanes import FakeDevice, LaneCells
from numpy.typing import NDArray

from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.pools import DevicePool, HostLayout, HostPool, PageFormat, PagePair, Part
from unified_tree.controllers.testing import Cells, Check, Latencies, SimulatedEngine, TransferRig, transfer_engine_checks
from unified_tree.controllers.testing.transfer_contract import TRAFFIC_STEPS
from unified_tree.controllers.testing.transfer_rig import LAYERS, PAGES, Ids, new_cells
from unified_tree.controllers.transfer_engines import (
    CpuEngine,
    CudaEngine,
    NullEngine,
    VirtualClock,
    cuda_lanes,
)
from unified_tree.controllers.workbench.server.paced_transfers import PacedEngine

NAMES = ("null", "cpu", "cpu pools", "simulated", "paced", "cuda scheduling", "cuda")


class PairCells:
    """A PagePair as a mover that can be watched, as `Cells` can; arrays [layer, page] are copied in and out."""

    def __init__(self, component: str, layer_ids: tuple[int, ...], device: str):
        page_format = PageFormat(component=component, layer_ids=layer_ids, parts=(Part("x", "int64", (1,)),), slots_per_page=1)
        host = HostPool(page_format, PAGES, HostLayout.PAGE_FIRST, pin=device != "cpu", reserve_bytes=0)
        self.pair = PagePair(DevicePool(page_format, PAGES, device), host)
        self.layer_ids = layer_ids
        self.watch: Callable[[int | None, Ids, Ids], object] | None = None
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

    def backup(self, source: Ids, target: Ids) -> None:
        if self.watch is not None:
            self.watch(None, source, target)
        self.pair.backup(source, target)

    def load_layers(self, layer_ids: tuple[int, ...], source: Ids, target: Ids) -> None:
        if self.watch is not None:
            self.watch(layer_ids[0], source, target)
        self.pair.load_layers(layer_ids, source, target)

    def put(self, *, device: bool, pages: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        words = (self.pair.device if device else self.pair.host).words("x")
        words[:, torch.from_numpy(pages), 0, 0] = torch.from_numpy(values).to(words.device)


def rig(name: str, chunk_blocks: int = 4, latencies: Latencies | None = None) -> TransferRig:
    match name:
        case "null":
            return TransferRig(NullEngine(), new_cells(), moves_bytes=False)
        case "cpu":
            cells = new_cells()
            return TransferRig(CpuEngine(cells, chunk_blocks), cells)
        case "cpu pools":
            pairs = {n: PairCells(n, layers, "cpu") for n, layers in LAYERS.items()}
            return TransferRig(CpuEngine(pairs, chunk_blocks), pairs)
        case "simulated":
            cells, clock = new_cells(), VirtualClock()
            engine = SimulatedEngine(5, clock, latencies, movers=cells)
            return TransferRig(engine, cells, pass_time=lambda: clock.advance(30_000))
        case "paced":
            cells, clock = new_cells(), VirtualClock()
            paced = PacedEngine(CpuEngine(cells, chunk_blocks), clock, LoadCost(), dict.fromkeys(LAYERS, 1000))
            return TransferRig(paced, cells, pass_time=lambda: clock.advance(30_000))
        case "cuda scheduling":
            device = FakeDevice()
            lane_cells = {n: LaneCells(device, layers, PAGES) for n, layers in LAYERS.items()}
            return TransferRig(CudaEngine(lane_cells, device.lanes, 3, chunk_blocks), lane_cells, catch_up=device.caller.run)
        case "cuda":
            if not torch.cuda.is_available():
                pytest.skip("no GPU")
            pairs = {n: PairCells(n, layers, "cuda") for n, layers in LAYERS.items()}
            cuda = CudaEngine(pairs, cuda_lanes("cuda"), 3, chunk_blocks)
            return TransferRig(cuda, pairs, catch_up=torch.cuda.synchronize)
    raise ValueError(name)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_checks.let_no_copy_be_too_slow(monkeypatch)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", transfer_engine_checks(), ids=repr)
def test_every_engine_keeps_the_contract(check: Check, name: str, record_property: Callable[[str, object], None]) -> None:
    check(rig(name, chunk_blocks=random.Random(f"{name} {check}").choice([1, 4, 100])))
    if check.name.startswith("random") and name != "null":
        record_property("operations", TRAFFIC_STEPS)
