"""A transfer engine that moves nothing until a test says so, and a small cache over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from memory_model import Request, Runner
from page_memory import MemoryMover, PageMemory

from unified_tree import Component
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.ranks import Consensus
from unified_tree.controllers.transfer_engines import Completion, Transfer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import TransferError


class WouldWaitError(Exception):
    """A gate would have blocked the caller."""


class HeldEngine:
    """A TransferEngine in a test's hands.

    Attributes:
        open: transfers not ended, by ticket, in the order of submission.
        waited: tickets that somebody waited for; their transfers landed then.
        cancelled: tickets that were cancelled; they end at once.
        error: what `submit` raises; None to take transfers.
    """

    def __init__(self, movers: Mapping[str, MemoryMover]) -> None:
        self._movers = movers
        self._outcomes: dict[int, str | None] = {}
        self._landed: dict[int, set[int]] = {}
        self._completions: list[Completion] = []
        self.open: dict[int, Transfer] = {}
        self.waited: list[int] = []
        self.cancelled: list[int] = []
        self.error: str | None = None

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        if self.error is not None:
            raise TransferError(self.error)
        for transfer in transfers:
            self.open[transfer.ticket] = transfer
            self._landed[transfer.ticket] = set()

    def tickets(self, direction: EffectKind) -> list[int]:
        """Open transfers of one direction."""
        return [ticket for ticket, transfer in self.open.items() if transfer.kind is direction]

    def land(self, *directions: EffectKind) -> None:
        """Everything open arrives, or what goes in these directions."""
        for direction in directions or tuple(EffectKind):
            for ticket in self.tickets(direction):
                self.land_one(ticket)

    def land_layer(self, ticket: int, layer_id: int) -> None:
        """One layer of a load arrives."""
        for copy in self.open[ticket].copies:
            if layer_id in self._movers[copy.component].layer_ids:
                self._movers[copy.component].load_layers((layer_id,), copy.source, copy.target)
        self._landed[ticket].add(layer_id)

    def land_one(self, ticket: int) -> None:
        """One open transfer arrives."""
        transfer = self.open[ticket]
        for copy in transfer.copies:
            mover = self._movers[copy.component]
            if transfer.kind is EffectKind.BACKUP:
                mover.backup(copy.source, copy.target)
            else:
                mover.load_layers(mover.layer_ids, copy.source, copy.target)
        self._end(ticket, None)

    def fail(self, ticket: int, error: str = "a bad cable") -> None:
        """A transfer ends without having copied anything."""
        self._end(ticket, error)

    def _end(self, ticket: int, error: str | None) -> None:
        del self.open[ticket]
        self._outcomes[ticket] = error
        self._completions.append(Completion(ticket=ticket, error=error))

    def tell(self, completion: Completion) -> None:
        """Something that was never asked for, or was told before."""
        self._completions.append(completion)

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll."""
        completions, self._completions = self._completions, []
        return completions

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer; raises WouldWaitError instead of waiting."""
        if ticket in self.open:
            kept = {layer for c in self.open[ticket].copies for layer in self._movers[c.component].layer_ids}
            if not {layer for layer in kept if layer <= layer_id} <= self._landed[ticket]:
                raise WouldWaitError(f"for layer {layer_id} of {ticket}")
        elif self._outcomes[ticket] is not None:
            raise TransferError(f"transfer {ticket}: {self._outcomes[ticket]}")

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel."""
        if ticket in self.open:
            self.cancelled.append(ticket)
            self._end(ticket, "cancelled")

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self.waited.append(ticket)
        if ticket in self.open:
            self.land_one(ticket)

    def drain(self) -> None:
        """See TransferEngine.drain."""
        self.land()

    def close(self) -> None:
        """See TransferEngine.close."""
        self.error = "closed"
        for ticket in list(self.open):
            self._end(ticket, "the engine was closed")


class Tiered:
    """A cache of two tiers whose requests are texts, a token a letter, and whose every byte is checked. A page is two tokens.

    Args:
        components: of the cache.
        device, host: pages of every pool.
        counts: device pages of single pools instead; `host_counts` likewise.
        engine: moves the bytes of `memory`; a HeldEngine if not given.
        ranks: of the cache.
        tier: further settings of the HostTier.
    """

    def __init__(
        self,
        components: Sequence[Component],
        device: int = 40,
        host: int = 200,
        *,
        counts: Mapping[str, int] | None = None,
        host_counts: Mapping[str, int] | None = None,
        engine: Any = None,
        memory: PageMemory | None = None,
        ranks: Consensus | None = None,
        policy: str = "density",
        **tier: Any,
    ) -> None:
        memory = PageMemory(components) if memory is None else memory
        self.engine = HeldEngine(memory.movers()) if engine is None else engine
        device_pages = {c.name: device for c in components if c.shares is None} | dict(counts or {})
        host_pages = {c.name: host for c in components} | dict(host_counts or {})
        settings = HostTier(page_counts=host_pages, engine=self.engine, **tier)
        self.cache = PrefixCache(components, 2, device_pages, host=settings, ranks=ranks, policy=policy)
        self.runner = Runner(self.cache, components, memory)

    def start(self, text: str, namespace: str = "", **options: Any) -> Request:
        """Acquire."""
        return self.runner.start([ord(letter) for letter in text], namespace, **options)

    def publish(self, text: str) -> None:
        """A request's whole life, without a poll."""
        self.runner.serve([ord(letter) for letter in text])

    def run(self, request: Request, output: str = "", *, without: Sequence[str] = ()) -> None:
        """Compute and publish all of a prompt, and then some output."""
        self.bring()
        request.tokens += [ord(letter) for letter in output]
        self.cache.allocate(request.lease, len(request.tokens))
        self.runner.compute(request, len(request.tokens), without)
        self.runner.commit(request)

    def bring(self) -> None:
        """All loads arrive; that is not applied yet."""
        if isinstance(self.engine, HeldEngine):
            self.cache.poll()
            self.engine.land(EffectKind.LOAD)

    def serve(self, text: str, output: str = "", *, without: Sequence[str] = (), namespace: str = "") -> int:
        """A request's whole life; how many of its tokens were cached."""
        request = self.start(text, namespace)
        self.run(request, output, without=without)
        self.runner.finish(request)
        self.check()
        return request.lease.cached_tokens

    def is_loading(self, request: Request) -> bool:
        """Whether its cached pages are on their way still."""
        return request.lease.is_loading

    def served(self, *texts: str) -> Self:
        """It has served these texts, and the device has lost them to host."""
        for text in texts:
            self.serve(text)
        self.settle()
        self.forget()
        return self

    def settle(self) -> None:
        """Whatever is due is copied, and applied."""
        self.cache.drain()
        self.check()

    def forget(self, **pages: int) -> None:
        """A burst of work takes so many pages of single device pools, or all that can be had of every one."""
        for name, pool in self.cache.stats().pools.items():
            assert pool.total is not None
            if not pages:
                self.cache.device.reserve({name: pool.total - pool.leased - pool.protected})
            elif name in pages:
                self.cache.device.reserve({name: pool.total - pool.used + pages[name]})
        self.check()

    def on_host(self, component: str = "full") -> int:
        """Pages of a host pool that hold something."""
        return self.cache.stats().host_pools[component].tree

    def check(self) -> None:
        """Everything is sound."""
        self.runner.check()

    def end(self) -> None:
        """Release all; every page comes home."""
        self.runner.end()
        self.cache.close()
